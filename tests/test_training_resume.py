"""Exact resume of a GRPO trainer (cases 41 and 42).

Guarantees locked here:
1. Four steps in one go equal two steps, a new trainer object, and two more: weights, optimizer,
   generators, logged values, bit for bit; also with TRL's adaptive entropy and several updates
   per generation.
2. A save between generations waits for the next boundary.
3. No file in a checkpoint is pickled; a damaged one is refused or skipped by name.
"""

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from datasets import Dataset
from peft import LoraConfig, get_peft_model
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    TrainerCallback,
)
from trl import GRPOConfig

from ragen2_cli.errors import UserError
from ragen2_cli.training import checkpoints
from ragen2_cli.training.resume import SafeCheckpointMixin

PROMPTS = [f"{first} {second}" for first in "abcd" for second in "xyz"]
WORDS = ["<pad>", "<eos>", *"abcdefghijklmnopqrstuvwxyz"]


def tokenizer():
    core = Tokenizer(models.WordLevel({w: i for i, w in enumerate(WORDS)}, unk_token="a"))
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=core, pad_token="<pad>", eos_token="<eos>")


def policy(*, full=False):
    torch.manual_seed(0)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(WORDS),
            hidden_size=16,
            intermediate_size=32,
            num_hidden_layers=1,
            num_attention_heads=2,
            max_position_embeddings=64,
            pad_token_id=0,
            eos_token_id=1,
            bos_token_id=None,
            initializer_range=0.2,
        )
    )
    if full:
        return model
    lora = LoraConfig(r=2, lora_alpha=4, target_modules="all-linear", task_type="CAUSAL_LM")
    return get_peft_model(model, lora)


def length_reward(completions, **_):
    return [float(len(text.split())) + 0.1 * text.count("a") for text in completions]


class Counting(SafeCheckpointMixin):
    """Carries a cursor and an array from step to step."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.cursor = 0
        self.history = np.zeros(3, dtype=np.float32)
        self.committed = []

    def extra_state(self):
        return {"cursor": self.cursor, "history": self.history}

    def load_extra_state(self, state):
        self.cursor, self.history = state["cursor"], state["history"].copy()

    def before_commit(self):
        self.committed.append(self.state.global_step)

    def training_step(self, *args, **kwargs):
        self.cursor += 1
        self.history[self.cursor % 3] += 1
        return super().training_step(*args, **kwargs)


class StopAt(TrainerCallback):
    """Interrupts after a step, the way Ctrl-C does: save, then stop."""

    def __init__(self, step):
        self.step = step

    def on_step_end(self, args, state, control, **_):
        if state.global_step == self.step:
            control.should_save = control.should_training_stop = True


class Rows(TrainerCallback):
    """Collects what is logged, times aside."""

    def __init__(self):
        self.rows = []

    def on_log(self, args, state, control, logs=None, **_):
        if logs and "loss" in logs:
            self.rows.append({k: v for k, v in logs.items() if "time" not in k})


def trainer(folder, *, full=False, prompts=12, callbacks=(), **options):
    random.seed(1)
    settings = {
        "output_dir": str(folder),
        "max_steps": 4,
        "per_device_train_batch_size": 4,
        "gradient_accumulation_steps": 2,
        "num_generations": 4,
        "max_completion_length": 6,
        "learning_rate": 0.05,
        "lr_scheduler_type": "linear",
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": [],
        "use_cpu": True,
        "disable_tqdm": True,
        "seed": 3,
    }
    return Counting(
        model=policy(full=full),
        reward_funcs=[length_reward],
        args=GRPOConfig(**(settings | options)),
        train_dataset=Dataset.from_dict({"prompt": PROMPTS[:prompts]}),
        processing_class=tokenizer(),
        callbacks=list(callbacks),
    )


def weights(made):
    return {
        name: value.detach().clone()
        for name, value in made.model.named_parameters()
        if value.requires_grad
    }


def assert_same(first, second):
    assert first.keys() == second.keys()
    for name, value in first.items():
        assert torch.equal(value, second[name]), name


def run_both_ways(tmp_path, stop_at=2, **options):
    """Train four steps in one go, and interrupted after ``stop_at``; return both ends."""
    rows_whole, rows_parts = Rows(), Rows()
    whole = trainer(tmp_path / "whole", callbacks=[rows_whole], **options)
    start = weights(whole)
    whole.train()
    ends = torch.get_rng_state()

    part = trainer(tmp_path / "parts", callbacks=[StopAt(stop_at), rows_parts], **options)
    part.train()
    torch.manual_seed(12345)  # a new process starts with other generators
    np.random.seed(12345)  # noqa: NPY002 - the global state that must not matter
    rest = trainer(tmp_path / "parts", callbacks=[rows_parts], **options)
    rest.train(resume_from_checkpoint=True)

    assert any(not torch.equal(start[name], value) for name, value in weights(whole).items())
    assert_same(weights(whole), weights(rest))
    assert rest.state.global_step == whole.state.global_step == 4
    assert rows_parts.rows == rows_whole.rows
    assert (rest.cursor, rest.history.tolist()) == (whole.cursor, whole.history.tolist())
    assert torch.equal(torch.get_rng_state(), ends)
    return whole, rest


KL = {"beta": 0.1, "lr_scheduler_type": "cosine", "warmup_steps": 1}
ADAPTIVE = {"use_adaptive_entropy": True, "entropy_coef": 0.01, "entropy_target": 9.0}


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({}, id="lora"),
        pytest.param(ADAPTIVE, id="adaptive-entropy"),
        pytest.param({"full": True}, id="full", marks=pytest.mark.slow),
        pytest.param(KL, id="kl", marks=pytest.mark.slow),
        pytest.param({"num_iterations": 2}, id="two-iterations", marks=pytest.mark.slow),
    ],
)
def test_two_and_two_steps_equal_four(tmp_path, options):  # case 42
    whole, rest = run_both_ways(tmp_path, **options)
    assert rest.entropy_coef == whole.entropy_coef
    assert whole._last_world_entropy == rest._last_world_entropy
    state, other = whole.optimizer.state_dict(), rest.optimizer.state_dict()
    for index, entry in state["state"].items():
        for name, value in entry.items():
            assert torch.equal(value, other["state"][index][name])
    assert whole.lr_scheduler.state_dict() == rest.lr_scheduler.state_dict()


@pytest.mark.parametrize(
    ("prompts", "stop_at"),
    [
        # Two prompts a step. With two, every step is an epoch, as in a run of ours.
        pytest.param(2, 2, id="every-step"),
        pytest.param(4, 3, id="mid-epoch", marks=pytest.mark.slow),
    ],
)
def test_shuffled_epochs_continue_in_their_order(tmp_path, prompts, stop_at):
    run_both_ways(tmp_path, stop_at, prompts=prompts)


def test_a_save_between_generations_waits_for_the_boundary(tmp_path):
    # Two optimizer steps share a generation: boundaries are steps 2 and 4.
    made = trainer(
        tmp_path / "a", save_strategy="steps", save_steps=3, steps_per_generation=4, max_steps=6
    )
    made.train()
    found = checkpoints.list_complete(made.checkpoint_root)
    assert [path.name for path in found.complete] == ["step-000006", "step-000004"]
    assert made.committed == [4, 6]
    made._step, made.state.max_steps = 3, 8  # after the last step it may be asked for
    with pytest.raises(RuntimeError, match="only possible at generation boundaries"):
        made._save_checkpoint(made.model, None)


def test_what_a_checkpoint_holds(tmp_path):
    made = trainer(tmp_path / "a", save_strategy="steps", save_steps=1, save_total_limit=2)
    made.train()
    root = made.checkpoint_root
    assert sorted(os.listdir(root)) == ["step-000003", "step-000004"]
    names = sorted(os.listdir(root / "step-000004"))
    assert names == [
        "README.md",
        "adapter_config.json",
        "adapter_model.safetensors",
        "generators-0.json",
        "generators-0.safetensors",
        "manifest.json",
        "optimizer.json",
        "optimizer.safetensors",
        "trainer.json",
        "trainer.safetensors",
        "trainer_state.json",
    ]
    listed = json.loads((root / "step-000004" / "manifest.json").read_text())["files"]
    assert sorted([*listed, "manifest.json"]) == names
    assert sorted(os.listdir(tmp_path / "a")) == ["checkpoints"]


def test_damaged_newest_is_skipped_by_name_and_by_path_refused(tmp_path, caplog):  # case 41
    made = trainer(tmp_path / "a", save_strategy="steps", save_steps=1, max_steps=2)
    made.train()
    damaged = made.checkpoint_root / "step-000002" / "optimizer.safetensors"
    damaged.write_bytes(damaged.read_bytes()[:-1])
    rest = trainer(tmp_path / "a", max_steps=3)
    with pytest.raises(UserError, match=r"cannot resume from .*step-000002: 'optimizer.saf"):
        rest.train(resume_from_checkpoint=str(damaged.parent))
    rest.train(resume_from_checkpoint=True)
    assert "skipping checkpoint step-000002: 'optimizer.safetensors' has" in caplog.text
    assert rest.state.global_step == 3


def test_resume_refuses_what_it_cannot_do_exactly(tmp_path, monkeypatch):
    made = trainer(tmp_path / "a", save_strategy="steps", save_steps=2)
    with pytest.raises(UserError, match="no complete checkpoint"):
        made.train(resume_from_checkpoint=True)
    made.train()
    with pytest.raises(UserError, match="at step 4 and 4 were asked for"):
        made.train(resume_from_checkpoint=True)
    with pytest.raises(UserError, match="ignore_data_skip"):
        trainer(tmp_path / "a", max_steps=6, ignore_data_skip=True).train(
            resume_from_checkpoint=True
        )
    path = made.checkpoint_root / "step-000004"
    two = trainer(tmp_path / "a", max_steps=6)
    monkeypatch.setattr(two.args.distributed_state, "num_processes", 2)
    with pytest.raises(UserError, match="written by 1 processes, this run has 2"):
        two.train(resume_from_checkpoint=str(path))


def test_full_disk_stops_with_one_line_and_keeps_the_last(tmp_path, monkeypatch):
    made = trainer(tmp_path / "a", save_strategy="steps", save_steps=2)
    real = os.fsync

    def full(descriptor):
        if made.state.global_step == 4:
            raise OSError(28, "No space left on device")
        real(descriptor)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(UserError, match=r"step 4 .*No space left.*step-000002 is intact"):
        made.train()
    monkeypatch.undo()
    assert os.listdir(made.checkpoint_root) == ["step-000002"]
    trainer(tmp_path / "a").train(resume_from_checkpoint=True)


PROCESSES = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import torch
from test_training_resume import StopAt, trainer, weights

root = Path(sys.argv[2])
options = {"per_device_train_batch_size": 2, "prompts": 4}
whole = trainer(root / "whole", **options)
whole.train()
trainer(root / "parts", callbacks=[StopAt(2)], **options).train()
torch.manual_seed(12345 + whole.args.process_index)
rest = trainer(root / "parts", **options)
rest.train(resume_from_checkpoint=True)
same = all(torch.equal(value, weights(rest)[name]) for name, value in weights(whole).items())
(root / f"rank{whole.args.process_index}").write_text(f"{whole.args.world_size} {same}")
"""


@pytest.mark.slow
def test_two_processes_resume_exactly(tmp_path):
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    script = tmp_path / "script.py"
    script.write_text(PROCESSES)
    done = subprocess.run(
        [*launcher, "--nproc_per_node=2", str(script), str(Path(__file__).parent), str(tmp_path)],
        env=os.environ | {"ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    for rank in (0, 1):
        assert (tmp_path / f"rank{rank}").read_text() == "2 True"
    names = os.listdir(tmp_path / "parts" / "checkpoints" / "step-000002")
    assert {"generators-0.safetensors", "generators-1.safetensors"} <= set(names)

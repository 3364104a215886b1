"""Train a few steps on one GPU and say how fast it goes: a check for a machine we do not have here.

Five steps of FrozenLake with transformers and, where vllm can be imported, with vLLM, each with and
without the top-p filter, every arm in a process of its own. Prints sampled tokens per second, the
time of a step and of its update, the peak of memory and the losses side by side; last the ratio of
the update time with the filter to that without. No network: the policy is a folder (--model) or one
in the shape of Qwen2.5-0.5B with random weights. Without a GPU it says so and exits with 2; --tiny
tries the same on a CPU with a small model.

    python benchmarks/gpu_check.py --json
    python benchmarks/gpu_check.py --model path/to/Qwen2.5-0.5B-Instruct --steps 5
"""

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"


@dataclass(frozen=True)
class Arm:
    """One way to train, measured.

    Attributes:
        backend: Who sampled.
        filter: The group filter.
        tokens_per_second: Sampled tokens over rollout seconds, first step left out.
        step_seconds: Median time of a step, first one left out.
        update_seconds: The same of its update.
        kept: Share of the groups that were trained on.
        peak_gb: Peak of allocated GPU memory, or of the process's memory on a CPU.
        losses: The loss of every step.
    """

    backend: str
    filter: str
    tokens_per_second: float
    step_seconds: float
    update_seconds: float
    kept: float
    peak_gb: float
    losses: list[float | None]


def measure(backend: str, strategy: str, model: str, folder: str, settings: dict[str, Any]) -> Arm:
    """Train one arm in this process and read its records."""
    from ragen2_cli.config import load_config
    from ragen2_cli.runs import RunDirectory
    from ragen2_cli.training.run import start

    flags = {"model.name": model, "rollout.backend": backend, "filter.strategy": strategy}
    out = Path(folder) / f"{backend}-{strategy}"
    start(load_config(flags=flags | settings), out, quiet=True)
    rows = RunDirectory.open(out).read_steps()
    warm = rows[1:] or rows
    return Arm(
        backend=backend,
        filter=strategy,
        tokens_per_second=sum(r.tokens for r in warm) / sum(r.rollout_seconds for r in warm),
        step_seconds=median(row.step_seconds for row in warm),
        update_seconds=median(row.update_seconds for row in warm),
        kept=sum(row.kept_groups for row in rows) / max(1, sum(row.groups for row in rows)),
        peak_gb=_peak(),
        losses=[row.loss for row in rows],
    )


def _peak() -> float:
    import resource

    import torch

    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated() / 1e9
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9


def has_gpu() -> bool:
    """Whether torch sees a CUDA device."""
    import torch

    return torch.cuda.is_available()


def settings_of(options: argparse.Namespace) -> dict[str, Any]:
    """Return the config keys that all arms share."""
    return {
        "steps": options.steps,
        "rollout.prompts": 4 if options.tiny else options.prompts,
        "rollout.group_size": 4 if options.tiny else options.group_size,
        "rollout.context_limit": 2048,
        "optimizer.lr": 1e-5,
        "model.device": "cpu" if options.tiny else "cuda",
        "evaluation.episodes": 0,
        "diagnostics.every": 0,
        "checkpoints.every": options.steps,
    }


def compare(arms: Sequence[Arm]) -> dict[str, Any]:
    """Return what the arms say about each other: filter against none, vLLM against transformers."""
    by_name = {(arm.backend, arm.filter): arm for arm in arms}
    found: dict[str, Any] = {}
    for backend in dict.fromkeys(arm.backend for arm in arms):
        kept, every = by_name[backend, "top-p"], by_name[backend, "none"]
        found[f"{backend}_update_ratio"] = kept.update_seconds / every.update_seconds
    if ("vllm", "none") in by_name:
        pairs = zip(
            by_name["vllm", "none"].losses, by_name["transformers", "none"].losses, strict=True
        )
        gaps = [abs(a - b) for a, b in pairs if a is not None and b is not None]
        found["loss_gap"] = max(gaps, default=None)
    return found


def report(arms: Sequence[Arm], found: dict[str, Any]) -> str:
    """Return the table, what was compared, and the ratio in the last line."""
    lines = ["backend       filter  tokens/s  step s  update s  kept  peak GB  losses"]
    for arm in arms:
        losses = " ".join("-" if loss is None else f"{loss:.4f}" for loss in arm.losses)
        lines.append(
            f"{arm.backend:<13} {arm.filter:<6} {arm.tokens_per_second:>9,.0f} "
            f"{arm.step_seconds:>7.2f} {arm.update_seconds:>9.2f} {arm.kept:>5.0%} "
            f"{arm.peak_gb:>8.2f}  {losses}"
        )
    if "loss_gap" in found:
        lines.append(
            f"largest gap between the losses of vLLM and transformers: {found['loss_gap']}"
        )
    else:
        lines.append("vllm cannot be imported here: not checked")
    return "\n".join([*lines, f"{found['transformers_update_ratio']:.2f}"])


def main() -> None:
    """Train every arm, print what was measured."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, help="a local model folder instead of a random one")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--prompts", type=int, default=16)
    parser.add_argument("--group-size", type=int, default=8)
    parser.add_argument("--tiny", action="store_true", help="a small model on the CPU")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead")
    options = parser.parse_args()
    if not (options.tiny or has_gpu()):
        sys.stderr.write("gpu_check: no CUDA GPU on this machine; --tiny tries it on the CPU\n")
        raise SystemExit(2)
    backends = ["transformers"]
    if find_spec("vllm") is not None and not options.tiny:
        backends.append("vllm")
    with tempfile.TemporaryDirectory() as folder:
        model = options.model or Path(folder) / "policy"
        if options.model is None:
            from gpu_policy import build

            build(model, "tiny" if options.tiny else "full")
        shared = settings_of(options)
        arms = []
        for backend in backends:
            for strategy in ("top-p", "none"):
                with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
                    arms.append(
                        process.submit(
                            measure, backend, strategy, str(model), folder, shared
                        ).result()
                    )
    found = compare(arms)
    if options.json:
        print(json.dumps({"arms": [asdict(arm) for arm in arms], **found}))
        return
    print(report(arms, found))


if __name__ == "__main__":
    main()

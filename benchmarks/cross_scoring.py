"""Cross-scoring, the obvious way against ours: time, peak memory, largest difference.

    python benchmarks/cross_scoring.py              # both required sizes, then the scaling table
    python benchmarks/cross_scoring.py --only embedded

Each way runs alone in its own process on one thread; seconds are processor seconds, so that other
work on the machine does not count, and the best of the repeats is taken. The obvious way scores
N x P full sequences in batches of 16 and takes log_softmax of all their logits.
"""

import argparse
import gc
import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import torch

SHAPES = {
    "embedded": {"hidden_size": 96, "intermediate_size": 256, "num_hidden_layers": 3,
                 "num_attention_heads": 4, "num_key_value_heads": 4, "vocab_size": 330},
    "smollm2-135m": {"hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30,
                     "num_attention_heads": 9, "num_key_value_heads": 3, "vocab_size": 49152},
}  # fmt: skip
BATCH = 16


def build(shape: str):
    """Return a model of random weights that neither grow nor shrink what passes through a layer."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        **SHAPES[shape], max_position_embeddings=2048, tie_word_embeddings=True,
        initializer_range=SHAPES[shape]["hidden_size"] ** -0.5,
    )  # fmt: skip
    return LlamaForCausalLM(config).eval()


def data(shape: str, prompts: int, rows: int, prompt_length: int = 300, length: int = 40):
    """Return prompts and reasonings of random tokens."""
    rng = np.random.default_rng(1)
    vocabulary = SHAPES[shape]["vocab_size"]
    return (
        rng.integers(0, vocabulary, (prompts, prompt_length)).tolist(),
        [rng.integers(0, vocabulary, length).tolist() for _ in range(rows)],
    )


@torch.no_grad()
def obvious(model, prompts, reasonings, share: float = 1.0) -> np.ndarray:
    """Score every pair (or the first share of them, the rest NaN) as one full sequence."""
    pairs = [(i, j) for i in range(len(reasonings)) for j in range(len(prompts))]
    pairs = pairs[: round(share * len(pairs))]
    scores = np.full((len(reasonings), len(prompts)), np.nan)
    for start in range(0, len(pairs), BATCH):
        batch = pairs[start : start + BATCH]
        ids = torch.tensor([prompts[j] + reasonings[i] for i, j in batch])
        logprobs = torch.log_softmax(model(ids, use_cache=False).logits[:, :-1].float(), dim=-1)
        taken = logprobs.gather(-1, ids[:, 1:, None])[..., 0]
        for row, (i, j) in enumerate(batch):
            scores[i, j] = taken[row, -len(reasonings[i]) :].double().sum()
    return scores


def ours(model, prompts, reasonings, share: float = 1.0) -> np.ndarray:
    """Score with prompts encoded once."""
    from ragen2_cli.training.scoring import cross_logprobs

    return cross_logprobs(model, prompts, reasonings).sum_logprobs_N_P


def measure(shape: str, way: str, rows: int, prompts: int, share: float = 1.0) -> dict:
    """Run one way in this process: seconds, bytes above the loaded model, the matrix."""
    torch.set_num_threads(1)
    model = build(shape)
    contexts, reasonings = data(shape, prompts, rows)
    score = {"obvious": obvious, "ours": ours}[way]
    score(model, contexts[:2], reasonings[:1])  # first-call costs are nobody's
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far (Linux)
    before = status_mb("VmRSS")
    start = time.process_time()
    scores = score(model, contexts, reasonings, share)
    seconds = time.process_time() - start
    return {
        "seconds": seconds,
        "peak_mb": status_mb("VmHWM") - before,
        "scores": scores.tolist(),
    }


def status_mb(name: str) -> float:
    """Return a memory figure of this process in MB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name)) / 1024


def in_own_process(shape: str, way: str, rows: int, prompts: int, share: float) -> dict:
    """Run ``measure`` in a fresh interpreter."""
    command = [sys.executable, __file__, "--child", shape, way, *map(str, (rows, prompts, share))]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def compare(shape: str, size: int, repeats: int, share: float) -> str:
    """Return the line that compares both ways."""
    shares = {"obvious": share, "ours": 1.0}
    runs = {
        way: [in_own_process(shape, way, size, size, part) for _ in range(repeats)]
        for way, part in shares.items()
    }
    best = {way: min(run["seconds"] for run in runs[way]) / shares[way] for way in runs}
    peak = {way: max(run["peak_mb"] for run in runs[way]) for way in runs}
    difference = np.nanmax(
        np.abs(np.array(runs["obvious"][0]["scores"]) - np.array(runs["ours"][0]["scores"]))
    )
    scaled = "" if share == 1 else f" (from {share:.0%} of the pairs)"
    return (
        f"{shape} {size}x{size}: obvious{scaled} {best['obvious']:.2f} s, "
        f"ours {best['ours']:.2f} s, "
        f"{best['obvious'] / best['ours']:.1f}x faster; peak above the model "
        f"{peak['obvious']:.0f} -> {peak['ours']:.0f} MB "
        f"({peak['ours'] / peak['obvious']:.2f}); largest difference {difference:.1e}"
    )


def scaling(shape: str) -> None:
    """Print the cost of our way against N and P."""
    print(f"\n{shape}, ours, seconds (prompt 300 tokens, reasoning 40)")
    print("N \\ P" + "".join(f"{prompts:>8}" for prompts in (8, 16, 32, 64)))
    for rows in (8, 16, 32, 64):
        cells = [measure(shape, "ours", rows, prompts)["seconds"] for prompts in (8, 16, 32, 64)]
        print(f"{rows:<5}" + "".join(f"{cell:8.2f}" for cell in cells))


def main() -> None:
    """Read the options and run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=list(SHAPES))
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument(
        "--share", type=float, default=1.0, help="score only so many pairs the obvious way"
    )
    parser.add_argument("--child", nargs=5, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        shape, way, rows, prompts, share = options.child
        print(json.dumps(measure(shape, way, int(rows), int(prompts), float(share))))
        return
    shapes = [options.only] if options.only else list(SHAPES)
    if "embedded" in shapes:
        scaling("embedded")
    for shape in shapes:
        size = 64 if shape == "embedded" else 16
        print(compare(shape, size, options.repeats, options.share), flush=True)


if __name__ == "__main__":
    main()

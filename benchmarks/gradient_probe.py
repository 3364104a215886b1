"""Gradient norms of three loss terms by bucket: the obvious way against ours, side by side.

The obvious way makes a forward and a backward pass for each term of each bucket, and again for the
whole batch. Ours makes one forward pass per micro-batch and adds the buckets up. Both use the same
policy (embedded, LoRA), batch, scoring and micro-batches by length, on one thread; seconds are
processor seconds, the best of the rounds. Prints the ratio last; at least 2.2 is expected.

    python benchmarks/gradient_probe.py --groups 24 --rounds 2
"""

import argparse
import json
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ragen2_cli.config import load_config
from ragen2_cli.core.gradients import quantile_buckets
from ragen2_cli.core.groups import advantages, group_stats
from ragen2_cli.records import Episode
from ragen2_cli.training.gradient_batch import ProbeSettings
from ragen2_cli.training.gradient_probe import probe
from ragen2_cli.training.models import attach_lora, load_policy
from ragen2_cli.training.player import build_player
from ragen2_cli.training.setup import prepare

ENTROPY, KL, BUDGET = 0.01, 0.01, 4096


def make(groups: int) -> tuple[Any, list[Episode], int]:
    """Return the embedded policy with a moved LoRA adapter, and a batch that it has played."""
    config = load_config(flags={"seed": 0})
    prepare(config)
    loaded = load_policy("embedded", device="cpu")
    model = attach_lora(loaded.model)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "lora_B" in name:
                weight.normal_(std=0.02)
    player = build_player(config, model, loaded)
    boards, _ = player.next_boards(0, groups)
    episodes = [one.episode for one in player.play_groups(boards, step=1)]
    return model.eval(), episodes, config.rollout.group_size


class Obvious:
    """A forward and a backward pass for each term, of each bucket and of the whole batch."""

    def __init__(self, model: Any, episodes: list[Episode], group_size: int) -> None:
        self.model, self.episodes, self.group_size = model, episodes, group_size
        returns = np.array([one.episode_return for one in episodes], dtype=float)
        self.returns = returns.reshape(-1, group_size)
        self.advantage_N = torch.tensor(advantages(self.returns, "group").ravel())
        self.tokens = sum(sum(one.loss_mask) for one in episodes)
        self.weight_N = [1 / (len(episodes) * sum(one.loss_mask)) for one in episodes]

    def __call__(self) -> list[dict[str, float]]:
        """Return the norms of every bucket and of the whole batch."""
        buckets = quantile_buckets(group_stats(self.returns).var_P)
        everything = np.arange(len(self.episodes))
        within = np.arange(self.group_size)
        parts = [(bucket[:, None] * self.group_size + within).ravel() for bucket in buckets]
        return [
            {term: self.norm(rows, term) for term in ("task", "entropy", "kl")}
            for rows in [*parts, everything]
        ]

    def norm(self, rows: np.ndarray, term: str) -> float:
        """Return the norm of one term over some rows."""
        self.model.zero_grad(set_to_none=True)
        for chunk in self.chunks(rows.tolist()):
            self.loss(chunk, term).backward()
        squares = [
            w.grad.double().square().sum() for w in self.model.parameters() if w.grad is not None
        ]
        self.model.zero_grad(set_to_none=True)
        return float(torch.stack(squares).sum().sqrt())

    def chunks(self, rows: list[int]) -> list[list[int]]:
        """Return the rows in micro-batches of similar length."""

        def length(row: int) -> int:
            one = self.episodes[row]
            return len(one.prompt_ids) + len(one.completion_ids)

        found: list[list[int]] = [[]]
        for row in sorted(rows, key=length):
            if found[-1] and (len(found[-1]) + 1) * length(row) > BUDGET:
                found.append([])
            found[-1].append(row)
        return found

    def score(self, chosen: list[Episode]) -> tuple[Tensor, Tensor, Tensor]:
        """Return log-probabilities of the tokens, all log-probabilities, and the loss mask."""
        width = max(len(one.prompt_ids) + len(one.completion_ids) for one in chosen)
        first = min(len(one.prompt_ids) for one in chosen)
        ids = torch.zeros(len(chosen), width, dtype=torch.long)
        attention, mask = torch.zeros_like(ids), torch.zeros(len(chosen), width)
        for index, one in enumerate(chosen):
            row = [*one.prompt_ids, *one.completion_ids]
            ids[index, : len(row)] = torch.tensor(row)
            attention[index, : len(row)] = 1
            mask[index, len(one.prompt_ids) : len(row)] = torch.tensor(one.loss_mask).float()
        keep = width - first + 1
        logits = self.model(input_ids=ids, attention_mask=attention, logits_to_keep=keep).logits
        logs = logits[:, :-1].log_softmax(-1)
        picked = logs.gather(-1, ids[:, first:, None]).squeeze(-1)
        return picked, logs, mask[:, first:]

    def loss(self, rows: list[int], term: str) -> Tensor:
        """Return the share of some rows in one term of the loss."""
        chosen = [self.episodes[row] for row in rows]
        logps, logs, mask = self.score(chosen)
        weight = torch.tensor([self.weight_N[row] for row in rows])[:, None] * mask
        if term == "task":
            ratio = torch.exp(logps - logps.detach())
            return -(ratio * weight * self.advantage_N[rows][:, None].float()).sum()
        if term == "entropy":
            return ((logs.exp() * logs).sum(-1) * mask).sum() * ENTROPY / self.tokens
        with self.model.disable_adapter(), torch.no_grad():
            before = self.score(chosen)[0]
        apart, ratio = before - logps, torch.exp(logps - logps.detach())
        return KL * ((torch.exp(apart) - apart - 1) * ratio * weight).sum()


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    """Return the processor seconds of a call and its result."""
    start = time.process_time()
    result = work()
    return time.process_time() - start, result


def main() -> None:
    """Measure both ways in turns, compare their norms, print the ratio."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--groups", type=int, default=24)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--json", action="store_true", help="print one JSON object instead")
    options = parser.parse_args()
    torch.set_num_threads(1)
    model, episodes, group_size = make(options.groups)
    obvious = Obvious(model, episodes, group_size)
    settings = ProbeSettings(entropy=ENTROPY, kl=KL, scales=("group",), tokens_per_forward=BUDGET)

    def ours() -> list[dict[str, float | None]]:
        report = probe(model, episodes, group_size, settings, reference=model.disable_adapter)
        return [vars(row.norms) for row in report.tables["group"]]

    seconds: dict[str, list[float]] = {"obvious": [], "ours": []}
    for _ in range(options.rounds):
        spent, expected = timed(obvious)
        seconds["obvious"].append(spent)
        spent, found = timed(ours)
        seconds["ours"].append(spent)
    largest = max(row[term] for row in expected for term in row)
    apart = max(
        abs(a[term] - b[term]) / max(a[term], 1e-6 * largest)
        for a, b in zip(expected, found, strict=True)
        for term in a
    )
    best = {name: min(values) for name, values in seconds.items()}
    ratio = best["obvious"] / best["ours"]
    if options.json:
        print(json.dumps({**best, "difference": apart, "ratio": ratio, "expected": 2.2}))
        return
    print(
        f"{options.groups} groups of {group_size}: obvious {best['obvious']:.2f} s, ours "
        f"{best['ours']:.2f} s; norms differ by at most {apart:.1e} of their size"
    )
    print(f"{ratio:.2f}")


if __name__ == "__main__":
    main()

"""Run by torchrun in a test: one training step with a group per process, weights saved by rank."""

import os
import sys
from pathlib import Path

import torch

from ragen2_cli import GroupFilter, SealLoss, SnrGRPOTrainer
from tiny_trl import Script, config, trainer


def main(rewards: list[list[float]], loss_type: str, folder: Path) -> None:
    """Train one step; with several processes each one plays its own group."""
    rank, processes = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    groups = [rank] if processes > 1 else [0, 1]
    args = config(
        folder,
        rows=8 // processes,
        parts=2,
        loss_type=loss_type,
        entropy_coef=0.05,
        learning_rate=1e-2,
        optim="sgd",
    )
    built = trainer(
        SnrGRPOTrainer,
        folder,
        Script(rewards, groups=groups),
        args=args,
        groups=2,
        group_filter=GroupFilter("top-p", 1.0),
        seal=SealLoss(0.5, dropout=0.0),
    )
    built.train()
    torch.save(
        {
            "weights": torch.cat(
                [weight.detach().flatten() for weight in built.model.parameters()]
            ),
            "head": torch.cat([weight.flatten() for weight in built.seal.head.parameters()]),
            "separation": built.state.log_history[0].get("separation/contrast"),
            "accuracy": built.state.log_history[0].get("seal/accuracy"),
            "kept": built.last_selection.kept.tolist(),
            "tokens": built.state.log_history[0]["kept_tokens_ratio"],
            "empty_steps": built.empty_steps,
        },
        folder / f"{processes}-{rank}.pt",
    )


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(
        [[float(x.replace("n", "nan")) for x in row] for row in sys.argv[1].split("/")],
        sys.argv[2],
        Path(sys.argv[3]),
    )

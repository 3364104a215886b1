"""Run by torchrun in a test: one step with credit per turn, a group per process, by PPO or not."""

import os
import sys
from pathlib import Path

import torch

from ragen2_cli import GroupFilter
from ragen2_cli.core.advantages import Discounts
from ragen2_cli.training.credit import CreditRules
from ragen2_cli.training.critic import build_critic
from ragen2_cli.training.critic_learner import CriticSettings
from test_credit import Scripted
from tiny_trl import Script, config, tiny_model, trainer


def main(rewards: list[list[float]], folder: Path, critic: bool) -> None:
    """Train one step and save all weights; with several processes each plays its own group."""
    rank, processes = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    args = config(
        folder, rows=8 // processes, parts=2, loss_type="dapo", learning_rate=1e-2, optim="sgd",
        scale_rewards="batch",
    )  # fmt: skip
    model = tiny_model()
    built = trainer(
        Scripted,
        folder,
        Script(rewards, masks=True, groups=[rank] if processes > 1 else [0, 1]),
        model=model,
        args=args,
        groups=2,
        group_filter=GroupFilter("top-p", 1.0),
        credit=CreditRules(
            "turn", Discounts(0.9, 0.9), CriticSettings(lr=1e-2, epochs=2) if critic else None
        ),
        critic=build_critic(model, rank=2) if critic else None,
    )
    built.train()
    judge = built.learner.critic.trained() if critic else {"none": torch.zeros(1)}
    logged = built.state.log_history[0]
    torch.save(
        {
            "policy": torch.cat([one.detach().flatten() for one in built.model.parameters()]),
            "critic": torch.cat([one.detach().flatten() for one in judge.values()]),
            "logged": {name: logged[name] for name in ("value_loss", "value_mean") if critic},
        },
        folder / f"{processes}-{rank}.pt",
    )


if __name__ == "__main__":
    torch.set_num_threads(1)
    table = [[float(x) for x in row] for row in sys.argv[1].split("/")]
    main(table, Path(sys.argv[2]), sys.argv[3] == "critic")

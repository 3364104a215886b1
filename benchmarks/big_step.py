"""One whole training step of 512 prompts x 16 scripted episodes: seconds and peak memory.

The episodes are played in the frozen lake by a script instead of a policy; filter, update of the
embedded policy's adapter and records are those of any run. Prints the peak in MB last; at most
4096 is expected.

    python benchmarks/big_step.py --json
"""

import argparse
import json
import resource
import tempfile
from pathlib import Path
from typing import Any

from ragen2_cli.config import load_config

MOVES = ("Up", "Down", "Left", "Right")


def write(episode: int, turn: int, shown: str) -> str:
    """Return one turn: a few words and a move that differs between the rollouts of a board."""
    move = MOVES[(episode * 7 + turn * 3 + episode // 16) % 4]
    return f"the goal is far, so I go {move.lower()}.</think><answer>{move}</answer>"


def step(prompts: int, group_size: int, folder: Path) -> dict[str, float]:
    """Train one step and read what it recorded."""
    from ragen2_cli.rollout.policies import ScriptedPolicy
    from ragen2_cli.runs import RunDirectory
    from ragen2_cli.training import run as training
    from ragen2_cli.training.player import Player, build_player

    def scripted(*arguments: Any, **keywords: Any) -> Player:
        player = build_player(*arguments, **keywords)
        player.policy = ScriptedPolicy(player.template, write)
        return player

    training.build_player = scripted
    config = load_config(
        flags={
            "steps": 1,
            "rollout.prompts": prompts,
            "rollout.group_size": group_size,
            "optimizer.micro_batches": prompts * group_size // 128,
            "evaluation.episodes": 0,
            "diagnostics.every": 0,
        }
    )
    training.start(config, folder / "run", quiet=True)
    (row,) = RunDirectory.open(folder / "run").read_steps()
    return {
        "episodes": prompts * group_size,
        "kept_groups": row.kept_groups,
        "tokens": row.tokens,
        "rollout_seconds": row.rollout_seconds,
        "update_seconds": row.update_seconds,
    }


def main() -> None:
    """Run the step, print a line and the peak."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--prompts", type=int, default=512)
    parser.add_argument("--group-size", type=int, default=16)
    parser.add_argument("--json", action="store_true", help="print one JSON object instead")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        row = step(options.prompts, options.group_size, Path(folder))
    row["peak_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    if options.json:
        print(json.dumps(row | {"expected": 4096}))
        return
    print(
        "{episodes:,} episodes, {kept_groups} groups kept, {tokens:,} sampled tokens: rollout"
        " {rollout_seconds:.0f} s, update {update_seconds:.0f} s".format(**row)
    )
    print(f"{row['peak_mb']:.0f}")


if __name__ == "__main__":
    main()

"""The same held-out prompts, played by several checkpoints of a run."""

from collections.abc import Callable, Sequence
from typing import Any

from ragen2_cli.errors import UserError, counted
from ragen2_cli.runs import RunDirectory, step_name
from ragen2_cli.training import checkpoints
from ragen2_cli.training.evaluate_target import load_run_policy
from ragen2_cli.training.player import build_player
from ragen2_cli.training.setup import prepare


def probe_run(
    run: RunDirectory,
    *,
    steps: Sequence[int] = (),
    prompts: int = 32,
    rollouts: int = 8,
    say: Callable[[str], None] = lambda text: None,
) -> list[dict[str, Any]]:
    """Play fixed prompts with checkpoints and write ``probes/step-000050.json`` for each.

    Every checkpoint meets the same boards, noise and sampling numbers, and no prompt is silent.

    Args:
        run: The run.
        steps: Which checkpoints; none for the first, the middle and the last complete one.
        prompts: Held-out prompts.
        rollouts: Rollouts of each.
        say: Called with a line per checkpoint.

    Returns:
        The contents of the files: ``step``, ``seeds`` and ``returns``, a list per prompt with None
        for a rollout without a score.

    Raises:
        UserError: No such checkpoint or none at all.
    """
    there = sorted(map(checkpoints.step_of, checkpoints.list_complete(run.checkpoints).complete))
    if not there:
        raise UserError(f"{run.path} has no complete checkpoint to play; see checkpoints.keep")
    chosen = list(steps) or sorted({there[0], there[len(there) // 2], there[-1]})
    config = run.resolved_config()
    config = config.model_copy(
        update={
            "rollout": config.rollout.model_copy(update={"group_size": rollouts}),
            "env": config.env.model_copy(update={"dead_share": 0.0}),
        }
    )
    contents = []
    for step in chosen:
        prepare(config)
        loaded = load_run_policy(config, run, step)
        player = build_player(config, loaded.model, loaded)
        boards = player.heldout_boards(prompts)
        played = [one.episode.episode_return for one in player.play_groups(boards, step=step)]
        content = {
            "step": step,
            "seeds": boards,
            "returns": [played[k : k + rollouts] for k in range(0, len(played), rollouts)],
        }
        run.write_json(f"probes/{step_name(step)}.json", content)
        contents.append(content)
        say(f"played {counted(prompts, 'prompt')} with the checkpoint of step {step}")
    return contents

"""Which episodes of a step a person asked for, read as a stream."""

from collections.abc import Callable
from dataclasses import dataclass, field

from ragen2_cli.errors import UserError, counted, did_you_mean
from ragen2_cli.records import STATUSES, Episode
from ragen2_cli.runs.directory import RunDirectory

WORDS = (*STATUSES, "kept", "dropped", "invalid")


@dataclass
class Group:
    """What all episodes of a prompt group returned, in file order."""

    returns: list[float | None] = field(default_factory=list)
    successes: int = 0


@dataclass
class Selected:
    """The episodes to show, how many matched, and the groups of the whole step."""

    step: int
    episodes: list[Episode] = field(default_factory=list)
    matched: int = 0
    groups: dict[int, Group] = field(default_factory=dict)


def matches(episode: Episode, outcome: str) -> bool:
    """Whether an episode has an outcome; ``failure`` is any scored end short of the goal."""
    if outcome in ("success", "failure"):
        scored = episode.status != "grader_error"
        return scored and episode.success == (outcome == "success")
    if outcome in ("kept", "dropped"):
        return episode.kept is (outcome == "kept")
    if outcome == "invalid":
        return episode.invalid_turns > 0
    return episode.status == outcome


def select(
    run: RunDirectory,
    say: Callable[[str], None],
    *,
    step: int | None = None,
    group: int | None = None,
    rollout: int | None = None,
    outcome: str | None = None,
    limit: int = 0,
) -> Selected:
    """Read one step's episodes once and keep at most ``limit`` (0: all) that match.

    Args:
        run: The run.
        say: Called with one line when the newest step was taken, or nothing matches.
        step: The step; None for the newest.
        group: Only this group.
        rollout: Only this rollout index.
        outcome: Only episodes with this outcome, one of ``WORDS``.
        limit: How many episodes to keep.

    Raises:
        UserError: No such step, group, rollout or outcome, or no rollouts at all.
    """
    if outcome is not None and outcome not in WORDS:
        raise UserError(
            f"no outcome '{outcome}'{did_you_mean(outcome, WORDS)}; known: {', '.join(WORDS)}"
        )
    newest = ""
    if step is None:
        steps = run.rollout_steps()
        if not steps:
            raise UserError(f"{run.path}: no rollouts yet")
        step = steps[-1]
        newest = f"showing step {step} (the newest of {counted(len(steps), 'step')})"
    selected = Selected(step)
    rollouts = -1
    for episode in run.iter_rollouts(step):
        seen = selected.groups.setdefault(episode.group, Group())
        seen.returns.append(episode.episode_return)
        seen.successes += episode.success
        rollouts = max(rollouts, episode.rollout)
        if group is not None and episode.group != group:
            continue
        if rollout is not None and episode.rollout != rollout:
            continue
        if outcome is not None and not matches(episode, outcome):
            continue
        selected.matched += 1
        if not limit or len(selected.episodes) < limit:
            selected.episodes.append(episode)
    last = max(selected.groups, default=None)
    if group is not None and group not in selected.groups:
        raise UserError(f"step {step} has no group {group}; its last is {last}")
    if rollout is not None and rollout > rollouts:
        raise UserError(f"step {step} has no rollout {rollout}; its last is {rollouts}")
    if newest:
        say(newest)
    if not selected.matched:
        say("no episode matches")
    return selected

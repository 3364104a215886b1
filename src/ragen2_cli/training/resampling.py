"""Dynamic sampling (DAPO): fresh prompts are rolled out until a batch of live groups is there."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

from ragen2_cli.core.groups import group_stats
from ragen2_cli.records import Episode
from ragen2_cli.rollout.engine import Trajectory

Group = Sequence[Trajectory]


class Dealt(NamedTuple):
    """A batch that was filled up with live groups.

    Attributes:
        batch: Exactly the wanted groups, live ones first in the order they were drawn; dead ones
            fill the end where the rounds were not enough.
        discarded: Groups that were rolled out for nothing, all dead.
        rounds: Rounds of rollouts that it took.
    """

    batch: list[Trajectory]
    discarded: list[Trajectory]
    rounds: int


def fill_with_live_groups(
    play: Callable[[int], Sequence[Group]], groups: int, *, rounds: int, outcome: bool = False
) -> Dealt:
    """Roll out fresh prompts until ``groups`` live groups are there, or ``rounds`` rounds are over.

    Every round draws as many prompts as are still missing, so that no live group is wasted.
    Groups are numbered anew: those of the batch from 0, the discarded ones after them.

    Args:
        play: Rolls out the next prompts, as many as it is asked for, and returns their groups.
        groups: Groups of the batch, P.
        rounds: Most rounds, R, at least 1.
        outcome: Judge a group by its outcomes, without the format penalty.

    Source: DAPO (arXiv 2503.14476), dynamic sampling; the reference draws whole batches instead.
    """
    live: list[Group] = []
    dead: list[Group] = []
    done = 0
    while len(live) < groups and done < rounds:
        done += 1
        for group in play(groups - len(live)):
            (dead if _is_dead(group, outcome=outcome) else live).append(group)
    missing = groups - len(live)
    ordered = [*live, *dead[:missing], *dead[missing:]]
    numbered = [
        replace(trajectory, episode=replace(trajectory.episode, group=number))
        for number, group in enumerate(ordered)
        for trajectory in group
    ]
    size = sum(len(group) for group in ordered[:groups])
    return Dealt(numbered[:size], numbered[size:], done)


def _is_dead(group: Group, *, outcome: bool) -> bool:
    def value(episode: Episode) -> float:
        found = episode.outcome if outcome else episode.episode_return
        return math.nan if found is None else found

    return bool(group_stats([[value(one.episode) for one in group]]).dead_P[0])

"""Dynamic sampling: fresh prompts until the batch is live, exact and paid for."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ragen2_cli.config import load_config
from ragen2_cli.records import Episode
from ragen2_cli.rollout.engine import Trajectory
from ragen2_cli.runs import RunDirectory
from ragen2_cli.training.resampling import fill_with_live_groups
from ragen2_cli.training.run import resume, start
from ragen2_cli.training.run_trainer import unrounded


def group(board: int, returns: list[float | None], outcomes: list[float] | None = None):
    return [
        Trajectory(
            Episode(
                step=1,
                group=99,
                rollout=number,
                seed=board,
                prompt="",
                turns=(),
                episode_return=value,
                outcome=value if outcomes is None else outcomes[number],
                success=False,
                status="failure",
                loss_mask=(1,),
            ),
            (0.0,),
            (0.0,),
            (0.0,),
            0,
        )
        for number, value in enumerate(returns)
    ]


class Stream:
    """Groups in a fixed order; remembers how many each round asked for."""

    def __init__(self, returns):
        self.groups = [group(board, values) for board, values in enumerate(returns)]
        self.asked = []

    def __call__(self, count):
        self.asked.append(count)
        taken, self.groups = self.groups[:count], self.groups[count:]
        return taken


def test_a_run_judges_what_was_earned_before_trl_rounds_it() -> None:
    rows = [{"outcome": 1 / 3, "episode_return": 1 / 3 - 0.1}, {"outcome": None}]
    assert unrounded(rows[:1], np.zeros(1), of="episode_return") == [1 / 3 - 0.1]
    found = unrounded(rows, np.zeros(2), of="outcome")
    assert found[0] == 1 / 3
    assert math.isnan(found[1])


def boards(trajectories):
    return [trajectory.episode.seed for trajectory in trajectories[::2]]


def test_dead_groups_are_replaced_by_the_next_live_ones() -> None:
    # Round 1 asks for 3: boards 0, 1, 2, of which 1 is live. Round 2 asks for 2: 3 (dead), 4
    # (live). Round 3 asks for 1: 5 (live). Batch 1, 4, 5; discarded 0, 2, 3.
    stream = Stream([[0, 0], [0, 1], [1, 1], [0, 0], [1, 0], [0, 1], [0, 1]])
    dealt = fill_with_live_groups(stream, 3, rounds=10)
    assert stream.asked == [3, 2, 1]
    assert boards(dealt.batch) == [1, 4, 5]
    assert boards(dealt.discarded) == [0, 2, 3]
    assert dealt.rounds == 3
    assert [t.episode.group for t in dealt.batch] == [0, 0, 1, 1, 2, 2]
    assert [t.episode.group for t in dealt.discarded] == [3, 3, 4, 4, 5, 5]


def test_after_the_last_round_dead_groups_fill_the_batch() -> None:
    stream = Stream([[0, 0], [0, 1], [1, 1], [0, 0], [0, 0]])
    dealt = fill_with_live_groups(stream, 3, rounds=2)
    assert boards(dealt.batch) == [1, 0, 2]
    assert boards(dealt.discarded) == [3, 4]


def test_a_live_batch_needs_one_round() -> None:
    dealt = fill_with_live_groups(Stream([[0, 1], [1, 0]]), 2, rounds=10)
    assert (boards(dealt.batch), dealt.discarded, dealt.rounds) == ([0, 1], [], 1)


def test_unscored_rows_do_not_make_a_group_live() -> None:
    # A row without a score is no zero: [1, None] has one scored row, so no spread.
    dealt = fill_with_live_groups(Stream([[1, None], [0, 1]]), 1, rounds=2)
    assert boards(dealt.batch) == [1]


def test_the_outcome_can_be_what_is_judged() -> None:
    only_format = group(0, [0.0, -0.1], outcomes=[0.0, 0.0])
    by_return = fill_with_live_groups(lambda _: [only_format], 1, rounds=1)
    assert boards(by_return.batch) == [0]
    plays = iter([[only_format], [group(1, [0.0, 1.0])]])
    dealt = fill_with_live_groups(lambda _: next(plays), 1, rounds=2, outcome=True)
    assert boards(dealt.batch) == [1]


def small(**flags):
    return load_config(
        flags={
            "rollout.prompts": 3,
            "rollout.group_size": 4,
            "optimizer.micro_batches": 2,
            "evaluation.episodes": 0,
            "diagnostics.every": 0,
            "checkpoints.every": 1,
            "env.dead_share": 0.5,
            "filter.strategy": "resample",
            "steps": 2,
            "optimizer.schedule": "constant",  # a linear one depends on the number of steps
            **flags,
        }
    )


@pytest.mark.slow
def test_a_run_pays_for_its_extra_rollouts_and_resumes_exactly(tmp_path: Path) -> None:
    start(small(), tmp_path / "whole", quiet=True)
    whole = RunDirectory.open(tmp_path / "whole")
    steps = whole.read_steps()
    for step in steps:
        episodes = whole.read_rollouts(step.step)
        assert len(episodes) == 12 + step.extra["extra_rollouts"]
        assert step.groups == len({episode.group for episode in episodes})
        assert step.tokens == sum(sum(episode.loss_mask) for episode in episodes)
        assert all(e.advantage == 0.0 and not e.kept for e in episodes if e.group >= 3)
        assert step.kept_groups == len({e.group for e in episodes if e.kept})
    assert sum(step.extra["extra_rollouts"] for step in steps) > 0
    # Some silent prompts are sure to be drawn; none of them is trained on.
    assert not any(e.kept for n in (1, 2) for e in whole.read_rollouts(n) if e.silent)
    start(small(steps=1), tmp_path / "halves", quiet=True)
    resume(tmp_path / "halves", steps=2, quiet=True)
    halves = RunDirectory.open(tmp_path / "halves")
    assert halves.read_rollouts(2) == whole.read_rollouts(2)
    no_time = {"rollout_seconds": 0.0, "update_seconds": 0.0, "step_seconds": 0.0}
    assert [replace(s, **no_time) for s in halves.read_steps()] == [
        replace(s, **no_time) for s in steps
    ]


@pytest.mark.slow
def test_the_first_draw_is_the_batch_of_other_filters(tmp_path: Path) -> None:
    start(small(steps=1), tmp_path / "a", quiet=True)
    start(small(steps=1, **{"filter.strategy": "none"}), tmp_path / "b", quiet=True)
    plain = {e.seed for e in RunDirectory.open(tmp_path / "b").read_rollouts(1)}
    drawn = {e.seed for e in RunDirectory.open(tmp_path / "a").read_rollouts(1)}
    assert plain <= drawn

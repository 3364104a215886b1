"""Stopping rules: off unless chosen, by hand-made histories, equal after a resume."""

from dataclasses import replace

from ragen2_cli.config.schema import StopConfig
from ragen2_cli.training.stopping import StopRules
from test_progress import EVALUATION, STEP

ON = StopConfig(on_collapse=True)


def spreads(rules: StopRules, values: list[float | None]) -> list[str | None]:
    return [rules.after_step(replace(STEP, reward_std=value)) for value in values]


def test_off_unless_chosen() -> None:
    rules = StopRules(StopConfig())
    assert spreads(rules, [1.0] * 10 + [0.0] * 50) == [None] * 60
    sampled = replace(EVALUATION, decoding="sampled", success=0.0)
    assert [rules.after_evaluation(sampled) for _ in range(9)] == [None] * 9


def test_low_spread_for_five_steps() -> None:
    # Mean of the first ten is 1.0; 10 % of it is 0.1; the fifth step below it stops.
    said = spreads(StopRules(ON), [1.0] * 10 + [0.05] * 5)
    assert said[:14] == [None] * 14
    assert said[14] is not None
    assert "below 0.1" in said[14]


def test_a_step_above_the_limit_starts_over_and_no_batch_changes_nothing() -> None:
    said = spreads(StopRules(ON), [1.0] * 10 + [0.05] * 4 + [0.2] + [0.05, None, 0.05] * 2)
    assert said == [None] * 21
    assert spreads(StopRules(ON), [1.0] * 10 + [0.05, None] * 4 + [0.05])[-1] is not None


def test_lost_success_counts_sampled_evaluations_only() -> None:
    rules = StopRules(ON)
    lost = replace(EVALUATION, decoding="sampled", success=0.005)
    greedy = replace(EVALUATION, success=0.0)
    assert [rules.after_evaluation(row) for row in [lost, greedy] * 4] == [None] * 8
    said = rules.after_evaluation(lost)
    assert said is not None
    assert "5 evaluations" in said


def test_history_survives_a_resume() -> None:
    whole, first = StopRules(ON), StopRules(ON)
    spreads(whole, [1.0] * 10 + [0.05] * 2)
    spreads(first, [1.0] * 10 + [0.05] * 2)
    second = StopRules(ON)
    second.load(first.state())
    assert spreads(second, [0.05] * 3) == spreads(whole, [0.05] * 3)

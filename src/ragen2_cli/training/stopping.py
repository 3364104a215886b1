"""Every rule that ends a run early, in one place.

=====================  ==========================================================  =============
rule                   when                                                        on
=====================  ==========================================================  =============
empty steps            ``stop.empty_steps`` steps in a row kept no group           always
low spread             mean spread below ``spread_share`` of the mean of the       on_collapse
                       first 10 steps for ``spread_patience`` steps in a row
lost success           sampled held-out success below ``success_floor`` for        on_collapse
                       ``success_patience`` evaluations in a row
collapse verdict       the monitor's verdict on the reasoning diagnostics          on_collapse
=====================  ==========================================================  =============

The empty-step rule lives in the trainer, which alone knows when a step was skipped.
"""

from typing import Any

from ragen2_cli.config.schema import StopConfig
from ragen2_cli.errors import counted
from ragen2_cli.records import Evaluation, Step

_BASELINE_STEPS = 10


class StopRules:
    """A fold over steps and evaluations; serializable, so that a resumed run stops alike."""

    def __init__(self, config: StopConfig) -> None:
        """Start with an empty history."""
        self._config = config
        self._baseline: list[float] = []
        self._low_spread = 0
        self._lost = 0

    def after_step(self, row: Step) -> str | None:
        """Return why the run should stop after this step, or None.

        The spread is the mean of the groups' ``reward_std`` before the filter; a step without one
        (no new rollouts) changes nothing.
        """
        if not self._config.on_collapse or row.reward_std is None:
            return None
        if len(self._baseline) < _BASELINE_STEPS:
            self._baseline.append(row.reward_std)
            return None
        limit = self._config.spread_share * sum(self._baseline) / len(self._baseline)
        self._low_spread = self._low_spread + 1 if row.reward_std < limit else 0
        if self._low_spread < self._config.spread_patience:
            return None
        return (
            f"reward spread {row.reward_std:.3g} stayed below {limit:.3g} "
            f"({self._config.spread_share:.0%} of the first {_BASELINE_STEPS} steps) "
            f"for {counted(self._low_spread, 'step')}"
        )

    def after_evaluation(self, row: Evaluation) -> str | None:
        """Return why to stop after this evaluation, or None; greedy ones are ignored."""
        if not self._config.on_collapse or row.decoding != "sampled":
            return None
        self._lost = self._lost + 1 if row.success < self._config.success_floor else 0
        if self._lost < self._config.success_patience:
            return None
        return (
            f"held-out success stayed below {self._config.success_floor:.0%} "
            f"for {counted(self._lost, 'evaluation')}"
        )

    def state(self) -> dict[str, Any]:
        """Return the history as JSON-able values."""
        return {"baseline": self._baseline, "low_spread": self._low_spread, "lost": self._lost}

    def load(self, state: dict[str, Any]) -> None:
        """Continue from ``state()`` of an earlier run."""
        self._baseline = [float(value) for value in state["baseline"]]
        self._low_spread = int(state["low_spread"])
        self._lost = int(state["lost"])

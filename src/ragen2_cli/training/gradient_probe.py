"""Where the gradient comes from: one backward pass per loss term and bucket, no optimizer step.

Groups are sorted by reward spread into buckets. Every micro-batch goes through the model once; its
graph then gives the gradient of the policy loss (under each way of scaling rewards), of the
entropy term and of the KL term. All are sums over rows with weights that belong to the whole
analyzed batch, so buckets add up to the batch, and what a filter keeps is a sum of parts too. Kept
are norms, and for each term three sums as large as the trainable weights: of the bucket under way,
of the batch and of what the filter keeps.

At the policy that sampled the batch every probability ratio is 1, so clipping changes nothing.
Only trainable parameters are differentiated. Nothing is written into ``.grad``, no generator is
drawn from (dropout is off), and the policy's weights are not touched.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ragen2_cli.core.filters import GroupFilter
from ragen2_cli.core.gradients import (
    DENOMINATORS,
    PERS,
    BucketRow,
    TermNorms,
    gradient_table,
    quantile_buckets,
)
from ragen2_cli.core.groups import loss_scaling_factor
from ragen2_cli.errors import UserError
from ragen2_cli.records import Episode
from ragen2_cli.training.gradient_batch import ProbeBatch, ProbeSettings
from ragen2_cli.training.gradient_critic import CriticProbe
from ragen2_cli.training.gradient_sums import GradientSums

if TYPE_CHECKING:
    from collections.abc import Iterator

REGULARIZERS = ("entropy", "kl")
MOST_SCORES = 2**28
"""Bound on padded tokens times vocabulary in one forward pass: 1 GiB for each tensor of scores."""
Tables = dict[str, list[BucketRow]]


@dataclass(frozen=True)
class GradientReport:
    """The tables of one analysis.

    Attributes:
        tables: By scale of rewards: one row per bucket and ``all``, over the whole batch.
        filtered: The same over the groups that the filter kept, normalized by what was kept, with
            the factor of the loss scaling on the task gradient;
            buckets without a kept group are missing. Empty when nothing was kept.
        kept: Number of groups kept.
        seconds: How long the measurement took, rollouts not included.
    """

    tables: Tables
    filtered: Tables
    kept: int
    seconds: float


def probe(
    model: nn.Module,
    episodes: Sequence[Episode],
    group_size: int,
    settings: ProbeSettings,
    *,
    group_filter: GroupFilter | None = None,
    reference: Callable[[], Any] | None = None,
    spread_of_outcome: bool = False,
    critic: CriticProbe | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> GradientReport:
    """Measure the gradient norms of a batch of episodes under the policy that sampled it.

    Args:
        model: The policy; called with ``input_ids``, ``attention_mask`` and ``logits_to_keep``.
        episodes: P groups of ``group_size`` consecutive episodes with their token ids.
        group_size: Rollouts per group, G.
        settings: What to measure.
        group_filter: For the tables after the filter; None leaves every group in.
        reference: Returns a context in which ``model`` is the reference policy; needed for KL.
        spread_of_outcome: Judge the spread without the format penalty.
        critic: Adds the task gradient under its advantages (``gae``) and its own gradient.
        progress: Called with (buckets measured, buckets in all).

    Raises:
        UserError: No episodes, rows that do not fill groups, nothing trainable, an unknown loss
            type, or a KL coefficient without a reference.
    """
    start = time.perf_counter()
    if not episodes or len(episodes) % group_size:
        raise UserError(
            f"gradients: cannot cut {len(episodes)} episodes into groups of {group_size}"
        )
    if settings.kl and reference is None:
        raise UserError("gradients: the KL term needs a reference policy")
    parameters = [one for one in model.parameters() if one.requires_grad]
    if not parameters:
        raise UserError("gradients: the policy has no trainable parameter")
    batch = ProbeBatch.of(episodes, group_size, settings, spread_of_outcome=spread_of_outcome)
    scales: tuple[str, ...] = settings.scales
    chosen = (group_filter or GroupFilter(strategy="none")).select(batch.spread_P_G)
    if critic is not None:
        advantages = critic.advantages(batch.rows_of(chosen.kept))
        batch.advantage_N["gae"], scales = advantages, ("gae", *settings.scales)
    if settings.soft:
        batch.weigh(chosen.weight_P)
    kept_P = np.isin(np.arange(len(batch.dead_P)), chosen.kept)
    buckets = quantile_buckets(batch.score_P, settings.buckets, settings.remainder)
    alive = [k for k, bucket in enumerate(buckets) if kept_P[bucket].any()]
    members = [buckets[k][kept_P[buckets[k]]] for k in alive]
    kept_groups = np.flatnonzero(kept_P)
    shares = batch.inverse_shares(kept_groups, settings.loss_type) if alive else (1.0, 1.0)
    scaling = loss_scaling_factor(len(kept_groups), len(kept_P), settings.loss_scaling)
    whole_norms: dict[str, list[TermNorms]] = {scale: [] for scale in scales}
    kept_norms: dict[str, list[TermNorms]] = {scale: [] for scale in scales}

    def note(norms: dict[str, list[TermNorms]], sums: GradientSums, *factors: float) -> None:
        for scale in scales:
            norms[scale].append(sums.norms(scale, *factors))

    with _evaluating(model):
        measure = _Measure(model, parameters, batch, settings, reference, scales, critic)
        whole = GradientSums(measure.terms)
        kept = whole if kept_P.all() else GradientSums(measure.terms)
        for done, bucket in enumerate(buckets):
            progress(done, len(buckets))
            part = GradientSums(measure.terms)
            measure(batch.rows_of(bucket[kept_P[bucket]]), part)
            if kept_P[bucket].any():
                note(kept_norms, part, *shares, scaling)
            if kept is not whole:
                kept.absorb(part)
            measure(batch.rows_of(bucket[~kept_P[bucket]]), part)
            note(whole_norms, part)
            whole.absorb(part)
        note(whole_norms, whole)
        note(kept_norms, kept, *shares, scaling)
    loss = settings.loss_type
    tables: Tables = {scale: _table(batch, buckets, whole_norms[scale], loss) for scale in scales}
    filtered: Tables = {}
    for scale in scales if alive else ():
        rows = _table(batch, members, kept_norms[scale], loss)
        names = [f"Q{k + 1}" for k in alive] + ["all"]
        filtered[scale] = [replace(row, bucket=name) for row, name in zip(rows, names, strict=True)]
    return GradientReport(tables, filtered, int(kept_P.sum()), time.perf_counter() - start)


class _Measure:
    """Adds up the gradients of every term over some rows.

    Attributes:
        terms: The task gradient by scale of rewards, the regularizers that are on, the critic.
    """

    def __init__(
        self,
        model: nn.Module,
        parameters: list[nn.Parameter],
        batch: ProbeBatch,
        settings: ProbeSettings,
        reference: Callable[[], Any] | None,
        scales: Sequence[str],
        critic: CriticProbe | None,
    ) -> None:
        self._scales, self._critic = scales, critic
        self._model, self._parameters = model, parameters
        self._batch, self._settings, self._reference = batch, settings, reference
        self._device = parameters[0].device
        config = getattr(model, "config", None)
        vocabulary = config.get_text_config().vocab_size if config is not None else 1
        self._tokens = min(settings.tokens_per_forward, MOST_SCORES // vocabulary)
        self.terms = [
            *scales,
            *(name for name in REGULARIZERS if asdict(settings)[name]),
            *(["critic"] if critic is not None else []),
        ]

    def __call__(self, rows: NDArray[np.int64], sums: GradientSums) -> None:
        for chunk in self._chunks(rows):
            losses = {term: loss for term, loss in self._losses(chunk).items() if loss is not None}
            for number, (term, loss) in enumerate(losses.items(), start=1):
                gradients = torch.autograd.grad(
                    loss, self._parameters, retain_graph=number < len(losses), allow_unused=True
                )
                sums.add(term, gradients)
        if self._critic is not None:
            for gradients in self._critic(rows):
                sums.add("critic", gradients)

    def _chunks(self, rows: NDArray[np.int64]) -> "Iterator[list[int]]":
        """Rows of similar length, at most ``self._tokens`` padded tokens at a time."""
        batch = self._batch
        chunk: list[int] = []
        for row in sorted(rows.tolist(), key=lambda row: len(batch.ids_N[row])):
            padded = (len(chunk) + 1) * len(batch.ids_N[row])
            if chunk and padded > self._tokens:
                yield chunk
                chunk = []
            chunk.append(row)
        if chunk:
            yield chunk

    def _losses(self, rows: list[int]) -> dict[str, Tensor | None]:
        """The chunk's share of every term's loss; None for one whose gradient is exactly 0."""
        settings, batch = self._settings, self._batch
        inputs, targets, mask = self._padded(rows)
        before = None
        if self._reference is not None and settings.kl:
            with self._reference(), torch.no_grad():
                before = self._score(inputs, targets)[0]
        logps, entropies = self._score(inputs, targets)
        weight = torch.as_tensor(batch.weight_N[rows]).to(logps)[:, None] * mask
        losses: dict[str, Tensor | None] = {}
        for scale in self._scales:
            advantage = self._advantages(scale, rows, targets.shape[1])
            if not advantage.any():
                losses[scale] = None
                continue
            ratio = torch.exp(logps - logps.detach())
            factor = torch.as_tensor(advantage).to(logps) * weight
            losses[scale] = -(ratio * factor).sum()
        if settings.entropy:
            total = settings.entropy / max(int(batch.tokens_N.sum()), 1)
            losses["entropy"] = -(entropies * mask).sum() * total
        if before is not None:
            # TRL multiplies k3 = exp(r - l) - (r - l) - 1 by the probability ratio, which is 1
            # here; so the gradient in l is (1 - exp(r - l)) + k3 = l - r.
            slope = logps.detach() - before
            losses["kl"] = (slope * logps * weight).sum() * settings.kl
        return losses

    def _advantages(self, scale: str, rows: list[int], width: int) -> NDArray[np.float64]:
        """Advantages in the columns of ``_padded``; one column where a row has only one."""
        given = self._batch.advantage_N[scale]
        if not isinstance(given, list):
            return given[rows, None]
        found = np.zeros((len(rows), width))
        first = min(self._batch.prompt_N[row] for row in rows)
        for index, row in enumerate(rows):
            start = self._batch.prompt_N[row] - first
            found[index, start : start + len(given[row])] = given[row]
        return found

    def _padded(self, rows: list[int]) -> tuple[dict[str, Any], Tensor, Tensor]:
        """Inputs padded on the right, and from the first completion token on: targets, mask."""
        batch = self._batch
        width = max(len(batch.ids_N[row]) for row in rows)
        first = min(batch.prompt_N[row] for row in rows)
        ids = torch.zeros(len(rows), width, dtype=torch.long)
        attention = torch.zeros(len(rows), width, dtype=torch.long)
        mask = torch.zeros(len(rows), width)
        for index, row in enumerate(rows):
            length, prompt = len(batch.ids_N[row]), batch.prompt_N[row]
            ids[index, :length] = torch.tensor(batch.ids_N[row])
            attention[index, :length] = 1
            mask[index, prompt:length] = torch.tensor(batch.mask_N[row], dtype=torch.float32)
        inputs = {
            "input_ids": ids.to(self._device),
            "attention_mask": attention.to(self._device),
            "logits_to_keep": width - first + 1,
        }
        return inputs, ids[:, first:].to(self._device), mask[:, first:].to(self._device)

    def _score(self, inputs: dict[str, Any], targets: Tensor) -> tuple[Tensor, Tensor]:
        """Log-probability of each target and entropy of what it was drawn from."""
        logits = self._model(**inputs).logits[:, -targets.shape[1] - 1 : -1]
        logs = torch.log_softmax(logits.float() / self._settings.temperature, dim=-1)
        entropies = -(logs.exp() * logs).sum(-1) if self._settings.entropy else logs.new_zeros(())
        return logs.gather(-1, targets[..., None]).squeeze(-1), entropies


def _table(
    batch: ProbeBatch,
    buckets: Sequence[NDArray[np.int64]],
    norms: Sequence[TermNorms],
    loss_type: str,
) -> list[BucketRow]:
    """One row per bucket and ``all``, whose norms come last."""
    return gradient_table(
        norms[:-1],
        norms[-1],
        buckets,
        score_P=batch.score_P,
        dead_P=batch.dead_P,
        rows_P=batch.scored_N.reshape(-1, batch.group_size).sum(axis=1),
        tokens_P=batch.tokens_N.reshape(-1, batch.group_size).sum(axis=1),
        denominator_of=DENOMINATORS[loss_type],
    )


@contextmanager
def _evaluating(model: nn.Module) -> "Iterator[None]":
    """Dropout off, and the mode put back afterwards."""
    was_training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(was_training)


def report_json(report: GradientReport, about: Mapping[str, Any]) -> dict[str, Any]:
    """Return a report as the content of ``gradients/step-000051.json``."""
    tables = [
        {"scale_rewards": scale, "filtered": filtered, "rows": [_row_json(row) for row in rows]}
        for filtered, found in ((False, report.tables), (True, report.filtered))
        for scale, rows in found.items()
    ]
    return {**about, "kept_groups": report.kept, "seconds": report.seconds, "tables": tables}


def _row_json(row: BucketRow) -> dict[str, Any]:
    plain = {key: value for key, value in asdict(row).items() if key != "norms"}
    return {**plain, "norms": {unit: _norms_json(row.per(unit)) for unit in PERS}}


def _norms_json(norms: TermNorms) -> dict[str, float | None]:
    return {
        **asdict(norms),
        "regularizer_sum": norms.regularizer_sum,
        "snr": norms.snr,
        "snr_sum": norms.snr_sum,
    }

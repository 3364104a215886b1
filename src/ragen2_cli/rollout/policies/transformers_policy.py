"""Sampling from a transformers model: many conversations, one cache, nothing encoded twice."""

from collections.abc import Sequence

import torch

from ragen2_cli.rollout.policies.batch import Batch
from ragen2_cli.rollout.policies.forward_runner import ForwardRunner
from ragen2_cli.rollout.policies.llama_runner import LlamaRunner, find_llama
from ragen2_cli.rollout.policies.runner import Chunk, Runner
from ragen2_cli.rollout.policy import Reply, StopRule


class TransformersPolicy:
    """A causal language model of transformers, adapters included.

    Args:
        model: The model; it is put in evaluation mode for a rollout and back afterwards.
        max_rows: Conversations in the batch at once; the next one starts when one ends. None is
            64 on a CPU, whose caches more would overflow, and 256 elsewhere.
        patience: Decoding steps of the whole batch that may be lost to rows that wait for their
            observation before those rows are encoded; infinite makes all take turns in step.
        fused: Use the operation-saving runner where it applies (small Llamas).
    """

    def __init__(
        self,
        model: torch.nn.Module,
        *,
        max_rows: int | None = None,
        patience: float = 0.3,
        fused: bool = True,
    ) -> None:
        self.model = model
        on_cpu = next(model.parameters()).device.type == "cpu"
        self._max_rows = max_rows or (64 if on_cpu else 256)
        self._patience = patience
        self._untried = fused
        self._llama: LlamaRunner | None = None

    def converse(
        self,
        prompts_N: Sequence[Sequence[int]],
        seeds_N: Sequence[int],
        reply: Reply,
        *,
        stop: StopRule,
        max_new_tokens: int,
        temperature: float,
    ) -> None:
        """Run every episode to its end; see :class:`ragen2_cli.rollout.policy.Policy`."""
        was_training = self.model.training
        self.model.eval()
        try:
            with torch.inference_mode():
                batch = Batch(
                    self._ready_runner(),
                    prompts_N,
                    seeds_N,
                    reply,
                    stop=stop,
                    max_new_tokens=max_new_tokens,
                    temperature=temperature,
                    max_rows=self._max_rows,
                    patience=self._patience,
                )
                batch.run()
        finally:
            self.model.train(was_training)

    def _ready_runner(self) -> Runner:
        """Return a runner that holds the model's present weights.

        The small one is kept from call to call with its buffers; a large model's cache is freed
        when the rollout ends, before the update needs the memory.
        """
        if self._llama is not None:
            self._llama.refresh()
            return self._llama
        if self._untried:
            self._untried = False
            self._llama = agreeing_llama(self.model)
        return ForwardRunner(self.model) if self._llama is None else self._llama


def agreeing_llama(model: torch.nn.Module) -> LlamaRunner | None:
    """Return the fused runner where it applies and gives the model's own logits on a probe."""
    base = find_llama(model)
    if base is None:
        return None
    quick = LlamaRunner(base)
    probe = [Chunk(0, 0, [(7 * i + 1) % quick.vocabulary for i in range(8)])]
    found, expected = _logits(quick, probe), _logits(ForwardRunner(model), probe)
    return quick if torch.allclose(found, expected, rtol=1e-3, atol=1e-3) else None


def _logits(runner: Runner, probe: list[Chunk]) -> torch.Tensor:
    runner.reserve(1, 8)
    return runner.encode(probe)

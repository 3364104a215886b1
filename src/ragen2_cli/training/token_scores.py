"""TRL's trainer with its token scores computed chunk by chunk, and their hidden states at hand."""

from typing import Any

import torch
from torch import Tensor, nn

from ragen2_cli.training.compaction import Batch
from ragen2_cli.training.logprobs import Scores, WantedScorer, is_contiguous, score_in_chunks
from ragen2_cli.training.states import TokenStates, backbone_of, last_hidden_states
from ragen2_cli.training.versions import require_supported_trl

require_supported_trl()

from trl import GRPOTrainer  # noqa: E402 - only after the version is accepted
from trl.models.utils import disable_gradient_checkpointing  # noqa: E402


class TokenScoresTrainer(GRPOTrainer):
    """``GRPOTrainer`` whose forward passes hold little padding.

    Attributes:
        tokens_per_forward: Padded tokens in one forward pass, within a micro-batch.
    """

    args: Any  # the parents set these without a type, or with a narrower one
    model: Any
    tokens_per_forward: int = 4096
    _entropy_weight: float = 1.0
    _states: TokenStates | None = None

    def _get_per_token_logps_and_entropies(
        self,
        model: nn.Module,
        input_ids: Tensor,
        attention_mask: Tensor,
        logits_to_keep: int,
        batch_size: int | None = None,
        compute_entropy: bool = False,
        compute_aux_loss: bool = False,
        **modal: Any,
    ) -> Scores:
        flags = {"compute_entropy": compute_entropy, "compute_aux_loss": compute_aux_loss}
        parent = super()._get_per_token_logps_and_entropies
        backbone = backbone_of(self.accelerator.unwrap_model(model))
        states = self._states
        if any(value is not None for value in modal.values()) or not is_contiguous(attention_mask):
            with last_hidden_states(backbone) as seen:
                scores: Scores = parent(
                    model, input_ids, attention_mask, logits_to_keep, batch_size, **flags, **modal
                )
            if states is not None:
                mask = attention_mask[:, -logits_to_keep:].bool()
                states.expect(torch.arange(len(mask), device=mask.device), mask)
                states.catch(torch.cat([part[:, -logits_to_keep:] for part in seen])[mask])
            return scores

        def score(ids: Tensor, mask: Tensor, wanted: Tensor) -> Scores:
            scorer = WantedScorer(model, backbone, wanted, states)
            scores: Scores = parent(scorer, ids, mask, wanted.shape[1], **flags)
            return scores

        whole = self._passes_together or compute_aux_loss  # the loss of a router is over all tokens
        budget = input_ids.numel() if whole else self.tokens_per_forward
        logps, entropies, aux_loss = score_in_chunks(
            score, input_ids, attention_mask, logits_to_keep, budget, states
        )
        if entropies is not None and entropies.requires_grad:
            weight = self._entropy_weight
            entropies.register_hook(lambda gradient: gradient * weight)
        return logps, entropies, aux_loss

    @property
    def _passes_together(self) -> bool:
        """Whether all processes must make the same number of forward passes now.

        Sharded weights are put together in each of them. Whole copies (DDP) only exchange
        gradients, after one forward pass; without a gradient every process goes its own way.
        """
        if self.accelerator.num_processes == 1:
            return False
        copies = self.accelerator.distributed_type.value.startswith("MULTI_")
        return not copies or torch.is_grad_enabled()

    def _score_tokens(self, model: Any, batch: Batch, compute_entropy: bool = False) -> Tensor:
        """Log-probabilities of the completions, or entropies, without a gradient."""
        checkpointing = self.args.gradient_checkpointing_kwargs
        with torch.no_grad(), disable_gradient_checkpointing(self.model, checkpointing):
            logps, entropies, _ = self._get_per_token_logps_and_entropies(
                model,
                torch.cat([batch["prompt_ids"], batch["completion_ids"]], 1),
                torch.cat([batch["prompt_mask"], batch["completion_mask"]], 1),
                batch["completion_ids"].shape[1],
                compute_entropy=compute_entropy,
            )
        return logps if entropies is None else entropies

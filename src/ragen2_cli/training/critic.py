"""The critic of PPO: what the policy's states are worth, on the policy's own frozen weights.

The critic is a second tree of modules over the same tensors (nothing is copied), with a LoRA
adapter on its upper layers and a linear value head of its own. It is no part of the policy: saved
adapters, clipped gradients and the policy's optimizer know nothing of it.
"""

import copy
import math
from typing import Any

import torch
from torch import Tensor, nn

from ragen2_cli.errors import UserError
from ragen2_cli.training.compaction import Batch
from ragen2_cli.training.logprobs import Scores, score_in_chunks


class Critic(nn.Module):
    """A causal backbone with a LoRA adapter and a value head; only those two are trained.

    The value of a token is read from the state before it, the one that the policy chose it in:
    what the reward of a token is compared with must not know the token.

    Attributes:
        backbone: The PEFT model of the trunk.
        head: Linear, without a hidden layer; starts at exactly 0, so that every value does.
    """

    def __init__(self, backbone: nn.Module, width: int) -> None:
        """Put a head that says 0 on a backbone whose states have ``width`` numbers."""
        super().__init__()
        self.backbone = backbone
        self.head = nn.Linear(width, 1)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, input_ids: Tensor) -> Tensor:
        """Return the value before each next token, (n, W - 1), for rows that start in column 0.

        Padding on the right needs no mask: causal attention does not look there.
        """
        states = self.backbone(input_ids=input_ids, use_cache=False).last_hidden_state
        values: Tensor = self.head(states[:, :-1].float()).squeeze(-1)
        return values

    def values(self, batch: Batch, max_tokens: int) -> Tensor:
        """Return the values (N, C) of a batch's completion tokens, 0 at padding.

        Args:
            batch: Prompts padded on the left, completions on the right.
            max_tokens: Padded tokens in one forward pass.
        """
        if not len(batch["completion_ids"]):
            return torch.zeros_like(batch["completion_ids"], dtype=torch.float32)

        def score(ids: Tensor, _mask: Tensor, _wanted: Tensor) -> Scores:
            return self(ids), None, None

        values, _, _ = score_in_chunks(
            score,
            torch.cat([batch["prompt_ids"], batch["completion_ids"]], 1),
            torch.cat([batch["prompt_mask"], batch["completion_mask"]], 1),
            batch["completion_ids"].shape[1],
            max_tokens,
        )
        return values

    def trained(self) -> dict[str, nn.Parameter]:
        """Parameters that are trained, by name: adapter and head."""
        return {name: one for name, one in self.named_parameters() if one.requires_grad}


def build_critic(
    model: nn.Module,
    *,
    rank: int = 16,
    alpha: int = 32,
    share: float = 0.5,
    seed: int = 0,
    checkpointing: bool = False,
) -> Critic:
    """Build a critic on a causal language model's weights, which it shares and never changes.

    No global generator is drawn from, so that a run with a critic starts from the same policy as
    one without.

    Args:
        model: The language model, or a PEFT model around it, whose adapter is left out.
        rank: LoRA r of the critic's adapter.
        alpha: LoRA alpha.
        share: Share of the layers, from the top, that the adapter is on, at least one layer. Below
            them nothing has to be differentiated, which is most of what a critic costs.
        seed: Decides the adapter's first weights.
        checkpointing: Recompute activations in the backward pass instead of keeping them.

    Raises:
        UserError: The model has no projection that an adapter fits on, or with ``share`` below 1
            no stack of layers.
    """
    from peft import LoraConfig, PeftModel, get_peft_model

    twin: Any = shared_copy(model)
    if isinstance(twin, PeftModel):
        twin = twin.unload()
    trunk = twin.base_model
    device = next(trunk.parameters()).device
    targets: Any = "all-linear" if share == 1 else upper_projections(trunk, share)
    config = LoraConfig(r=rank, lora_alpha=alpha, target_modules=targets, bias="none")
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices):
        torch.manual_seed(seed)
        try:
            backbone: Any = get_peft_model(trunk, config)
        except ValueError as error:
            raise UserError(f"critic: no adapter fits on this model: {error}") from None
        if checkpointing:
            trunk.gradient_checkpointing_enable({"use_reentrant": False})
        critic = Critic(backbone, trunk.config.get_text_config().hidden_size)
    critic.head.to(device)
    return critic.train()


def upper_projections(trunk: Any, share: float) -> list[str]:
    """Names of all linear projections in the upper ``share`` of a model's layers.

    Raises:
        UserError: The model has no list of its layers.
    """
    from transformers.pytorch_utils import Conv1D

    count = trunk.config.get_text_config().num_hidden_layers
    for name, stack in trunk.named_modules():
        if isinstance(stack, nn.ModuleList) and len(stack) == count:
            first = count - max(1, math.ceil(share * count))
            return [
                f"{name}.{index}.{inner}"
                for index in range(first, count)
                for inner, part in stack[index].named_modules()
                if isinstance(part, nn.Linear | Conv1D)
            ]
    raise UserError("critic: this model shows no list of its layers; set critic.lora_share to 1")


def shared_copy(model: nn.Module) -> nn.Module:
    """Copy a tree of modules, not its tensors: frozen parameters over the same memory."""
    memo: dict[int, Any] = {
        id(one): nn.Parameter(one.detach(), requires_grad=False) for one in model.parameters()
    }
    memo |= {id(one): one for one in model.buffers()}
    return copy.deepcopy(model, memo)


def value_loss(
    values: Tensor, old_values: Tensor, returns: Tensor, own: Tensor, clip: float = 0.0
) -> Tensor:
    """Sum over the policy's tokens of ``0.5 * max((v - R)^2, (clipped v - R)^2)``.

    Args:
        values: The critic's values, with a graph.
        old_values: What it said when the advantages were computed.
        returns: What it should have said, R.
        own: 1 at the policy's tokens.
        clip: The clipped value stays within this distance of the old one; 0 turns it off.
    """
    errors = (values - returns) ** 2
    if clip:
        near = old_values + (values - old_values).clamp(-clip, clip)
        errors = torch.maximum(errors, (near - returns) ** 2)
    return 0.5 * (errors * own).sum()


def load_weights(critic: Critic, weights: dict[str, Tensor]) -> None:
    """Take the adapter and head of another critic of the same shape.

    Raises:
        UserError: Names or shapes differ.
    """
    own = critic.trained()
    if {k: v.shape for k, v in own.items()} != {k: v.shape for k, v in weights.items()}:
        raise UserError("critic: the stored adapter and head do not fit this model")
    with torch.no_grad():
        for name, one in own.items():
            one.copy_(weights[name])

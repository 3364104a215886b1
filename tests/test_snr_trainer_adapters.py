"""PEFT adapters: what is trained, what is refused, and which policy KL is measured against."""

import hashlib

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model

from ragen2_cli import GroupFilter, SnrGRPOTrainer
from ragen2_cli.errors import UserError
from tiny_trl import Script, config, tiny_model, trainer

SCRIPT = [[1, 0, 0, 0], [0, 0, 0, 0]]
TOP_P = GroupFilter("top-p", 0.9)


def lora():
    return LoraConfig(r=2, lora_alpha=4, target_modules=["q_proj", "v_proj"])


@pytest.fixture(scope="module")
def adapter(tmp_path_factory):
    """Folder of a trained adapter, far enough from its base model to tell them apart."""
    folder = tmp_path_factory.mktemp("adapter")
    torch.manual_seed(5)
    model = get_peft_model(tiny_model(), lora())
    for name, weight in model.named_parameters():
        if "lora_" in name:
            weight.data = 0.5 * torch.randn_like(weight)
    model.save_pretrained(folder)
    return folder


def adapter_bytes(model):
    digest = hashlib.sha256()
    for name, weight in model.named_parameters():
        if "lora_" in name:
            digest.update(weight.detach().numpy().tobytes())
    return digest.hexdigest()


def test_a_frozen_adapter_is_refused_at_the_start(tmp_path, adapter):
    # Case 21.
    model = PeftModel.from_pretrained(tiny_model(), adapter)
    with pytest.raises(UserError, match=r"adapter is frozen.*is_trainable=True"):
        trainer(SnrGRPOTrainer, tmp_path, Script(SCRIPT), model=model, args=config(tmp_path, 8))


def test_a_frozen_adapter_is_refused_even_beside_trainable_weights(tmp_path, adapter):
    model = PeftModel.from_pretrained(tiny_model(), adapter)
    model.get_base_model().model.norm.weight.requires_grad_(True)
    with pytest.raises(UserError, match="adapter is frozen"):
        trainer(SnrGRPOTrainer, tmp_path, Script(SCRIPT), model=model, args=config(tmp_path, 8))


def test_one_live_step_changes_the_adapter_and_nothing_else(tmp_path):
    args = config(tmp_path, rows=8, parts=2, learning_rate=1e-2)
    built = trainer(
        SnrGRPOTrainer, tmp_path, Script(SCRIPT), args=args, group_filter=TOP_P, peft_config=lora()
    )
    base = {
        name: weight.clone()
        for name, weight in built.model.named_parameters()
        if "lora_" not in name
    }
    before = adapter_bytes(built.model)
    built.train()
    assert adapter_bytes(built.model) != before
    assert all(torch.equal(base[name], built.model.get_parameter(name)) for name in base)


def test_kl_of_a_trained_adapter_starts_at_zero(tmp_path, adapter):
    # Case 22: the reference is the starting adapter, not the base model; dropout is off.
    model = PeftModel.from_pretrained(tiny_model(), adapter, is_trainable=True)
    args = config(tmp_path, rows=8, parts=2, beta=0.1, learning_rate=1e-2, max_steps=2)
    built = trainer(
        SnrGRPOTrainer, tmp_path, Script(SCRIPT), model=model, args=args, group_filter=TOP_P
    )
    built.train()
    first, second = (row["kl"] for row in built.state.log_history[:2])
    assert abs(first) < 1e-4
    assert second > 1e-4


def test_kl_of_a_new_adapter_is_against_the_base_model(tmp_path):
    args = config(tmp_path, rows=8, parts=2, beta=0.1, learning_rate=1e-1, max_steps=2)
    built = trainer(
        SnrGRPOTrainer, tmp_path, Script(SCRIPT), args=args, group_filter=TOP_P, peft_config=lora()
    )
    built.train()
    first, second = (row["kl"] for row in built.state.log_history[:2])
    assert abs(first) < 1e-6
    assert second > 1e-4


def test_without_kl_there_is_no_kl_value(tmp_path):
    built = trainer(SnrGRPOTrainer, tmp_path, Script(SCRIPT), args=config(tmp_path, rows=8))
    built.train()
    assert "kl" not in built.state.log_history[0]

"""Loading policies: what is accepted, what is refused, and in which words."""

import json
import shutil
from pathlib import Path

import pytest
import torch

from ragen2_cli.errors import UserError
from ragen2_cli.training.devices import resolve_device, resolve_dtype
from ragen2_cli.training.embedded.tokenizer import build_tokenizer
from ragen2_cli.training.embedded.warm_start import WarmStart, make_model
from ragen2_cli.training.models import (
    attach_lora,
    load_adapter,
    load_policy,
    prepare_tokenizer,
    require_trainable,
)

TINY = WarmStart(width=16, layers=1, heads=2, mlp=32)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tiny")
    tokenizer = build_tokenizer(["P 1 2 G 3 0", "left ice down hole"])
    make_model(TINY, tokenizer).save_pretrained(path)
    tokenizer.save_pretrained(path, save_jinja_files=False)
    return path


def edited(folder: Path, to: Path, **changes: object) -> Path:
    """Copy a model folder with other entries in tokenizer_config.json; None removes one."""
    shutil.copytree(folder, to)
    file = to / "tokenizer_config.json"
    content = {**json.loads(file.read_text()), **changes}
    file.write_text(json.dumps({key: v for key, v in content.items() if v is not None}))
    return to


def test_embedded_policy_is_small_compact_and_safetensors() -> None:
    from ragen2_cli.training.models import embedded_folder

    model, tokenizer, style, notes = load_policy("embedded", device="cpu")
    assert (style, notes) == ("compact", ())
    assert tokenizer.pad_token_id is not None
    assert 300_000 < model.num_parameters() < 500_000
    files = list(embedded_folder().iterdir())
    assert sum(file.stat().st_size for file in files) < 5_000_000
    assert {file.suffix for file in files} == {".json", ".safetensors"}


def test_a_local_folder_keeps_its_style(folder: Path) -> None:
    loaded = load_policy(str(folder), device="cpu")
    assert loaded.style == "compact"
    assert loaded.model.dtype == torch.float32
    assert not loaded.model.training


def test_a_folder_without_the_style_key_is_talked_to_in_full(folder: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(folder, other)
    content = json.loads((other / "config.json").read_text())
    del content["ragen2_style"]
    (other / "config.json").write_text(json.dumps(content))
    assert load_policy(str(other), device="cpu").style == "full"


def test_a_missing_pad_token_is_filled_with_the_end_token_and_said(
    folder: Path, tmp_path: Path
) -> None:
    loaded = load_policy(str(edited(folder, tmp_path / "m", pad_token=None)), device="cpu")
    assert loaded.tokenizer.pad_token == "<eos>"
    assert len(loaded.notes) == 1
    assert "<eos>" in loaded.notes[0]


def test_no_pad_and_no_end_token_is_refused(folder: Path, tmp_path: Path) -> None:
    other = edited(folder, tmp_path / "m", pad_token=None, eos_token=None)
    with pytest.raises(UserError, match="no pad token"):
        load_policy(str(other), device="cpu")


def test_no_chat_template_is_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no chat template"):
        load_policy(str(edited(folder, tmp_path / "m", chat_template=None)), device="cpu")


def test_prepare_tokenizer_leaves_a_complete_tokenizer_alone() -> None:
    tokenizer = build_tokenizer(["left"])
    assert prepare_tokenizer("x", tokenizer) == ()
    assert tokenizer.pad_token == "<pad>"


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("./nowhere", "no such folder"),
        ("a/b/c", "no such folder"),
        ("embeded", "did you mean 'embedded'"),
        ("nowhere.gguf", "no such file"),
        ("some-org/some-model", "the hub gives no such model"),
    ],
)
def test_unknown_names_are_one_line(
    name: str, says: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(UserError, match=says) as caught:
        load_policy(name, device="cpu")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "not a GGUF file"),
        (b"GGML....", "not a GGUF file"),
        (b"GGUF", "cannot read this GGUF file"),
        (b"GGUF" + bytes(200), "cannot read this GGUF file"),
        (b"GGUF\x03\x00\x00\x00" + b"\xff" * 64, "cannot read this GGUF file"),
    ],
)
def test_a_broken_gguf_is_one_line(content: bytes, says: str, tmp_path: Path) -> None:
    pytest.importorskip("gguf")
    path = tmp_path / "broken.gguf"
    path.write_bytes(content)
    with pytest.raises(UserError, match=says) as caught:
        load_policy(str(path), device="cpu")
    assert "\n" not in str(caught.value)


def test_a_folder_without_a_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no config\.json"):
        load_policy(str(tmp_path), device="cpu")


def test_damaged_weights_are_one_line(folder: Path, tmp_path: Path) -> None:
    other = tmp_path / "m"
    shutil.copytree(folder, other)
    (other / "model.safetensors").write_bytes(b"\x00" * 100)
    with pytest.raises(UserError, match="cannot load its model"):
        load_policy(str(other), device="cpu")


def test_pickled_weights_are_not_read(folder: Path, tmp_path: Path) -> None:
    other = tmp_path / "m"
    shutil.copytree(folder, other)
    state = load_policy(str(folder), device="cpu").model.state_dict()
    (other / "model.safetensors").unlink()
    torch.save(state, other / "pytorch_model.bin")
    with pytest.raises(UserError, match="cannot load its model"):
        load_policy(str(other), device="cpu")


def test_devices_and_types() -> None:
    assert resolve_device("cpu") == "cpu"
    assert resolve_dtype("auto", "cpu") == torch.float32
    assert resolve_dtype("bfloat16", "cpu") == torch.bfloat16
    with pytest.raises(UserError, match="use auto, cpu"):
        resolve_device("tpu")
    with pytest.raises(UserError, match="not on this machine"):
        resolve_device("cuda:99")


def test_lora_trains_only_the_adapter_and_starts_as_the_policy(folder: Path) -> None:
    model, tokenizer, *_ = load_policy(str(folder), device="cpu")
    ids = torch.tensor([tokenizer.encode("left ice")])
    before = model(ids).logits
    wrapped = attach_lora(model, rank=2, alpha=4)
    trainable = [name for name, p in wrapped.named_parameters() if p.requires_grad]
    # 7 projections of 1 layer, A and B each; the head is tied to the embedding and left alone.
    assert len(trainable) == 14
    assert all("lora_" in name for name in trainable)
    torch.testing.assert_close(wrapped(ids).logits, before)


def test_lora_on_modules_that_do_not_exist_is_refused(folder: Path) -> None:
    with pytest.raises(UserError, match="LoRA targets"):
        attach_lora(load_policy(str(folder), device="cpu").model, targets=["nothing"])


def test_adapters_load_from_safetensors_only(folder: Path, tmp_path: Path) -> None:
    wrapped = attach_lora(load_policy(str(folder), device="cpu").model, rank=2, alpha=4)
    for p in wrapped.parameters():
        if p.requires_grad:
            torch.nn.init.normal_(p)
    wrapped.save_pretrained(tmp_path / "a")
    ids = torch.tensor([[5, 6, 7]])
    loaded = load_policy(str(folder), device="cpu", adapter=tmp_path / "a")
    torch.testing.assert_close(loaded.model(ids).logits, wrapped(ids).logits)
    assert any(p.requires_grad for p in loaded.model.parameters())

    state = {name: p.detach() for name, p in wrapped.named_parameters() if p.requires_grad}
    (tmp_path / "a" / "adapter_model.safetensors").unlink()
    torch.save(state, tmp_path / "a" / "adapter_model.bin")
    with pytest.raises(UserError, match="safetensors only"):
        load_policy(str(folder), device="cpu", adapter=tmp_path / "a")


def test_an_adapter_of_another_model_is_refused(folder: Path, tmp_path: Path) -> None:
    tokenizer = build_tokenizer(["left"])
    attach_lora(
        make_model(WarmStart(width=32, layers=2, heads=2, mlp=32), tokenizer)
    ).save_pretrained(tmp_path / "a")
    with pytest.raises(UserError, match="does not load onto this model"):
        load_adapter(load_policy(str(folder), device="cpu").model, tmp_path / "a")


def test_nothing_to_train_is_refused(folder: Path) -> None:
    # case 21
    model = load_policy(str(folder), device="cpu").model
    with pytest.raises(UserError, match="no trainable parameter"):
        require_trainable(model.requires_grad_(False), "a frozen adapter")

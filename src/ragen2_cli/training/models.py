"""Policies: the embedded one, a hub id, a local folder or a GGUF file; and their LoRA adapters.

Everything goes through transformers with ``trust_remote_code`` off; weights of folders and
adapters are read from safetensors only, so that loading a model never runs its author's code.
"""

import json
import os
import re
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ragen2_cli.envs.session import Style
from ragen2_cli.errors import UserError, counted_from, did_you_mean
from ragen2_cli.training.devices import Dtype, resolve_device, resolve_dtype

if TYPE_CHECKING:
    from peft import PeftModel
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

EMBEDDED = "embedded"
# Environments of words and numbers, for which "embedded" means the shipped variant that can copy.
WORDS_ENVIRONMENTS = frozenset({"bandit", "countdown"})
VARIANTS = (EMBEDDED, "embedded-words")
STYLE_KEY = "ragen2_style"
ADAPTER_WEIGHTS = "adapter_model.safetensors"
_HUB_ID = re.compile(r"[\w.-]+(/[\w.-]+)?")


class LoadedPolicy(NamedTuple):
    """What :func:`load_policy` returns.

    Attributes:
        model: The causal language model, on its device, in evaluation mode; a ``PeftModel`` when
            an adapter was given.
        tokenizer: Has a chat template and a pad token.
        style: How sessions talk to it: ``compact`` for the embedded policy and what is built or
            exported from it, else ``full``.
        notes: What was decided that a user should hear about, one line each.
    """

    model: Any
    tokenizer: "PreTrainedTokenizerBase"
    style: Style
    notes: tuple[str, ...] = ()


def load_policy(
    name: str,
    *,
    device: str = "auto",
    dtype: Dtype = "auto",
    adapter: str | Path | None = None,
    env: str | None = None,
) -> LoadedPolicy:
    """Load a policy with its tokenizer.

    Args:
        name: ``embedded``, a local folder, a ``.gguf`` file, or a hub id.
        device: ``auto`` (CUDA, else MPS, else CPU) or a torch device.
        dtype: ``auto`` is float32 on CPU and MPS, on CUDA bfloat16 where the GPU has it.
        adapter: Folder of a trained PEFT adapter to load on top, trainable. ``embedded`` is then
            the variant that it was trained on.
        env: The environment it will play; picks the variant of the embedded policy otherwise.

    Raises:
        UserError: No such file, folder or hub id; a broken GGUF; no chat template; no token that
            can pad; an adapter without trainable weights; no such device.
    """
    target = resolve_device(device)
    kind = resolve_dtype(dtype, target)
    where, options = locate(name, env)
    notes: tuple[str, ...] = ()
    trained_on = None if adapter is None else _base_of(Path(adapter))
    if trained_on and trained_on != Path(where).name:
        notes = (f"the adapter was trained on {trained_on}; here it is put on {name}",)
        if name == EMBEDDED and trained_on in VARIANTS:
            where = str(embedded_folder(variant=trained_on))
            notes = (f"the base is {trained_on}, which the adapter was trained on",)
    tokenizer = _load(name, "tokenizer", where, options)
    notes += prepare_tokenizer(name, tokenizer)
    options = {**options, "dtype": kind, "use_safetensors": True}
    if "gguf_file" in options:
        from transformers import GgufConfig

        options["quantization_config"] = GgufConfig(dequantize=True)  # packed blocks cannot train
    model = _load(name, "model", where, options)
    style: Style = "compact" if model.config.to_dict().get(STYLE_KEY) == "compact" else "full"
    model.to(target).eval()
    loaded = model if adapter is None else load_adapter(model, Path(adapter))
    return LoadedPolicy(loaded, tokenizer, style, notes)


def embedded_folder(env: str | None = None, variant: str | None = None) -> Path:
    """Return the folder of the shipped policy: a variant, by default the one for an environment.

    Raises:
        UserError: When the package was installed without it.
    """
    from importlib.resources import files

    variant = variant or VARIANTS[env in WORDS_ENVIRONMENTS]
    folder = Path(str(files("ragen2_cli") / "assets" / variant))
    if not (folder / "model.safetensors").is_file():
        raise UserError(
            f"the embedded policy is missing from {folder}: reinstall ragen2, or build your own "
            "with `ragen2 models build --out DIR` and train with --model DIR"
        )
    return folder


def locate(name: str, env: str | None = None) -> tuple[str, dict[str, Any]]:
    """Return where transformers finds a model and the keywords that it needs for it.

    Raises:
        UserError: As in :func:`load_policy`.
    """
    if name == EMBEDDED:
        return str(embedded_folder(env)), {}
    path = Path(name).expanduser()
    if is_gguf(name):
        _check_gguf(path)
        return str(path.resolve().parent), {"gguf_file": path.name}
    if path.is_dir():
        if not (path / "config.json").is_file():
            hint = " (an adapter: give it with --adapter)" * (path / ADAPTER_WEIGHTS).is_file()
            raise UserError(f"--model {name}: the folder has no config.json{hint}")
        return str(path), {}
    if path.exists():
        raise UserError(f"--model {name}: neither a model folder nor a .gguf file")
    if name.startswith((".", "/", "~")) or name.count("/") > 1 or not _HUB_ID.fullmatch(name):
        raise UserError(f"--model {name}: no such folder or file{counted_from(name)}")
    if "/" not in name and did_you_mean(name, [EMBEDDED]):
        raise UserError(f"--model {name}: no such model (did you mean '{EMBEDDED}'?)")
    return name, {}


def is_gguf(name: str) -> bool:
    """Whether a model's name is that of a GGUF file."""
    return Path(name).suffix.lower() == ".gguf"


def prepare_tokenizer(name: str, tokenizer: "PreTrainedTokenizerBase") -> tuple[str, ...]:
    """Check the chat template and fill a missing pad token; return what was decided.

    Raises:
        UserError: No chat template, or neither a pad nor an end-of-text token.
    """
    if tokenizer.chat_template is None:
        raise UserError(
            f"--model {name}: its tokenizer has no chat template; use an instruction-tuned model"
        )
    if tokenizer.pad_token_id is not None:
        return ()
    if tokenizer.eos_token_id is None:
        raise UserError(
            f"--model {name}: its tokenizer has no pad token and no end-of-text token to pad with; "
            "name a pad_token in its tokenizer_config.json"
        )
    tokenizer.pad_token = tokenizer.eos_token
    return (f"{name} has no pad token; padding with {tokenizer.eos_token}",)


def context_length(model: Any) -> int | None:
    """Return how many tokens a model's positions reach; None where its config does not say."""
    config = model.config.get_text_config()  # where it is nested, as in models that see images
    return config.max_position_embeddings if hasattr(config, "max_position_embeddings") else None


def attach_lora(
    model: "PreTrainedModel",
    *,
    rank: int = 16,
    alpha: int = 32,
    dropout: float = 0.0,
    targets: str | Sequence[str] = "all-linear",
) -> "PeftModel":
    """Wrap a model in a fresh, trainable LoRA adapter.

    Draws the adapter's first weights from torch's global generator: seed it before.

    Args:
        model: The policy; its own weights are frozen.
        rank: LoRA r.
        alpha: LoRA alpha; the update is scaled by ``alpha / rank``.
        dropout: LoRA dropout.
        targets: ``all-linear`` (all projections but the head) or names of modules.

    Raises:
        UserError: When no module has a target's name.
    """
    from peft import LoraConfig, get_peft_model

    modules = targets if isinstance(targets, str) else list(targets)
    config = LoraConfig(
        r=rank,
        lora_alpha=alpha,
        lora_dropout=dropout,
        target_modules=modules,
        bias="none",
        task_type="CAUSAL_LM",
    )
    try:
        wrapped = get_peft_model(model, config)
    except ValueError as error:
        raise UserError(f"LoRA targets {modules}: {_first_line(error)}") from None
    return require_trainable(wrapped, f"LoRA targets {modules}")


def load_adapter(model: "PreTrainedModel", folder: Path, *, trainable: bool = True) -> "PeftModel":
    """Load a trained PEFT adapter onto a model.

    Raises:
        UserError: The folder is missing, holds no safetensors adapter, does not fit the model, or
            has nothing to train although ``trainable`` is set.
    """
    from peft import PeftModel
    from safetensors import SafetensorError

    if not (folder / "adapter_config.json").is_file():
        where = counted_from(folder)
        raise UserError(f"--adapter {folder}: no adapter_config.json there{where}")
    if not (folder / ADAPTER_WEIGHTS).is_file():
        raise UserError(
            f"--adapter {folder}: no {ADAPTER_WEIGHTS}; adapters are read from safetensors only"
        )
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("error", message=".*missing adapter keys.*")
            loaded = PeftModel.from_pretrained(
                model, str(folder), is_trainable=trainable, use_safetensors=True
            )
    except (ValueError, RuntimeError, KeyError, TypeError, UserWarning, SafetensorError) as error:
        reason = _first_line(error)
        raise UserError(f"--adapter {folder}: does not load onto this model: {reason}") from None
    return require_trainable(loaded, f"--adapter {folder}") if trainable else loaded


def require_trainable(model: Any, what: str) -> Any:
    """Return the model.

    Raises:
        UserError: When none of its parameters would be trained.
    """
    if not any(p.requires_grad and p.numel() for p in model.parameters()):
        raise UserError(f"{what}: no trainable parameter, so nothing would be learned")
    return model


def train_fully(model: "PreTrainedModel") -> "PreTrainedModel":
    """Make every weight trainable (``--full``)."""
    return model.requires_grad_(True)


def _base_of(adapter: Path) -> str | None:
    """Return the last part of the path or id of the model that an adapter was trained on.

    None where its file does not say; ``load_adapter`` tells what is wrong with a broken one.
    """
    try:
        config = json.loads((adapter / "adapter_config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    base = config.get("base_model_name_or_path") if isinstance(config, dict) else None
    return Path(base).name if isinstance(base, str) else None


def _load(name: str, part: str, where: str, options: dict[str, Any]) -> Any:
    """Load a tokenizer or a model; turn what transformers raises into one line."""
    import struct

    from safetensors import SafetensorError
    from transformers import AutoModelForCausalLM, AutoTokenizer

    loader = AutoTokenizer if part == "tokenizer" else AutoModelForCausalLM
    try:
        return loader.from_pretrained(where, trust_remote_code=False, **options)
    except (
        OSError,
        ValueError,
        KeyError,
        TypeError,
        ImportError,
        IndexError,
        RuntimeError,
        struct.error,
        SafetensorError,
    ) as error:
        reason = _first_line(error)
    except Exception as error:
        if type(error) is not Exception:  # what tokenizers raises about a damaged vocabulary
            raise
        reason = _first_line(error)
    if "gguf_file" in options:
        raise UserError(f"--model {name}: cannot read this GGUF file: {reason}")
    if Path(where).is_dir():
        raise UserError(f"--model {name}: cannot load its {part}: {reason}")
    offline = " (HF_HUB_OFFLINE is set)" * (os.environ.get("HF_HUB_OFFLINE", "0") not in ("", "0"))
    raise UserError(
        f"--model {name}: no such folder, and the hub gives no such model{offline}: {reason}"
        f"{counted_from(name)}"
    )


def _check_gguf(path: Path) -> None:
    from importlib.util import find_spec

    if not path.is_file():
        raise UserError(f"--model {path}: no such file{counted_from(path)}")
    with path.open("rb") as file:
        if file.read(4) != b"GGUF":
            raise UserError(f"--model {path}: not a GGUF file (it does not begin with GGUF)")
    if find_spec("gguf") is None:
        raise UserError(f"--model {path}: GGUF files need the package gguf; pip install gguf")


def _first_line(error: Exception) -> str:
    if isinstance(error, KeyError):
        return f"no such key or value: {error}"[:200]
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[0] if lines else type(error).__name__)[:200]

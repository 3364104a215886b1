"""The files of an embedded policy and where they came from."""

import json
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ragen2_cli.errors import UserError

if TYPE_CHECKING:
    from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

PROVENANCE = "provenance.json"
_PACKAGES = ("numpy", "tokenizers", "torch", "transformers")


def check_folder(out: Path, *, force: bool) -> None:
    """Make a folder to write a model to.

    Raises:
        UserError: It is a file, holds something and ``force`` is not set, or cannot be written.
    """
    if out.is_dir() and any(out.iterdir()) and not force:
        raise UserError(f"--out {out}: the folder is not empty; choose another or give --force")
    try:
        out.mkdir(parents=True, exist_ok=True)
        probe = out / ".writable"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise UserError(f"--out {out}: cannot be written ({error.strerror})") from None


def describe(folder: Path) -> dict[str, Any]:
    """Return a policy's provenance and its ``bytes`` on disk."""
    found: dict[str, Any] = json.loads((folder / PROVENANCE).read_text(encoding="utf-8"))
    return {**found, "bytes": size_of(folder)}


def size_of(folder: Path) -> int:
    """Return the bytes of all files of a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def write(
    out: Path,
    model: "LlamaForCausalLM",
    tokenizer: "PreTrainedTokenizerFast",
    settings: dict[str, object],
    loss: float,
    seconds: float,
) -> dict[str, object]:
    """Write model, tokenizer and provenance; return the provenance.

    Args:
        out: Folder; made when missing, files of the same names are replaced.
        model: The trained policy.
        tokenizer: Its tokenizer.
        settings: What built it.
        loss: Last training loss, nats per token.
        seconds: How long it took.
    """
    from importlib.metadata import version

    from ragen2_cli.training.embedded.narrators import LESSONS

    out.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(out)
    (out / "model.safetensors").chmod(0o644)
    tokenizer.save_pretrained(out, save_jinja_files=False)
    provenance: dict[str, object] = {
        "schema": 1,
        "command": f"ragen2 models build --variant {'words' if settings['words'] else 'grid'} "
        f"--seed {settings['seed']} --steps {settings['steps']}",
        "lessons": [
            {"env": lesson.env, "options": lesson.options, "share": lesson.share}
            for lesson in LESSONS
        ],
        "parameters": model.num_parameters(),
        "settings": settings,
        "loss": round(loss, 4),
        "seconds": round(seconds, 1),
        "packages": {name: version(name) for name in _PACKAGES},
        "sha256": {
            name: sha256((out / name).read_bytes()).hexdigest()
            for name in ("model.safetensors", "tokenizer.json")
        },
    }
    (out / PROVENANCE).write_text(json.dumps(provenance, indent=2) + "\n", encoding="utf-8")
    return provenance

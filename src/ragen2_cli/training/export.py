"""Merge a run's adapter into its base model: plain safetensors that any server can load."""

import json
import shlex
from pathlib import Path
from typing import Any

from ragen2_cli.config import Config
from ragen2_cli.errors import UserError
from ragen2_cli.runs import RunDirectory


def export_run(run: RunDirectory, out: Path, *, force: bool) -> dict[str, Any]:
    """Write the merged model and its tokenizer.

    Args:
        run: A run with a final adapter.
        out: Folder to write.
        force: Replace the files of a folder that is not empty.

    Returns:
        ``folder``, ``bytes``, ``base`` (the model's name), ``env`` and ``next``, the command that
        evaluates the written model as the run was.

    Raises:
        UserError: The run has no final adapter yet, or the folder cannot be used.
    """
    from ragen2_cli.training.embedded.files import check_folder, size_of
    from ragen2_cli.training.models import load_policy

    config = run.resolved_config()
    if config.model.full:
        raise UserError(
            f"{run.path}: trained with --full, so {run.adapter} already holds whole weights"
        )
    if not (run.finished and run.adapter.is_dir()):
        raise UserError(f"{run.path}: no final adapter yet; finish it with ragen2 train --resume")
    name = config.model.name
    policy = load_policy(
        name, device="cpu", dtype=config.model.dtype, adapter=run.adapter, env=config.env.name
    )
    check_folder(out, force=force)
    merged = policy.model.merge_and_unload()
    merged.save_pretrained(out)
    policy.tokenizer.save_pretrained(out, save_jinja_files=False)
    return {
        "folder": str(out),
        "bytes": size_of(out),
        "base": name,
        "env": config.env.name,
        "next": _evaluation(out, config),
    }


def _evaluation(folder: Path, config: Config) -> str:
    """Return the command that measures a model in a run's environment, with its options."""
    default = Config()
    words = ["ragen2", "evaluate", str(folder), "--env", config.env.name]
    if config.evaluation.episodes not in (0, default.evaluation.episodes):
        words += ["--episodes", str(config.evaluation.episodes)]
    for key, value in config.env.model_dump(exclude={"name", "dead_share"}).items():
        if value != getattr(default.env, key):
            words += _set(f"env.{key}", value)
    return shlex.join(words)


def _set(key: str, value: Any) -> list[str]:
    if isinstance(value, dict):
        return [word for name, one in value.items() for word in _set(f"{key}.{name}", one)]
    return ["--set", f"{key}={json.dumps(value, ensure_ascii=False)}"]

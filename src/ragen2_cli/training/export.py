"""Merge a run's adapter into its base model: plain safetensors that any server can load."""

from pathlib import Path
from typing import Any

from ragen2_cli.errors import UserError
from ragen2_cli.runs import RunDirectory


def export_run(run: RunDirectory, out: Path, *, force: bool) -> dict[str, Any]:
    """Write the merged model and its tokenizer.

    Args:
        run: A run with a final adapter.
        out: Folder to write.
        force: Replace the files of a folder that is not empty.

    Returns:
        ``folder``, ``bytes``, ``base`` (the model's name) and ``env``.

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
    }

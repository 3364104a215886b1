"""Which TRL the trainer was tested with, checked by number before any work."""

from importlib import metadata

from ragen2_cli.errors import UserError

SUPPORTED_TRL = ((1, 16), (1, 17))
"""First supported version, and the first one that is not supported any more."""


def require_supported_trl(version: str | None = None) -> None:
    """Refuse a TRL outside the tested range without importing it.

    ``SnrGRPOTrainer`` overrides private methods of TRL's trainer, so another minor version may
    train on something else without failing.

    Args:
        version: The version to judge; the installed one when not given.

    Raises:
        UserError: TRL is missing, or its version is outside ``SUPPORTED_TRL``.
    """
    low, high = (".".join(map(str, bound)) for bound in SUPPORTED_TRL)
    remedy = f"install it with: pip install 'trl>={low},<{high}'"
    if version is None:
        try:
            version = metadata.version("trl")
        except metadata.PackageNotFoundError:
            raise UserError(f"TRL is not installed; {remedy}") from None
    if not SUPPORTED_TRL[0] <= _release(version) < SUPPORTED_TRL[1]:
        raise UserError(f"TRL {version} is not supported, only >={low},<{high}; {remedy}")


def _release(version: str) -> tuple[int, int]:
    """Major and minor number of a version such as ``1.16.0`` or ``1.17.0.dev0``."""
    major, minor = version.split(".")[:2]
    return int(major), int(minor)

"""Checks of environment options that every environment shares: a bad value is a user error."""

from ragen2_cli.errors import UserError


def whole(env: str, option: str, value: object, low: int, high: int) -> int:
    """Return ``value`` as an int.

    Raises:
        UserError: When it is no whole number between ``low`` and ``high``.
    """
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise UserError(
            f"environment '{env}': {option} must be a whole number from {low} to {high}, "
            f"not {value!r}"
        )
    return value


def share(env: str, option: str, value: object, low: float = 0.0, high: float = 1.0) -> float:
    """Return ``value`` as a float.

    Raises:
        UserError: When it is no number between ``low`` and ``high``.
    """
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not low <= float(value) <= high:  # type: ignore[arg-type]
        raise UserError(
            f"environment '{env}': {option} must be a number from {low:g} to {high:g}, "
            f"not {value!r}"
        )
    return float(value)  # type: ignore[arg-type]

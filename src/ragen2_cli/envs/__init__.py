"""Text environments: the contract, the episode around it, and one file per environment.

To add one: write a ``TextEnv`` subclass in its own file and list it in ``REGISTRY`` as
``"module:Class"``. Nothing is imported before ``make`` is called with its name. A class in a
file of the user's own needs no entry: ``make("path/to/my_env.py:MyEnv")``.
"""

from ragen2_cli.envs.base import StepResult, TextEnv

REGISTRY: dict[str, str] = {
    "frozenlake": "ragen2_cli.envs.frozenlake:FrozenLake",
    "sokoban": "ragen2_cli.envs.sokoban:Sokoban",
    "sokoban-large": "ragen2_cli.envs.sokoban:SokobanLarge",
    "countdown": "ragen2_cli.envs.countdown:Countdown",
    "bandit": "ragen2_cli.envs.bandit:Bandit",
    "metamath": "ragen2_cli.envs.metamath:MetaMath",
    "deep_coder": "ragen2_cli.envs.deep_coder:DeepCoder",
    "search_qa": "ragen2_cli.envs.search_qa:SearchQA",
    "web_shop": "ragen2_cli.envs.web_shop:WebShop",
}

__all__ = ["REGISTRY", "StepResult", "TextEnv", "environment_class", "make", "options_of"]


def environment_class(name_or_path: str) -> type[TextEnv]:
    """Return the class behind a registered name or a ``path/to/file.py:Class``.

    Raises:
        UserError: For an unknown name (with the closest one) or a file that does not provide it.
    """
    from importlib import import_module

    from ragen2_cli.errors import UserError, did_you_mean

    if name_or_path in REGISTRY:
        module, _, attribute = REGISTRY[name_or_path].partition(":")
        found: type[TextEnv] = vars(import_module(module))[attribute]
        return found
    if ":" in name_or_path:
        from ragen2_cli.envs.user import load_class

        return load_class(name_or_path)
    raise UserError(
        f"unknown environment '{name_or_path}'{did_you_mean(name_or_path, REGISTRY)}; "
        f"known: {', '.join(REGISTRY)}, or your own as path/to/file.py:Class"
    )


def options_of(cls: type[TextEnv]) -> dict[str, object]:
    """Return the constructor's options of an environment with their defaults, in order."""
    import inspect

    parameters = inspect.signature(cls).parameters.values()
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return {item.name: item.default for item in parameters if item.kind in named}


def make(
    name_or_path: str, *, stochasticity: float = 0.0, kind: str = "slip", **options: object
) -> TextEnv:
    """Build an environment, ready for ``reset``.

    Args:
        name_or_path: A name of ``REGISTRY`` or ``path/to/file.py:Class``.
        stochasticity: Level as a fraction in [0, 1].
        kind: ``slip``, ``action`` or ``reward``: what the level does (see ``stochastic.py``).
        **options: The environment's own options, for example ``size=6``.

    Raises:
        UserError: Unknown name or option, a value out of range, or a kind of stochasticity that
            this environment cannot have.
    """
    from ragen2_cli.envs.stochastic import check_kind, wrap
    from ragen2_cli.errors import UserError, did_you_mean

    check_kind(kind)
    if not 0 <= stochasticity <= 1:
        raise UserError(f"stochasticity must be a fraction from 0 to 1, not {stochasticity}")
    cls = environment_class(name_or_path)
    known = options_of(cls)
    for option in options:
        if option not in known:
            raise UserError(
                f"environment '{name_or_path}' has no option '{option}'"
                f"{did_you_mean(option, known)}; known: {', '.join(known) or 'none'}"
            )
    if stochasticity and kind == "slip":
        if "slip" not in known:
            raise UserError(
                f"environment '{name_or_path}' cannot slip (frozenlake can); "
                "use stochasticity of kind 'action' or 'reward'"
            )
        options = {**options, "slip": stochasticity}
    if name_or_path in REGISTRY:
        env = cls(**options)
    else:
        from ragen2_cli.envs.user import build

        env = build(cls, name_or_path, options)
    return wrap(env, stochasticity, kind) if stochasticity and kind != "slip" else env

"""What an environment is, for people: the rows of ``envs list`` and the page of ``envs show``."""

from dataclasses import asdict, dataclass

from ragen2_cli.envs import REGISTRY, environment_class, make, options_of
from ragen2_cli.envs.session import Limits, Session


@dataclass(frozen=True, slots=True)
class Card:
    """An environment on one line.

    Attributes:
        name: The registered name, or what the user wrote.
        summary: First line of the class's docstring; the instruction's where it has none.
        answers: The action names, or what else an answer is.
        options: Constructor options with their defaults.
    """

    name: str
    summary: str
    answers: str
    options: dict[str, object]


def card(name: str) -> Card:
    """Return the card of one environment.

    Raises:
        UserError: As ``environment_class``.
    """
    cls = environment_class(name)
    summary = vars(cls).get("__doc__") or cls.instruction
    answers = "free text" if cls.actions is None else ", ".join(cls.actions)
    first = summary.strip().partition("\n")[0]
    first = first.replace("``", "")  # marks of the docstring, not of the text
    return Card(name, first, answers or "named by the observation", options_of(cls))


def cards() -> list[Card]:
    """Return the cards of the whole registry, in its order."""
    return [card(name) for name in REGISTRY]


def page(name: str, seed: int, options: dict[str, object]) -> dict[str, object]:
    """Return everything about one environment, with an example in both styles.

    Args:
        name: As for ``make``.
        seed: The board of the examples.
        options: As for ``make``, with ``stochasticity`` and ``kind``.

    Raises:
        UserError: As ``make``.
    """
    env = make(name, **options)  # type: ignore[arg-type]
    limits = Limits.of(env)
    full = Session(env, seed=seed, noise_seed=0, limits=limits).messages
    compact = Session(env, seed=seed, noise_seed=0, limits=limits, style="compact").messages
    return {
        **asdict(card(name)),
        "instruction": env.instruction,
        "limits": asdict(limits),
        "seed": seed,
        "full": full,
        "compact": compact,
    }

"""A person plays an episode: typed lines instead of completions, the same rules as a policy."""

from collections.abc import Callable

from ragen2_cli.envs.base import TextEnv
from ragen2_cli.envs.parsing import SEPARATOR
from ragen2_cli.envs.session import Limits, Session

QUIT = ("q", "quit", "exit")


def to_answer(line: str, actions: tuple[str, ...] | None) -> str:
    """Return a typed line as the text of an answer.

    With a finite list, blanks and commas separate actions too, and any unambiguous beginning of a
    name will do: ``r d`` is ``Right || Down``. Free text stays as it is.
    """
    if actions is None:
        return line.strip()
    words = line.replace(SEPARATOR, " ").replace(",", " ").split()
    return f" {SEPARATOR} ".join(_complete(word, actions) for word in words)


def _complete(word: str, actions: tuple[str, ...]) -> str:
    names = [name for name in actions if name.casefold().startswith(word.casefold())]
    return names[0] if len(names) == 1 else word


def play(
    env: TextEnv,
    seed: int,
    read: Callable[[], str | None],
    write: Callable[[str], None],
) -> Session | None:
    """Play one episode and return its session, or None when the player left.

    Args:
        env: The environment.
        seed: Decides the board and, here, the chance too.
        read: Returns the next line, or None at the end of the input.
        write: Shows a text.
    """
    session = Session(env, seed=seed, noise_seed=seed, limits=Limits.of(env))
    limits = session.limits
    write(env.instruction)
    if env.actions is not None:
        write(f"Actions: {', '.join(env.actions)}; the first letters will do.")
    write(f"Up to {limits.actions_per_turn} in a line, {limits.max_actions} in all; q leaves.")
    while not session.done:
        write(f"\nturn {len(session.turns) + 1} of {limits.max_turns}\n{env.observe()}")
        line = read()
        while line is not None and not line.strip():
            line = read()
        if line is None or line.strip().casefold() in QUIT:
            return None
        session.submit(f"</think><answer>{to_answer(line, env.actions)}</answer>")
        turn = session.turns[-1]
        note = "" if turn.valid else f"  (not a valid answer: {turn.penalty:g})"
        write(f"reward {turn.reward if turn.reward is None else format(turn.reward, 'g')}{note}")
    write(f"\n{env.observe()}")
    return session

"""What the policy reads: the system message and the user message of a turn, in two styles."""

from ragen2_cli.envs.parsing import SEPARATOR
from ragen2_cli.records import Turn

INVALID_MARK = "!"


def system_message(
    instruction: str, actions: tuple[str, ...] | None, actions_per_turn: int, max_actions: int
) -> str:
    """Return the opener, the environment's instruction, its actions and the budget."""
    lines = ["You act in a text environment, turn by turn. Think first, then act.", instruction]
    if actions is not None:
        lines.append(f"Actions: {', '.join(actions)}.")
    if actions_per_turn > 1:
        lines.append(
            f"An answer may hold up to {actions_per_turn} actions, separated by {SEPARATOR}; "
            "they run in order."
        )
    lines.append(f"You have {max_actions} action{'s' * (max_actions != 1)} in all.")
    return "\n".join(lines)


def user_message(
    observation: str,
    previous: Turn | None,
    *,
    turn: int,
    max_turns: int,
    actions_left: int,
    actions_per_turn: int,
    free_text: bool,
    word_limit: int,
) -> str:
    """Return a full-style turn: last reward and warning, number, state, budget, format request."""
    lines = []
    if previous is not None:
        reward = 0.0 if previous.reward is None else previous.reward
        lines.append(f"Reward of the last turn: {reward:g}.")
        if not previous.valid and not previous.actions:
            lines.append("Warning: the last answer held no valid action. The state is unchanged.")
        elif not previous.valid:
            lines.append("Warning: parts of the last answer were no valid action and were skipped.")
    example = "your answer" if free_text else SEPARATOR.join(["action"] * actions_per_turn)
    example = example.replace(SEPARATOR, f" {SEPARATOR} ")
    lines += [
        f"Turn {turn} of {max_turns}, actions left: {actions_left}. State:",
        observation,
        f"Reply with <think>your reasoning</think><answer>{example}</answer> and nothing else, "
        f"in at most {word_limit} words.",
    ]
    return "\n".join(lines)


def compact_message(observation: str, previous: Turn | None) -> str:
    """Return the bare observation, after a line ``!`` when the last turn was not valid."""
    invalid = previous is not None and not previous.valid
    return f"{INVALID_MARK}\n{observation}" if invalid else observation

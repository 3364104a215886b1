"""Sampled tokens per second of the rollout engine over a loop around ``model.generate``.

The loop does what scripts do: every turn it hands the whole conversation of every live episode
to ``generate``, left-padded, and reads on after the stop. Both sides play the same boards with
the same embedded policy (LoRA attached, as in the default run) through the same sessions and
template, one after the other in every round; times are CPU seconds of this process on one
thread. At least 1.4 is expected on the default run's shapes, and the gain must rise with turns:
for 2, 5 and 10 turns the boards never end, so that all episodes have that many.

    python benchmarks/rollout_throughput.py --json
"""

import argparse
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from ragen2_cli.envs import make
from ragen2_cli.envs.base import StepResult
from ragen2_cli.envs.frozenlake import FrozenLake
from ragen2_cli.envs.session import Limits, Session
from ragen2_cli.rollout.engine import EpisodeId, rollout
from ragen2_cli.rollout.policies import TransformersPolicy
from ragen2_cli.rollout.template import STOP_TEXT, ChatTemplate
from ragen2_cli.training.models import attach_lora, load_policy

MAX_NEW_TOKENS = 96
CONTEXT = 2048


class Frozen(FrozenLake):
    """A board on which nothing ever happens."""

    def step(self, action: str) -> StepResult:
        """Leave everything as it is."""
        return StepResult(reward=0.0)


def sessions_of(groups: int, group_size: int, turns: int | None) -> list[Session]:
    """Return fresh sessions: the default run's, or ones of exactly ``turns`` turns."""
    sessions = []
    for board in range(groups):
        for member in range(group_size):
            env = make("frozenlake") if turns is None else Frozen()
            limits = Limits.of(env)
            if turns is not None:
                limits = replace(limits, max_turns=turns, max_actions=100 * turns)
            sessions.append(
                Session(env, seed=board, noise_seed=member, limits=limits, style="compact")
            )
    return sessions


def play_with_engine(
    policy: TransformersPolicy, template: ChatTemplate, sessions: Sequence[Session]
) -> int:
    """Play with a cache kept across turns; return the number of sampled tokens."""
    played = rollout(
        policy,
        template,
        sessions,
        ids=[EpisodeId(1, i, 0, i) for i in range(len(sessions))],
        seeds_N=range(len(sessions)),
        max_new_tokens=MAX_NEW_TOKENS,
        context_limit=CONTEXT,
    )
    return sum(one.sampled_tokens for one in played)


def play_with_generate(
    model: torch.nn.Module, template: ChatTemplate, sessions: Sequence[Session]
) -> int:
    """Play by calling ``generate`` on whole conversations; return the number of sampled tokens."""
    pad = template.tokenizer.pad_token_id
    stops = sorted({*template.stop_ids, *template.turn_ids(STOP_TEXT)})
    contexts = [template.first_prompt_ids(session.messages) for session in sessions]
    live = list(range(len(sessions)))
    sampled = 0
    model.eval()
    while live:
        width = max(len(contexts[i]) for i in live)
        padding = [width - len(contexts[i]) for i in live]
        ids = [[pad] * gap + contexts[i] for gap, i in zip(padding, live, strict=True)]
        mask = [[0] * gap + [1] * (width - gap) for gap in padding]
        with torch.inference_mode():
            output = model.generate(
                input_ids=torch.tensor(ids),
                attention_mask=torch.tensor(mask),
                max_new_tokens=MAX_NEW_TOKENS,
                do_sample=True,
                top_k=0,
                eos_token_id=stops,
                pad_token_id=pad,
            )
        still = []
        for i, row in zip(live, output[:, width:].tolist(), strict=True):
            end = next((at + 1 for at, token in enumerate(row) if token in stops), len(row))
            turn = row[:end]
            sampled += len(turn)
            contexts[i] += turn
            message = sessions[i].submit(template.completion_text(turn))
            if message is not None:
                contexts[i] += template.next_turn_ids(message, sampled_ids=turn)
                still.append(i)
        live = still
    return sampled


def tokens_per_second(play: Callable[[], int]) -> float:
    """Run once and return sampled tokens per CPU second."""
    start = time.process_time()
    tokens = play()
    return tokens / (time.process_time() - start)


def main() -> None:
    """Measure all shapes side by side and print the default run's ratio last."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--groups", type=int, default=8)
    parser.add_argument("--group-size", type=int, default=8)
    parser.add_argument("--no-lora", action="store_true", help="play without an adapter")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead")
    options = parser.parse_args()

    torch.set_num_threads(1)
    torch.manual_seed(0)
    loaded = load_policy("embedded", device="cpu")
    model = loaded.model
    if not options.no_lora:
        model = attach_lora(model, rank=16, alpha=32, dropout=0.0)
    template = ChatTemplate(loaded.tokenizer)
    policy = TransformersPolicy(model)
    result: dict[str, float] = {}
    for turns in (None, 2, 5, 10):
        best = [0.0, 0.0]
        for _ in range(options.rounds):
            for side, play in enumerate(
                (
                    lambda s: play_with_engine(policy, template, s),
                    lambda s: play_with_generate(model, template, s),
                )
            ):
                sessions = sessions_of(options.groups, options.group_size, turns)
                best[side] = max(best[side], tokens_per_second(lambda p=play, s=sessions: p(s)))
        name = "default" if turns is None else f"{turns}_turns"
        result[name] = best[0] / best[1]
        result[f"{name}_tokens_per_second"] = best[0]
        result[f"{name}_generate_tokens_per_second"] = best[1]
        if not options.json:
            print(
                f"{name:>9}: {best[0]:6.0f} tokens/s, generate {best[1]:6.0f}: {result[name]:.2f}x"
            )
    if options.json:
        print(json.dumps(result | {"ratio": result["default"]}))
        return
    print(f"{result['default']:.2f}")


if __name__ == "__main__":
    main()

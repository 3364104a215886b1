"""The vLLM policy against a stand-in of TRL's client: turns, cuts, settings put back."""

import math
from types import SimpleNamespace

import pytest

from ragen2_cli.rollout.policies import VllmPolicy
from ragen2_cli.rollout.policy import StopRule

STOP = StopRule(ids=frozenset({9}), text="", decode=str, suspects=frozenset({9}))


class Client(SimpleNamespace):
    """Answers each context with the next of its scripted turns, and remembers what it was asked."""

    def generate(self, prompts, images, num_generations):
        assert images is None
        assert num_generations == 1
        self.asked.append(
            ([list(p) for p in prompts], self.temperature, self.max_completion_length)
        )
        turns = [self.script[prompt[0]].pop(0) for prompt in prompts]
        return prompts, turns, [[[-0.5]] * len(turn) for turn in turns], None


def play(script, replies, temperature=0.7):
    client = Client(script=script, asked=[], temperature=1.0, max_completion_length=256)
    heard = []

    def reply(number, turn):
        heard.append((number, turn))
        return replies[number].pop(0)

    VllmPolicy(client).converse(
        [[1], [2]], [0, 0], reply, stop=STOP, max_new_tokens=4, temperature=temperature
    )
    return client, heard


def test_contexts_grow_by_what_was_sampled_and_finished_ones_leave() -> None:
    # Episode 0: turn [5, 9], observation [7], turn [6, 9]. Episode 1: one turn [8, 9].
    client, heard = play({1: [[5, 9], [6, 9]], 2: [[8, 9]]}, [[[7], None], [None]])
    assert [asked for asked, *_ in client.asked] == [[[1], [2]], [[1, 5, 9, 7]]]
    assert [(number, turn.ids) for number, turn in heard] == [(0, (5, 9)), (1, (8, 9)), (0, (6, 9))]
    assert not any(turn.truncated for _, turn in heard)


def test_a_turn_is_cut_at_its_first_stop_and_a_missing_stop_is_truncated() -> None:
    _, heard = play({1: [[5, 9, 4, 4]], 2: [[4, 4, 4, 4]]}, [[None], [None]])
    assert heard[0][1].ids == (5, 9)
    assert heard[0][1].sampling_logprobs == (-0.5, -0.5)
    assert heard[1][1].truncated
    assert all(math.isnan(value) for value in heard[0][1].entropies)


def test_the_clients_settings_are_put_back_even_after_an_error() -> None:
    client, _ = play({1: [[9]], 2: [[9]]}, [[None], [None]])
    assert client.asked[0][1:] == (0.7, 4)
    assert (client.temperature, client.max_completion_length) == (1.0, 256)
    client = Client(script={1: []}, asked=[], temperature=1.0, max_completion_length=256)
    with pytest.raises(IndexError):
        VllmPolicy(client).converse(
            [[1]], [0], lambda number, turn: None, stop=STOP, max_new_tokens=4, temperature=0.5
        )
    assert client.temperature == 1.0

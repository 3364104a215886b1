"""The engine: what is recorded is what was sampled, whatever the text, the limits and the batch."""

import dataclasses

import pytest

from ragen2_cli.envs import make
from ragen2_cli.envs.session import Limits, Session
from ragen2_cli.errors import UserError
from ragen2_cli.rollout.engine import EpisodeId, rollout
from ragen2_cli.rollout.policies import ScriptedPolicy
from ragen2_cli.rollout.template import ChatTemplate
from ragen2_cli.rollout.trl_fields import trl_fields
from rollout_helpers import CHATML, LLAMA3, PLAIN, TalkingSession, byte_tokenizer


def play(write, sessions, template=None, *, close=False, **options):
    template = template or ChatTemplate(byte_tokenizer())
    settings = {"max_new_tokens": 200, "context_limit": 4000, "seeds_N": range(len(sessions))}
    ids = [EpisodeId(3, i // 2, i % 2, 70 + i // 2) for i in range(len(sessions))]
    policy = ScriptedPolicy(template, write, close=close)
    return rollout(policy, template, sessions, ids=ids, **(settings | options))


def frozen(seed, style="full", max_turns=5):
    env = make("frozenlake")
    limits = dataclasses.replace(Limits.of(env), max_turns=max_turns)
    return Session(env, seed=seed, noise_seed=0, limits=limits, style=style)


# case 23
SPOKEN = ["<think>again</think><answer>Left</answer>", "😀 √ </answer>", "trailing  \n ", "é<|im"]


@pytest.mark.parametrize("source", [CHATML, LLAMA3, PLAIN])
@pytest.mark.parametrize("tags", [True, False])
@pytest.mark.parametrize("close", [True, False])
def test_trained_ids_are_the_sampled_ids_turn_by_turn(source, tags, close):
    template = ChatTemplate(byte_tokenizer(source, tags=tags))
    session = TalkingSession("x", last_turn=4)
    (played,) = play(lambda e, turn, shown: SPOKEN[turn], [session], template, close=close)
    episode = played.episode
    spans = [episode.completion_ids[a:b] for a, b in episode.turn_spans]
    assert [list(span) for span in spans] == [
        template.turn_ids(text, close=close) for text in SPOKEN
    ]
    # An id that stops a turn is no part of what the parser reads.
    assert session.submitted == SPOKEN


@pytest.mark.parametrize("close", [True, False])
def test_mask_covers_every_sampled_token_and_no_observation(close):
    # case 19: three turns of different lengths
    said = ["a", "bcdef", "gh"]
    template = ChatTemplate(byte_tokenizer())
    session = TalkingSession("yy", last_turn=3)
    (played,) = play(lambda e, turn, shown: said[turn], [session], template, close=close)
    episode = played.episode
    assert played.sampled_tokens == 1 + 5 + 2 + 3 * close
    inside = [0] * len(episode.completion_ids)
    for start, end in episode.turn_spans:
        inside[start:end] = [1] * (end - start)
    assert list(episode.loss_mask) == inside
    ends = [end for _, end in episode.turn_spans]
    starts = [start for start, _ in episode.turn_spans]
    assert starts[0] == 0
    assert ends[-1] == len(episode.completion_ids)
    for end, start, text in zip(ends, starts[1:], said, strict=False):
        seen = template.text(episode.completion_ids[end:start])
        assert seen.startswith("\n" if close else "<|im_end|>\n")
        assert f"yy saw {len(text)} √" in seen
        assert seen.endswith("<think>")
    for values in (played.logprobs, played.sampling_logprobs, played.entropies):
        assert len(values) == len(episode.completion_ids)


def test_two_prompts_by_two_rollouts_are_four_episodes_in_order():
    # case 24
    sessions = [frozen(seed) for seed in (70, 70, 71, 71)]
    answers = ["Left", "Right", "Up", "Down"]
    played = play(lambda e, turn, shown: f"go</think><answer>{answers[e]}</answer>", sessions)
    episodes = [one.episode for one in played]
    assert [(e.step, e.group, e.rollout, e.seed) for e in episodes] == [
        (3, 0, 0, 70),
        (3, 0, 1, 70),
        (3, 1, 0, 71),
        (3, 1, 1, 71),
    ]
    assert episodes[0].prompt_ids == episodes[1].prompt_ids != episodes[2].prompt_ids
    assert [e.turns[0].actions for e in episodes] == [("Left",), ("Right",), ("Up",), ("Down",)]
    for session, episode in zip(sessions, episodes, strict=True):
        assert episode.turns == session.turns
        assert episode.prompt == session.messages[-1]["content"]
        assert (episode.status, episode.success) == (session.status, session.success)
        assert (episode.episode_return, episode.outcome) == (
            session.episode_return,
            session.outcome,
        )


def test_an_answer_in_the_prompt_earns_nothing():
    # case 35: the full prompt shows the tags; an unclosed answer and an empty one stay invalid
    said = ["unclosed</think><answer>Left", "empty</think><answer></answer>", ""]
    template = ChatTemplate(byte_tokenizer())
    (played,) = play(
        lambda e, turn, shown: said[turn],
        [frozen(5, max_turns=3)],
        template,
        close=True,
    )
    assert "<answer>" in template.text(played.episode.prompt_ids)
    assert [turn.valid for turn in played.episode.turns] == [False, False, False]
    assert played.episode.status == "turn_cap"
    assert played.episode.episode_return == pytest.approx(-0.3)


def test_context_limit_ends_an_episode_before_a_turn_that_does_not_fit():
    template = ChatTemplate(byte_tokenizer())
    prompt = len(template.first_prompt_ids(TalkingSession("z", 9).messages))
    following = len(template.next_turn_ids("z saw 3 √..."))
    # Prompt, turn of 3, observation, room for 10: fits exactly; one token less does not.
    exact = prompt + 3 + following + 10
    for limit, turns in ((exact, 2), (exact - 1, 1)):
        session = TalkingSession("z", last_turn=9)
        (played,) = play(
            lambda e, turn, shown: "abc",
            [session],
            template,
            max_new_tokens=10,
            context_limit=limit,
        )
        episode = played.episode
        assert episode.status == session.status == "context_limit"
        assert len(episode.turn_spans) == turns
        assert episode.loss_mask[-1] == 1
        assert len(episode.prompt_ids) + len(episode.completion_ids) <= limit


def test_prompt_without_room_for_a_turn_is_refused():
    with pytest.raises(UserError, match="context_limit 30 has no room"):
        play(lambda e, turn, shown: "a", [TalkingSession("z", 2)], context_limit=30)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"max_new_tokens": 0}, "max_new_tokens must be at least 1, not 0"),
        ({"temperature": -1.0}, "temperature must be 0 or a positive number"),
        ({"temperature": float("nan")}, "temperature must be 0 or a positive number"),
    ],
)
def test_values_out_of_range_are_refused(options, words):
    with pytest.raises(UserError, match=words):
        play(lambda e, turn, shown: "a", [TalkingSession("z", 2)], **options)


def test_no_sessions_no_trajectories():
    assert play(lambda e, turn, shown: "a", []) == []


def test_cut_turns_are_submitted_as_they_are_and_counted():
    session = TalkingSession("x", last_turn=2)
    (played,) = play(lambda e, turn, shown: ["abcdefgh", "ab"][turn], [session], max_new_tokens=4)
    assert session.submitted == ["abcd", "ab"]
    assert played.truncated_turns == 1


def test_trl_fields_hold_the_same_ids_and_one_row_per_episode():
    sessions = [TalkingSession("x", 1), TalkingSession("x", 3)]
    sessions[0].episode_return = None
    played = play(lambda e, turn, shown: "ab" * (turn + 1), sessions)
    fields = trl_fields(played)
    assert {len(rows) for rows in fields.values() if rows is not None} == {2}
    assert fields["logprobs"] is None
    for row, one in enumerate(played):
        assert fields["prompt_ids"][row] == list(one.episode.prompt_ids)
        assert fields["completion_ids"][row] == list(one.episode.completion_ids)
        assert fields["env_mask"][row] == list(one.episode.loss_mask)
    assert fields["episode_return"] == [None, 0.0]
    assert trl_fields(played, sampling_logprobs=True)["logprobs"] == [
        list(one.sampling_logprobs) for one in played
    ]

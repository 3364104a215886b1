"""What an environment measures reaches the turn, and its means reach the step."""

from ragen2_cli.envs import make
from ragen2_cli.envs.search_qa.questions import question
from ragen2_cli.envs.session import Limits, Session
from ragen2_cli.records import Episode
from ragen2_cli.training.recorder import _measured


def test_search_quality_is_logged():
    env = make("search_qa")
    play = Session(env, seed=11, noise_seed=0, limits=Limits.of(env))
    asked = question(11)
    play.submit(f"x</think><answer>search[{asked.text}]</answer>")
    play.submit("x</think><answer>neither</answer>")
    play.submit(f"x</think><answer>finish[{asked.answers[0]} or so]</answer>")
    searched, other, finished = play.turns
    assert set(searched.info) == {"retrieval_precision"}
    assert other.info == {}
    # one shared token of three and one: 2 / 4
    assert finished.info == {"f1": 0.5, "em": 0.0}
    episode = Episode(1, 0, 0, 11, "", play.turns, 0.5, 0.5, False, "failure")
    precision = searched.info["retrieval_precision"]
    assert _measured([episode, episode]) == {
        "env/em": 0.0,
        "env/f1": 0.5,
        "env/retrieval_precision": precision,
    }
    assert _measured([]) == {}

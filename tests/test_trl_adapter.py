"""Our environments inside TRL's own multi-turn loop."""

import inspect

import pytest
from datasets import Dataset

from ragen2_cli import GroupFilter
from ragen2_cli.envs import REGISTRY, make
from ragen2_cli.envs.splits import split_of
from ragen2_cli.envs.trl_adapter import environment_factory, task_rows
from ragen2_cli.errors import UserError
from test_snr_trainer_tools import Scripted, byte_tokenizer
from tiny_trl import config, tiny_model


def test_an_episode_ends_when_its_attempts_are_used_up():
    env = environment_factory("metamath", attempts=2)()
    text = env.reset(seed=3)
    assert make("metamath").reset(3) in text
    assert "is wrong. Try another answer." in env.act("-7")
    assert env.act("-8").endswith("The episode is over.")
    assert env.act("-9") == "The episode is over."
    assert env.get_reward() == 0.0


def test_names_penalties_and_budget():
    env = environment_factory("frozenlake", max_actions=2)()
    text = env.reset(seed=1)
    assert "Actions: Left, Down, Right, Up." in text
    assert "no valid action" in env.act("jump")
    assert env.get_reward() == pytest.approx(-0.1)
    env.act(" left ")
    assert env.act("RIGHT").endswith("The episode is over.")
    env.reset(seed=1)
    assert env.get_reward() == 0.0


def test_an_ungraded_action_has_no_reward():
    env = environment_factory("search_qa", retriever="http://127.0.0.1:9/retrieve")()
    env.reset(seed=0)
    assert env.act("search[x]") == "The episode is over."
    assert env.get_reward() is None


def test_rows_are_on_the_training_side_and_repeat():
    rows = task_rows("bandit", 20, seed=4)
    assert rows == task_rows("bandit", 20, seed=4)
    env = make("bandit")
    for row in rows:
        env.reset(row["seed"])
        assert split_of(env.key()) == "train"


def test_wrong_names_are_refused_at_once():
    with pytest.raises(UserError, match="did you mean 'frozenlake'"):
        environment_factory("frozenlak")


@pytest.mark.parametrize("name", REGISTRY)
def test_every_environment_shows_one_tool(name):
    env = environment_factory(name)()
    tools = {key for key, _ in inspect.getmembers(env, inspect.ismethod) if not key.startswith("_")}
    assert tools == {"reset", "act", "get_reward"}


class Player(Scripted):
    """Calls ``act`` with an answer that depends on the row, then stops."""

    def _generate_single_turn(self, prompt_ids, *_args, **_kwargs):
        texts = []
        for index, ids in enumerate(prompt_ids):
            again = "<tool_response>" in self._tokenizer.decode(ids)
            answer = "" if index % 2 else "0"
            call = f'{{"name": "act", "arguments": {{"action": "{answer}"}}}}'
            said = "done" if again else f"<tool_call>\n{call}\n</tool_call>"
            texts.append(said + "<|im_end|>")
        return [self._tokenizer(text)["input_ids"] for text in texts], None


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_the_trainer_plays_and_is_paid(tmp_path):
    tokenizer = byte_tokenizer()
    built = Player(
        model=tiny_model(vocab=len(tokenizer)),
        args=config(
            tmp_path, rows=8, parts=2, max_completion_length=400, learning_rate=1e-2,
            chat_template_kwargs={"enable_thinking": False},
        ),
        train_dataset=Dataset.from_list(task_rows("metamath", 2)),
        processing_class=tokenizer,
        group_filter=GroupFilter("top-p", 1.0),
        environment_factory=environment_factory("metamath"),
    )  # fmt: skip
    built.masks = []
    built.train()
    # a wrong answer earns 0, an empty one the format penalty
    assert built.rewards_seen == pytest.approx([0.0, -0.1] * 4)
    assert list(built.last_selection.kept) == [0, 1]
    assert built.state.log_history[0]["tools/call_frequency"] == 1.0

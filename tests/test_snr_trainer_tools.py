"""The filter inside TRL's own multi-turn loops: tools and environments owned by the trainer."""

import pytest
from datasets import Dataset
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast
from trl.chat_template_utils import qwen3_chat_template

from ragen2_cli import GroupFilter, SnrGRPOTrainer
from tiny_trl import config, tiny_model

SPECIAL = ["<pad>", "<|im_start|>", "<|im_end|>"]


def byte_tokenizer():
    """One token per byte and a chat template that TRL knows how to call tools with."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {word: index for index, word in enumerate([*SPECIAL, *alphabet])}
    tokenizer = Tokenizer(models.BPE(vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(SPECIAL)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        eos_token="<|im_end|>",
        padding_side="left",
        chat_template=qwen3_chat_template,
    )


class Door:
    """An environment with one tool; every second instance hides a prize behind the door."""

    made = 0

    def __init__(self):
        self.prize = Door.made % 2 == 0
        Door.made += 1
        self.opened = 0

    def reset(self, **_):
        self.opened = 0

    def open_door(self, name: str) -> str:
        """Open a door.

        Args:
            name: Which one.
        """
        self.opened += 1
        return f"{name} is open"

    def get_reward(self):
        return float(self.prize and self.opened == 1)


def open_door(name: str) -> str:
    """Open a door.

    Args:
        name: Which one.
    """
    return f"{name} is open"


class Scripted(SnrGRPOTrainer):
    """First calls the tool, then says a word whose length depends on the row."""

    def _generate_single_turn(self, prompt_ids, *_args, **_kwargs):
        called = '<tool_call>\n{"name": "open_door", "arguments": {"name": "left"}}\n</tool_call>'
        after_tool = "is open" in self._tokenizer.decode(prompt_ids[0])
        texts = [
            ("ok" * (1 + index % 3) if after_tool else called) + "<|im_end|>"
            for index in range(len(prompt_ids))
        ]
        return [self._tokenizer(text)["input_ids"] for text in texts], None

    def on_selection(self, selection, advantages_N, rewards_N, inputs):
        self.rewards_seen = rewards_N.tolist()

    def _compute_loss(self, model, inputs):
        self.masks.append(
            (inputs["completion_ids"], inputs["completion_mask"] * inputs["tool_mask"])
        )
        return super()._compute_loss(model, inputs)


def prompts():
    return Dataset.from_dict(
        {"prompt": [[{"role": "user", "content": f"room {number}"}] for number in range(2)]}
    )


def run(tmp_path, **keywords):
    tokenizer = byte_tokenizer()
    built = Scripted(
        model=tiny_model(vocab=len(tokenizer)),
        args=config(
            tmp_path, rows=8, parts=2, max_completion_length=200, learning_rate=1e-2,
            chat_template_kwargs={"enable_thinking": False},
        ),
        train_dataset=prompts(),
        processing_class=tokenizer,
        group_filter=GroupFilter("top-p", 1.0),
        **keywords,
    )  # fmt: skip
    built.masks = []
    built.train()
    return built


def trained_text(built):
    return [
        built._tokenizer.decode(ids[mask.bool()])
        for batch_ids, batch_mask in built.masks
        for ids, mask in zip(batch_ids, batch_mask, strict=True)
    ]


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_an_environment_factory_is_filtered(tmp_path):
    Door.made = 0
    built = run(tmp_path, environment_factory=Door)
    # Every second instance of each group of 4 is rewarded, in both groups.
    assert built.rewards_seen == [1, 0] * 4
    assert list(built.last_selection.kept) == [0, 1]
    texts = trained_text(built)
    assert len(texts) == 8
    assert all(text.startswith("<tool_call>") and "ok" in text for text in texts)
    assert not any("is open" in text for text in texts)  # the tool's words are not trained on


def test_a_script_with_tools_is_filtered(tmp_path):
    def reward(completions, **_):
        # The first group gets 1, 0, 1, 0; the second one ties.
        return [float(index in (0, 2)) for index in range(len(completions))]

    built = run(tmp_path, tools=[open_door], reward_funcs=reward)
    assert list(built.last_selection.kept) == [0]
    assert len(trained_text(built)) == 4
    assert built.state.log_history[0]["tools/call_frequency"] == 1.0
    assert built.state.log_history[0]["kept_groups"] == 1

"""Chat templates as ids: what stands around a sampled turn, and which templates are refused."""

import pytest

from ragen2_cli.errors import UserError
from ragen2_cli.rollout.template import ChatTemplate
from rollout_helpers import CHATML, FORGETFUL, LLAMA3, PLAIN, byte_tokenizer

SYSTEM = {"role": "system", "content": "Be brief."}
ASKED = {"role": "user", "content": "Where?"}
SAID = "why √ </think><answer>Left</answer>"


@pytest.mark.parametrize("source", [CHATML, LLAMA3, PLAIN])
def test_grown_conversation_is_the_templates_own_rendering(source):
    tokenizer = byte_tokenizer(source)
    template = ChatTemplate(tokenizer)
    ids = template.first_prompt_ids([SYSTEM, ASKED])
    said = template.turn_ids(SAID, close=True)
    ids += said + template.next_turn_ids("And now?", sampled_ids=said)
    messages = [
        SYSTEM,
        ASKED,
        {"role": "assistant", "content": "<think>" + SAID},
        {"role": "user", "content": "And now?"},
    ]
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    if source == PLAIN:  # its turns have no marker, so a sampled one ends with nothing to drop
        assert template.turn_ids("x", close=True) == template.turn_ids("x")
    assert ids == tokenizer.encode(text + "<think>", add_special_tokens=False)
    assert template.text(ids).endswith("<think>")


def test_missing_end_of_turn_marker_is_added_once():
    template = ChatTemplate(byte_tokenizer())
    cut = template.turn_ids("hmm")
    closed = template.turn_ids("hmm", close=True)
    marker = template.tokenizer.eos_token_id
    assert closed == [*cut, marker]
    after_cut = template.next_turn_ids("next", sampled_ids=cut)
    after_closed = template.next_turn_ids("next", sampled_ids=closed)
    assert after_cut == [marker, *after_closed]
    assert cut + after_cut == closed + after_closed


def test_stop_rule_knows_markers_and_the_closing_answer_tag():
    tokenizer = byte_tokenizer(tags=False)  # the tag is nine tokens here
    template = ChatTemplate(tokenizer, stop_ids=[5])
    ids = template.turn_ids("a > b <answer>Left</answer>")
    reached = [template.stop.reached(ids[: n + 1]) for n in range(len(ids))]
    assert reached == [False] * (len(ids) - 1) + [True]
    assert template.stop.reached([7, tokenizer.eos_token_id])
    assert template.stop.reached([7, 5])
    assert not template.stop.reached(template.turn_ids("</answer"))
    table = template.stop.suspects_V(len(tokenizer) + 10)
    assert table.shape == (len(tokenizer) + 10,)
    assert {int(i) for i in table.nonzero()[0]} == template.stop.suspects
    # One byte completes the text; where the tags are tokens, "</think>" does not, "</answer>" does.
    assert template.stop.suspects - template.stop.ids == set(template.turn_ids(">"))
    tagged = ChatTemplate(byte_tokenizer())
    completing = tagged.stop.suspects - tagged.stop.ids
    assert completing == {*tagged.turn_ids(">"), *tagged.turn_ids("</answer>")}
    silent = ChatTemplate(tokenizer, stop_text="")
    assert not silent.stop.reached(template.turn_ids("</answer>"))


def test_completion_text_drops_only_the_stop_id():
    template = ChatTemplate(byte_tokenizer())
    ids = template.turn_ids("😀 a  ", close=True)
    assert template.completion_text(ids) == "😀 a  "
    assert template.completion_text(ids[:-1]) == "😀 a  "


def test_template_that_forgets_thoughts_still_keeps_what_was_sampled():
    template = ChatTemplate(byte_tokenizer(FORGETFUL))
    assert template.rewrites_thoughts
    assert not ChatTemplate(byte_tokenizer()).rewrites_thoughts
    said = template.turn_ids(SAID, close=True)
    whole = (
        template.first_prompt_ids([ASKED])
        + said
        + template.next_turn_ids("And now?", sampled_ids=said)
    )
    assert SAID in template.text(whole)


@pytest.mark.parametrize(
    "body",
    [
        "{{ m['content'] | upper }}",
        "{% if m['role'] != 'assistant' %}{{ m['content'] }}{% endif %}",
        "{{ m['content'][:4] if m['role'] == 'assistant' else m['content'] }}",
        "{{ loop.index }}{{ m['content'] }}",
        "{% if loop.last or m['role'] != 'assistant' %}{{ m['content'] }}{% endif %}",
    ],
)
def test_template_that_rewrites_turns_is_refused_by_name(body):
    tokenizer = byte_tokenizer(
        CHATML.replace("{{ m['content'] }}", body), specials=("<e>", ["<e>"])
    )
    tokenizer.name_or_path = "some/model"
    with pytest.raises(UserError, match="some/model: its chat template strips or rewrites") as info:
        ChatTemplate(tokenizer)
    assert "\n" not in str(info.value)


def test_missing_template_or_pad_token_is_one_line():
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = None
    with pytest.raises(UserError, match="has no chat template"):
        ChatTemplate(tokenizer)
    tokenizer = byte_tokenizer()
    tokenizer.pad_token = None
    with pytest.raises(UserError, match="has no pad token"):
        ChatTemplate(tokenizer)


@pytest.mark.parametrize(
    "guard",
    [
        "{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system') }}{% endif %}",
        "{% set messages = messages | selectattr('role', 'ne', 'system') | list %}",
    ],
)
def test_system_text_joins_the_user_turn_where_the_template_has_no_system_role(guard):
    template = ChatTemplate(byte_tokenizer(guard + CHATML, specials=("<|im_end|>", ["<|im_end|>"])))
    text = template.text(template.first_prompt_ids([SYSTEM, ASKED]))
    assert "user\nBe brief.\n\nWhere?<|im_end|>" in text


def test_generation_prompt_that_opens_the_thought_gets_no_second_tag():
    source = CHATML.replace("assistant\n{% endif %}", "assistant\n<think>\n{% endif %}")
    template = ChatTemplate(byte_tokenizer(source, specials=("<|im_end|>", ["<|im_end|>"])))
    first = template.text(template.first_prompt_ids([ASKED]))
    following = template.text(template.next_turn_ids("And now?"))
    assert first.endswith("assistant\n<think>\n")
    assert first.count("<think>") == following.count("<think>") == 1


def test_white_space_before_an_assistants_words_belongs_to_the_prompt():
    # Templates without a generation prompt write "[INST] user[/INST] assistant</s>".
    source = (
        "<s>{% for m in messages %}{% if m['role'] == 'user' %}[INST] {{ m['content'] }}[/INST]"
        "{% else %} {{ m['content'] }}</s>{% endif %}{% endfor %}"
    )
    template = ChatTemplate(byte_tokenizer(source, specials=("</s>", ["</s>"])))
    said = template.turn_ids("so</think>", close=True)
    whole = template.first_prompt_ids([ASKED]) + said
    whole += template.next_turn_ids("And now?", sampled_ids=said)
    expected = "<s>[INST] Where?[/INST] <think>so</think></s>[INST] And now?[/INST] <think>"
    assert template.text(whole) == expected


def test_user_words_are_trimmed_where_the_template_trims_them():
    assert "\n\nhey<|eot_id|>" in ChatTemplate(byte_tokenizer(LLAMA3)).text(
        ChatTemplate(byte_tokenizer(LLAMA3)).next_turn_ids(" hey \n")
    )
    template = ChatTemplate(byte_tokenizer())
    assert "user\n hey \n<|im_end|>" in template.text(template.next_turn_ids(" hey \n"))

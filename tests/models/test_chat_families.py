"""Golden texts per family, and the property that training rests on: a prompt extends the ledger."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken
from transformers import PreTrainedTokenizerFast

from repairgym.inference.chat_families import CHATML, FAMILIES, LLAMA3, QWEN3_DIRECT, ChatFamily, Message
from repairgym.inference.renderer import ChatRenderer
from repairgym.inference.tokenizer import train_tokenizer
from repairgym.ledger import LedgerBuilder

CONVERSATION = [
    Message("system", "Repair the code."),
    Message("user", "f(1) returns 2"),
    Message("assistant", '<think>\nwhere is f?\n</think>\n\n<tool_call>\n{"name": "search"}\n</tool_call>'),
    Message("user", "<tool_response>\nm.py:1\n</tool_response>"),
]
GOLDEN = {
    "chatml": (
        "<|im_start|>system\nRepair the code.<|im_end|>\n"
        "<|im_start|>user\nf(1) returns 2<|im_end|>\n"
        "<|im_start|>assistant\n<think>\nwhere is f?\n</think>\n\n"
        '<tool_call>\n{"name": "search"}\n</tool_call><|im_end|>\n'
        "<|im_start|>user\n<tool_response>\nm.py:1\n</tool_response><|im_end|>\n"
        "<|im_start|>assistant\n"
    ),
    "qwen3-direct": (
        "<|im_start|>system\nRepair the code.<|im_end|>\n"
        "<|im_start|>user\nf(1) returns 2<|im_end|>\n"
        "<|im_start|>assistant\n<think>\nwhere is f?\n</think>\n\n"
        '<tool_call>\n{"name": "search"}\n</tool_call><|im_end|>\n'
        "<|im_start|>user\n<tool_response>\nm.py:1\n</tool_response><|im_end|>\n"
        "<|im_start|>assistant\n<think>\n\n</think>\n\n"
    ),
    "llama3": (
        "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nRepair the code.<|eot_id|>"
        "<|start_header_id|>user<|end_header_id|>\n\nf(1) returns 2<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\n<think>\nwhere is f?\n</think>\n\n"
        '<tool_call>\n{"name": "search"}\n</tool_call><|eot_id|>'
        "<|start_header_id|>user<|end_header_id|>\n\n<tool_response>\nm.py:1\n</tool_response><|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\n"
    ),
}
SPECIAL = ("<|im_start|>", "<|im_end|>", "<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>")


@pytest.fixture(scope="module")
def renderers() -> dict[str, ChatRenderer]:
    """One tokenizer with the special tokens of all families; thoughts are single tokens, as Qwen3 has them."""
    tokenizer = train_tokenizer(["def f(a, b):\n    return a < b\n"] * 9, 400, 10)
    tokenizer.add_special_tokens({"additional_special_tokens": [*SPECIAL]})
    tokenizer.add_tokens([AddedToken(text, special=False, normalized=False) for text in ("<think>", "</think>")])
    return {name: ChatRenderer(tokenizer, family=family) for name, family in FAMILIES.items()}


@pytest.mark.parametrize("name", FAMILIES)
def test_golden_texts(renderers: dict[str, ChatRenderer], name: str) -> None:
    renderer = renderers[name]
    assert FAMILIES[name].text_of(CONVERSATION) == GOLDEN[name]
    ids = renderer.conversation_ids(CONVERSATION)
    assert renderer.text(ids) == GOLDEN[name]
    assert renderer.messages(ids) == CONVERSATION


def test_the_family_follows_from_the_tokenizer() -> None:
    llama = train_tokenizer(["def f(a, b)"] * 9, 400, 10)
    assert ChatRenderer(llama).family is CHATML
    base = PreTrainedTokenizerFast(tokenizer_object=llama.backend_tokenizer)
    base.add_special_tokens({"additional_special_tokens": [*SPECIAL[2:]]})
    assert ChatRenderer(base, family=LLAMA3).family is LLAMA3


TEXTS = st.lists(
    st.sampled_from(["a", " ", "\n", "é", "漢", *SPECIAL, "</think>", "<think>", "user"]), max_size=10
).map("".join)
TURNS = st.lists(st.tuples(TEXTS, st.booleans(), TEXTS), max_size=4)


@pytest.mark.parametrize("family", [CHATML, QWEN3_DIRECT, LLAMA3], ids=lambda family: family.name)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(system=TEXTS, opening=TEXTS, turns=TURNS)
def test_prompts_extend_the_ledger(
    renderers: dict[str, ChatRenderer],
    family: ChatFamily,
    system: str,
    opening: str,
    turns: list[tuple[str, bool, str]],
) -> None:
    renderer = renderers[family.name]
    ledger = LedgerBuilder()
    ledger.append_context(renderer.open_ids(opening, system))
    prompts, completions = [], []
    said = [Message("system", system)] * bool(system) + [Message("user", opening)]
    for action, is_stopped, observation in turns:
        ids = renderer.action_ids(action)
        ids = ids if is_stopped else ids[:-1]
        prompts.append(list(ledger.token_ids))
        completions.append(ids)
        ledger.append_action(ids, [0.0] * len(ids), 0)
        ledger.append_context(renderer.observation_ids(observation, is_stopped))
        said += [Message("assistant", action), Message("user", observation)]
    prompts.append(list(ledger.token_ids))
    for (before, after), completion in zip(itertools.pairwise(prompts), completions, strict=True):
        assert after[: len(before) + len(completion)] == before + completion
    # What was said is read back, and no text became a special token: then it would be a message more or less.
    assert [message.role for message in renderer.messages(prompts[-1])] == [message.role for message in said]
    prefix = family.answer_prefix
    for read, meant in zip(renderer.messages(prompts[-1]), said, strict=True):
        assert read.text == (meant.text.removeprefix(prefix) if meant.role == "assistant" else meant.text)

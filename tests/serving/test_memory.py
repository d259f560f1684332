"""A conversation that returns as text continues with the sampled tokens, or forks where it was changed."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from repairgym.inference.renderer import ChatRenderer
from repairgym.serving.dialects.chat import ChatDialect
from repairgym.serving.memory import ConversationMemory
from repairgym.serving.records import ChatRequest

TEXTS = st.lists(st.sampled_from(["a", " <", "\n", "é", "<|im_end|>"]), max_size=6).map("".join)
# Ids that no tokenizer would give for their own text: a model may sample any.
SAMPLED = st.lists(st.integers(min_value=3, max_value=300), max_size=6)
EXCHANGES = st.lists(st.tuples(SAMPLED, st.booleans(), TEXTS), min_size=1, max_size=4)


def request(messages: list[dict[str, Any]]) -> ChatRequest:
    return ChatDialect().read({"messages": messages})


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(prompt_text=TEXTS, exchanges=EXCHANGES, changed=st.integers(min_value=0, max_value=3))
def test_prompts_extend_the_ledger_or_fork(
    renderer: ChatRenderer, prompt_text: str, exchanges: list[tuple[list[int], bool, str]], changed: int
) -> None:
    memory = ConversationMemory(renderer)
    messages: list[dict[str, Any]] = [{"role": "user", "content": prompt_text}]
    for sampled, is_stopped, observation in exchanges:
        chat = request(messages)
        prompt = memory.prompt_ids(chat)
        completion = [*sampled, *(renderer.stop_token_ids if is_stopped else ())]
        answer = {"role": "assistant", "content": renderer.decode(completion)}
        memory.remember(chat, answer, [*prompt, *completion], completion[-1] if is_stopped else None)
        # A client may give a message back with fields of its own.
        messages = [*messages, answer | {"refusal": None}, {"role": "user", "content": observation}]
        extended = memory.prompt_ids(request(messages))
        assert extended[: len(prompt) + len(completion)] == prompt + completion
        stop_id = completion[-1] if is_stopped else None
        assert extended[len(prompt) + len(completion) :] == renderer.observation_ids(observation, stop_id)
    place = 1 + 2 * (changed % len(exchanges))
    messages[place] = messages[place] | {"content": messages[place]["content"] + "!"}
    chat = request(messages)
    forked = memory.prompt_ids(chat)
    assert [message.text for message in renderer.messages(forked)][place].endswith("!")


def test_a_message_with_calls_may_be_formatted_differently(renderer: ChatRenderer) -> None:
    memory = ConversationMemory(renderer)
    opening = [{"role": "user", "content": "go"}]

    def call(arguments: str) -> dict[str, Any]:
        function = {"name": "bash", "arguments": arguments}
        return {"role": "assistant", "content": None, "tool_calls": [{"id": "1", "function": function}]}

    memory.remember(request(opening), call('{"command": "ls", "n": 1}'), [7, 8, 9], 9)
    result = {"role": "tool", "content": "m.py", "tool_call_id": "1"}
    known = memory.prompt_ids(request([*opening, call('{"n":1,"command":"ls"}'), result]))
    other = memory.prompt_ids(request([*opening, call('{"command": "rm"}'), result]))
    assert known[:3] == [7, 8, 9]
    assert other[:3] != [7, 8, 9]
    assert "<tool_response>\nm.py\n</tool_response>" in renderer.text(known)


def test_long_conversations_are_bounded_by_their_tokens(renderer: ChatRenderer) -> None:
    memory = ConversationMemory(renderer, max_tokens=12)
    answer = {"role": "assistant", "content": "ok"}
    openings = [[{"role": "user", "content": text}] for text in "abc"]
    for number, opening in enumerate(openings):
        for _ in range(2):  # the same one takes its place once
            memory.remember(request(opening), answer, [number] * 5, number)
    again = {"role": "user", "content": "more"}
    prompts = [memory.prompt_ids(request([*opening, answer, again])) for opening in openings]
    assert [prompt[:5] == [number] * 5 for number, prompt in enumerate(prompts)] == [False, True, True]


def test_the_oldest_conversations_are_forgotten(renderer: ChatRenderer) -> None:
    memory = ConversationMemory(renderer, max_entries=2)
    answer = {"role": "assistant", "content": "ok"}
    openings = [[{"role": "user", "content": text}] for text in "abc"]
    for number, opening in enumerate(openings):
        memory.remember(request(opening), answer, [number] * 5, number)
    again = {"role": "user", "content": "more"}
    prompts = [memory.prompt_ids(request([*opening, answer, again])) for opening in openings]
    assert [prompt[:5] == [number] * 5 for number, prompt in enumerate(prompts)] == [False, True, True]

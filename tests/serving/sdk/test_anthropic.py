"""Documented calls of Anthropic's client; each function `call_...` is one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from anthropic import Anthropic, AsyncAnthropic, AuthenticationError, BadRequestError, NotFoundError

pytestmark = pytest.mark.slow  # a server of its own

HELLO: list[Any] = [{"role": "user", "content": "def f(a, b):"}]
ASK: dict[str, Any] = {"model": "base", "max_tokens": 8, "messages": HELLO, "extra_body": {"seed": 3}}
LONG = ASK | {"max_tokens": 60}
SAVE: dict[str, Any] = {
    "name": "save",
    "description": "Save the file.",
    "input_schema": {
        "type": "object",
        "properties": {"mode": {"type": "string", "enum": ["new", "old"]}},
        "required": ["mode"],
        "additionalProperties": False,
    },
}


@pytest.fixture(scope="module")
def client(served: tuple[str, str]) -> Anthropic:
    return Anthropic(base_url=served[0], api_key=served[1], max_retries=0, timeout=60)


def call_plain(client: Anthropic) -> None:
    message = client.messages.create(**ASK)
    assert message.role == "assistant"
    assert message.stop_reason in ("end_turn", "max_tokens")
    assert 0 < message.usage.output_tokens <= 8


def call_system_and_blocks(client: Anthropic) -> None:
    messages: list[Any] = [
        {"role": "user", "content": [{"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}]},
        {"role": "assistant", "content": "b"},
        {"role": "user", "content": "c"},
    ]
    system: Any = [{"type": "text", "text": "Answer briefly."}]
    assert client.messages.create(**ASK | {"messages": messages}, system=system).content


def call_sampling(client: Anthropic) -> None:
    narrow = client.messages.create(**ASK | {"extra_body": {"top_k": 1}})
    greedy = client.messages.create(**ASK | {"extra_body": {"temperature": 0.0}})
    assert narrow.content[0].text == greedy.content[0].text  # type: ignore[union-attr]


def call_stop_sequences(client: Anthropic) -> None:
    whole = client.messages.create(**ASK).content[0].text  # type: ignore[union-attr]
    cut = client.messages.create(**ASK, stop_sequences=[whole[3:5]])
    assert (cut.stop_reason, cut.stop_sequence) == ("stop_sequence", whole[3:5])
    assert cut.content[0].text == whole[: whole.index(whole[3:5])]  # type: ignore[union-attr]


def call_answer_given_back(client: Anthropic) -> None:
    body = ASK | {"extra_body": {"seed": 3, "return_token_ids": True}}
    first = client.messages.create(**body)
    messages = [*HELLO, {"role": "assistant", "content": first.content}, {"role": "user", "content": "more"}]
    before, second = first.model_dump(), client.messages.create(**body | {"messages": messages}).model_dump()
    tokens = before["prompt_token_ids"] + before["token_ids"]
    assert second["prompt_token_ids"][: len(tokens)] == tokens


def call_stream_events(client: Anthropic) -> None:
    events = list(client.messages.create(**ASK, stream=True))
    assert [events[0].type, events[-2].type, events[-1].type] == ["message_start", "message_delta", "message_stop"]
    text = "".join(event.delta.text for event in events if event.type == "content_block_delta")  # type: ignore[union-attr]
    assert text == client.messages.create(**ASK).content[0].text  # type: ignore[union-attr]


def call_stream_helper(client: Anthropic) -> None:
    with client.messages.stream(**ASK) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == final.content[0].text  # type: ignore[union-attr]
    assert final.usage.output_tokens > 0


def call_tool_any_and_result(client: Anthropic) -> None:
    message = client.messages.create(**LONG, tools=[SAVE], tool_choice={"type": "any"})
    [use] = message.content
    assert message.stop_reason == "tool_use"
    assert use.type == "tool_use"
    assert use.input["mode"] in ("new", "old")
    result = {"type": "tool_result", "tool_use_id": use.id, "content": [{"type": "text", "text": "saved"}]}
    messages: list[Any] = [
        *HELLO,
        {"role": "assistant", "content": message.content},
        {"role": "user", "content": [result, {"type": "text", "text": "and now?"}]},
    ]
    assert client.messages.create(**ASK | {"messages": messages}, tools=[SAVE]).usage.input_tokens > 0


def call_tool_streamed(client: Anthropic) -> None:
    with client.messages.stream(**LONG, tools=[SAVE], tool_choice={"type": "tool", "name": "save"}) as stream:
        [use] = stream.get_final_message().content
    assert use.input["mode"] in ("new", "old")  # type: ignore[union-attr]


def call_tool_none(client: Anthropic) -> None:
    assert client.messages.create(**ASK, tools=[SAVE], tool_choice={"type": "none"}).stop_reason != "tool_use"


def call_count_tokens(client: Anthropic) -> None:
    counted = client.messages.count_tokens(model="base", messages=HELLO)
    assert counted.input_tokens == client.messages.create(**ASK).usage.input_tokens


def call_models(client: Anthropic) -> None:
    assert [model.id for model in client.models.list()] == ["base"]
    assert client.models.retrieve("base").display_name == "base"


def call_async(client: Anthropic) -> None:
    async def ask() -> list[str]:
        async with AsyncAnthropic(base_url=str(client.base_url), api_key=client.api_key, max_retries=0) as other:
            messages = await asyncio.gather(*(other.messages.create(**ASK) for _ in range(4)))
            return [message.content[0].text for message in messages]  # type: ignore[union-attr]

    assert len(set(asyncio.run(ask()))) == 1


def call_errors(client: Anthropic) -> None:
    with pytest.raises(NotFoundError) as other:
        client.messages.create(**ASK | {"model": "claude"})
    assert other.value.body["error"]["type"] == "not_found_error"  # type: ignore[index]
    with pytest.raises(BadRequestError, match="only text"):
        client.messages.create(**ASK | {"messages": [{"role": "user", "content": [{"type": "image"}]}]})
    with pytest.raises(BadRequestError, match="thinking"):
        client.messages.create(**ASK, thinking={"type": "enabled", "budget_tokens": 1024})
    with pytest.raises(AuthenticationError):
        client.with_options(api_key="wrong").messages.create(**ASK)


CALLS: list[Callable[[Anthropic], None]] = [call for name, call in list(globals().items()) if name.startswith("call_")]


@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.__name__.removeprefix("call_"))
def test_calls(client: Anthropic, call: Callable[[Anthropic], None]) -> None:
    call(client)

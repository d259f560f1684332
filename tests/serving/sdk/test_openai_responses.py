"""Documented calls of OpenAI's client for responses; each function `call_...` is one."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Literal

import pytest
from openai import BadRequestError, OpenAI
from pydantic import BaseModel, ConfigDict

pytestmark = pytest.mark.slow  # a server of its own

ASK: dict[str, Any] = {"model": "base", "input": "def f(a, b):", "max_output_tokens": 8, "extra_body": {"seed": 3}}
LONG = ASK | {"max_output_tokens": 60}
SAVE: dict[str, Any] = {
    "type": "function",
    "name": "save",
    "strict": True,
    "parameters": {
        "type": "object",
        "properties": {"mode": {"type": "string", "enum": ["new", "old"]}},
        "required": ["mode"],
        "additionalProperties": False,
    },
}


class Verdict(BaseModel):
    """A structured answer that even a small model finishes."""

    model_config = ConfigDict(extra="forbid")

    kind: Literal["passed", "failed"]
    is_sure: bool


@pytest.fixture(scope="module")
def client(served: tuple[str, str]) -> OpenAI:
    return OpenAI(base_url=f"{served[0]}/v1", api_key=served[1], max_retries=0, timeout=60)


def call_plain(client: OpenAI) -> None:
    reply = client.responses.create(**ASK)
    assert reply.output_text
    assert reply.usage is not None
    assert reply.usage.output_tokens <= 8
    assert reply.status in ("completed", "incomplete")


def call_instructions_and_items(client: OpenAI) -> None:
    items: list[Any] = [
        {"role": "user", "content": [{"type": "input_text", "text": "a"}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "b"}]},
        {"role": "user", "content": "c"},
    ]
    reply = client.responses.create(**ASK | {"input": items}, instructions="Answer briefly.", metadata={"a": "b"})
    assert reply.instructions == "Answer briefly."


def call_answer_given_back(client: OpenAI) -> None:
    body = ASK | {"extra_body": {"seed": 3, "return_token_ids": True}}
    first = client.responses.create(**body)
    items: list[Any] = [{"role": "user", "content": ASK["input"]}, *first.output, {"role": "user", "content": "more"}]
    second = client.responses.create(**body | {"input": items}).model_dump()
    before = first.model_dump()
    tokens = before["prompt_token_ids"] + before["token_ids"]
    assert second["prompt_token_ids"][: len(tokens)] == tokens


def call_stream(client: OpenAI) -> None:
    whole = client.responses.create(**ASK)
    events = list(client.responses.create(**ASK, stream=True))
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == whole.output_text
    assert events[0].type == "response.created"
    assert events[-1].type in ("response.completed", "response.incomplete")
    assert [event.sequence_number for event in events] == list(range(len(events)))


def call_stream_helper(client: OpenAI) -> None:
    body = {name: value for name, value in ASK.items() if name != "model"}
    with client.responses.stream(model="base", **body | {"temperature": 0}) as stream:
        kinds = {event.type for event in stream}
    assert {"response.output_text.delta", "response.output_item.done"} <= kinds


def call_log_probs(client: OpenAI) -> None:
    reply = client.responses.create(**ASK, include=["message.output_text.logprobs"], top_logprobs=2)
    assert reply.usage is not None
    log_probs = reply.output[0].content[0].logprobs  # type: ignore[union-attr]
    assert log_probs is not None
    assert len(log_probs) == reply.usage.output_tokens
    assert len(log_probs[0].top_logprobs) == 2


def call_tool_required_and_result(client: OpenAI) -> None:
    reply = client.responses.create(**LONG, tools=[SAVE], tool_choice="required")
    [call] = reply.output
    assert call.type == "function_call"
    assert json.loads(call.arguments)["mode"] in ("new", "old")
    items: list[Any] = [
        {"role": "user", "content": ASK["input"]},
        call,
        {"type": "function_call_output", "call_id": call.call_id, "output": "saved"},
    ]
    assert client.responses.create(**ASK | {"input": items}, tools=[SAVE]).id.startswith("resp_")


def call_tool_streamed(client: OpenAI) -> None:
    named: Any = {"type": "function", "name": "save"}
    events = list(client.responses.create(**LONG, tools=[SAVE], tool_choice=named, stream=True))
    [done] = [event for event in events if event.type == "response.function_call_arguments.done"]
    assert events[-1].response.output[0].arguments == done.arguments  # type: ignore[union-attr]


def call_parse(client: OpenAI) -> None:
    assert isinstance(client.responses.parse(**LONG, text_format=Verdict).output_parsed, Verdict)


def call_errors(client: OpenAI) -> None:
    with pytest.raises(BadRequestError, match="previous_response_id"):
        client.responses.create(**ASK, previous_response_id="resp_1")
    with pytest.raises(BadRequestError, match="tools of a provider"):
        client.responses.create(**ASK, tools=[{"type": "web_search"}])


CALLS: list[Callable[[OpenAI], None]] = [call for name, call in list(globals().items()) if name.startswith("call_")]


@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.__name__.removeprefix("call_"))
def test_calls(client: OpenAI, call: Callable[[OpenAI], None]) -> None:
    call(client)

"""Documented calls of OpenAI's client for chat completions, completions and models; each function `call_...` is one."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Callable
from typing import Any, Literal

import pytest
from openai import APIStatusError, AsyncOpenAI, BadRequestError, NotFoundError, OpenAI
from pydantic import BaseModel, ConfigDict

pytestmark = pytest.mark.slow  # a server of its own

HELLO: list[Any] = [{"role": "user", "content": "def f(a, b):"}]
ASK: dict[str, Any] = {"model": "base", "messages": HELLO, "max_tokens": 8, "seed": 3}
TEXT: dict[str, Any] = {"model": "base", "prompt": "def f(", "max_tokens": 6, "seed": 3}
TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "read",
        "description": "Read a file.",
        "parameters": {
            "type": "object",
            "properties": {"line": {"enum": [1, 2]}},
            "required": ["line"],
            "additionalProperties": False,
        },
    },
}


SAVE: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "save",
        "parameters": {"type": "object", "properties": {"mode": {"enum": ["new", "old"]}}, "required": ["mode"]},
    },
}
SAVE["function"]["parameters"]["additionalProperties"] = False


class Verdict(BaseModel):
    """A structured answer that even a small model finishes."""

    model_config = ConfigDict(extra="forbid")

    kind: Literal["passed", "failed"]
    is_sure: bool


@pytest.fixture(scope="module")
def client(served: tuple[str, str]) -> OpenAI:
    return OpenAI(base_url=f"{served[0]}/v1", api_key=served[1], max_retries=0, timeout=60)


def call_chat_plain(client: OpenAI) -> None:
    reply = client.chat.completions.create(**ASK)
    assert reply.choices[0].message.role == "assistant"
    assert reply.choices[0].finish_reason in ("stop", "length")
    assert reply.usage is not None
    assert 0 < reply.usage.completion_tokens <= 8


def call_chat_all_roles_and_parts(client: OpenAI) -> None:
    messages: list[Any] = [
        {"role": "developer", "content": "Answer briefly."},
        {"role": "user", "content": [{"type": "text", "text": "a "}, {"type": "text", "text": "b"}]},
        {"role": "assistant", "content": "c"},
        {"role": "user", "name": "me", "content": "d"},
    ]
    assert client.chat.completions.create(**ASK | {"messages": messages}).choices


def call_chat_bound_by_max_completion_tokens(client: OpenAI) -> None:
    body = {name: value for name, value in ASK.items() if name != "max_tokens"}
    reply = client.chat.completions.create(**body, max_completion_tokens=2)
    assert reply.usage is not None
    assert reply.usage.completion_tokens <= 2


def call_chat_greedy_is_repeatable(client: OpenAI) -> None:
    first, second = (client.chat.completions.create(**ASK | {"temperature": 0, "seed": seed}) for seed in (1, 2))
    assert first.choices[0].message.content == second.choices[0].message.content


def call_chat_seed_is_repeatable(client: OpenAI) -> None:
    first, second = (client.chat.completions.create(**ASK) for _ in range(2))
    assert first.choices[0].message.content == second.choices[0].message.content


def call_chat_top_p(client: OpenAI) -> None:
    narrow = client.chat.completions.create(**ASK | {"top_p": 1e-6})
    greedy = client.chat.completions.create(**ASK | {"temperature": 0})
    assert narrow.choices[0].message.content == greedy.choices[0].message.content


def call_chat_n(client: OpenAI) -> None:
    reply = client.chat.completions.create(**ASK | {"n": 3})
    assert [choice.index for choice in reply.choices] == [0, 1, 2]
    assert len({choice.message.content for choice in reply.choices}) > 1


def call_chat_stop_text(client: OpenAI) -> None:
    whole = client.chat.completions.create(**ASK).choices[0].message.content or ""
    stop = whole[3:5]
    cut = client.chat.completions.create(**ASK, stop=[stop, "never there"])
    assert cut.choices[0].message.content == whole[: whole.index(stop)]
    assert cut.choices[0].finish_reason == "stop"


def call_chat_log_probs(client: OpenAI) -> None:
    reply = client.chat.completions.create(**ASK, logprobs=True, top_logprobs=4)
    content = reply.choices[0].logprobs.content  # type: ignore[union-attr]
    assert content is not None
    assert reply.usage is not None
    assert len(content) == reply.usage.completion_tokens
    for token in content:
        assert len(token.top_logprobs) == 4
        assert token.logprob <= token.top_logprobs[0].logprob
        assert sum(math.exp(other.logprob) for other in token.top_logprobs) <= 1.0001


def call_chat_logit_bias(client: OpenAI) -> None:
    reply = client.chat.completions.create(**ASK, logit_bias={"300": 100}, extra_body={"return_token_ids": True})
    assert set(reply.choices[0].model_dump()["token_ids"]) == {300}


def call_chat_penalties(client: OpenAI) -> None:
    body = ASK | {"temperature": 0, "max_tokens": 12, "logit_bias": {"300": 12, "301": 11.9}}
    reply = client.chat.completions.create(
        **body, presence_penalty=2, frequency_penalty=2, extra_body={"return_token_ids": True}
    )
    ids = reply.choices[0].model_dump()["token_ids"]
    assert {300, 301} <= set(ids)


def call_chat_stream(client: OpenAI) -> None:
    whole = client.chat.completions.create(**ASK)
    chunks = list(client.chat.completions.create(**ASK, stream=True))
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert text == whole.choices[0].message.content
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-1].choices[0].finish_reason == whole.choices[0].finish_reason
    assert len(chunks) > 4


def call_chat_stream_usage(client: OpenAI) -> None:
    chunks = list(client.chat.completions.create(**ASK, stream=True, stream_options={"include_usage": True}))
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.total_tokens > chunks[-1].usage.completion_tokens > 0
    assert chunks[-1].choices == []


def call_chat_stream_n_and_log_probs(client: OpenAI) -> None:
    body = ASK | {"n": 2, "logprobs": True, "top_logprobs": 2}
    whole = client.chat.completions.create(**body)
    seen: dict[int, list[float]] = {0: [], 1: []}
    for chunk in client.chat.completions.create(**body, stream=True):
        choice = chunk.choices[0]
        if choice.logprobs is not None and choice.logprobs.content:
            seen[choice.index] += [token.logprob for token in choice.logprobs.content]
    for choice in whole.choices:
        assert seen[choice.index] == pytest.approx([token.logprob for token in choice.logprobs.content], abs=1e-4)  # type: ignore[union-attr]


def call_chat_stream_stop_text(client: OpenAI) -> None:
    whole = client.chat.completions.create(**ASK).choices[0].message.content or ""
    stop = whole[4:7]
    chunks = list(client.chat.completions.create(**ASK, stop=stop, stream=True))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == whole[: whole.index(stop)]
    assert chunks[-1].choices[0].finish_reason == "stop"


def call_chat_stream_helper(client: OpenAI) -> None:
    whole = client.chat.completions.create(**ASK).choices[0].message.content or ""
    with client.chat.completions.stream(**ASK, stop=[whole[4:6]]) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_completion()
    assert {"chunk", "content.delta", "content.done"} <= kinds
    assert final.choices[0].message.content == whole[: whole.index(whole[4:6])]


def call_chat_stream_closed_early(client: OpenAI) -> None:
    stream = client.chat.completions.create(**ASK | {"max_tokens": 200}, stream=True)
    next(iter(stream))
    stream.close()
    assert client.chat.completions.create(**ASK).choices


def call_chat_tools(client: OpenAI) -> None:
    messages: list[Any] = [
        *HELLO,
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "read", "arguments": '{"line": 2}'}}],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "x = 1"},
    ]
    reply = client.chat.completions.create(**ASK | {"messages": messages}, tools=[TOOL], tool_choice="auto")
    assert reply.choices[0].message.role == "assistant"


def call_chat_tools_none(client: OpenAI) -> None:
    reply = client.chat.completions.create(**ASK, tools=[TOOL], tool_choice="none", parallel_tool_calls=False)
    assert reply.choices[0].message.tool_calls is None


def call_chat_tools_required(client: OpenAI) -> None:
    choice = client.chat.completions.create(
        **ASK | {"max_tokens": 60}, tools=[SAVE, TOOL], tool_choice="required"
    ).choices[0]
    assert choice.finish_reason == "tool_calls"
    [call] = choice.message.tool_calls or ()
    assert call.id.startswith("call_")
    assert call.function.name in ("save", "read")  # type: ignore[union-attr]


def call_chat_tool_by_name(client: OpenAI) -> None:
    named: Any = {"type": "function", "function": {"name": "save"}}
    reply = client.chat.completions.create(**ASK | {"max_tokens": 60}, tools=[TOOL, SAVE], tool_choice=named)
    [call] = reply.choices[0].message.tool_calls or ()
    assert call.function.name == "save"  # type: ignore[union-attr]
    assert json.loads(call.function.arguments)["mode"] in ("new", "old")  # type: ignore[union-attr]


def call_chat_tool_streamed(client: OpenAI) -> None:
    body = ASK | {"max_tokens": 60, "tools": [SAVE], "tool_choice": "required"}
    [call] = client.chat.completions.create(**body).choices[0].message.tool_calls or ()
    with client.chat.completions.stream(**body) as stream:
        [streamed] = stream.get_final_completion().choices[0].message.tool_calls or ()
    assert streamed.function.arguments == call.function.arguments  # type: ignore[union-attr]


def call_chat_json_schema(client: OpenAI) -> None:
    schema = {"type": "json_schema", "json_schema": {"name": "verdict", "schema": Verdict.model_json_schema()}}
    reply = client.chat.completions.create(**ASK | {"max_tokens": 60}, response_format=schema)  # type: ignore[call-overload]
    assert Verdict.model_validate_json(reply.choices[0].message.content)


def call_chat_parse(client: OpenAI) -> None:
    reply = client.chat.completions.parse(**ASK | {"max_tokens": 60}, response_format=Verdict)
    assert isinstance(reply.choices[0].message.parsed, Verdict)


def call_chat_json_object(client: OpenAI) -> None:
    body = ASK | {"max_tokens": 200, "temperature": 0, "logit_bias": {"95": 20}}  # a closing bracket
    reply = client.chat.completions.create(**body, response_format={"type": "json_object"})
    assert json.loads(reply.choices[0].message.content or "") == {}


def call_chat_provider_fields(client: OpenAI) -> None:
    assert client.chat.completions.create(**ASK, user="me", metadata={"run": "1"}, store=False).choices


def call_chat_raw_response(client: OpenAI) -> None:
    raw = client.chat.completions.with_raw_response.create(**ASK)
    assert raw.headers["content-type"] == "application/json"
    assert raw.parse().choices


def call_chat_token_ids(client: OpenAI) -> None:
    reply = client.chat.completions.create(**ASK, extra_body={"return_token_ids": True}).model_dump()
    again = client.completions.create(
        **TEXT | {"prompt": reply["prompt_token_ids"], "max_tokens": 8}, extra_body={"return_token_ids": True}
    )
    assert again.choices[0].model_dump()["token_ids"] == reply["choices"][0]["token_ids"]


def call_chat_async(client: OpenAI) -> None:
    async def ask() -> list[int]:
        async with AsyncOpenAI(base_url=client.base_url, api_key=client.api_key, max_retries=0) as other:
            streams = [await other.chat.completions.create(**ASK, stream=True) for _ in range(3)]
            return [len([chunk async for chunk in stream]) for stream in streams]

    assert all(count > 3 for count in asyncio.run(ask()))


def call_completions_plain(client: OpenAI) -> None:
    reply = client.completions.create(**TEXT)
    assert reply.choices[0].finish_reason in ("stop", "length")


def call_completions_several_prompts_and_n(client: OpenAI) -> None:
    reply = client.completions.create(**TEXT | {"prompt": ["def f(", "class A"], "n": 2})
    assert [choice.index for choice in reply.choices] == [0, 1, 2, 3]
    alone = client.completions.create(**TEXT | {"prompt": "class A", "seed": TEXT["seed"] + 2})
    assert reply.choices[2].text == alone.choices[0].text


def call_completions_token_prompt(client: OpenAI) -> None:
    assert client.completions.create(**TEXT | {"prompt": [300, 301, 302]}).usage.prompt_tokens == 3  # type: ignore[union-attr]


def call_completions_echo(client: OpenAI) -> None:
    assert client.completions.create(**TEXT, echo=True).choices[0].text.startswith("def f(")


def call_completions_log_probs(client: OpenAI) -> None:
    log_probs = client.completions.create(**TEXT, logprobs=3).choices[0].logprobs
    assert log_probs is not None
    assert [len(top) for top in log_probs.top_logprobs or ()] == [3] * len(log_probs.tokens or ())
    assert log_probs.text_offset is not None
    assert log_probs.text_offset[0] == 0


def call_completions_stream(client: OpenAI) -> None:
    chunks = list(client.completions.create(**TEXT, stream=True, stream_options={"include_usage": True}))
    text = "".join(chunk.choices[0].text for chunk in chunks if chunk.choices)
    assert text == client.completions.create(**TEXT).choices[0].text
    assert chunks[-1].usage is not None


def call_models_list_and_retrieve(client: OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["base"]
    assert client.models.retrieve("base").model_dump()["max_model_len"] >= 1024


def call_error_for_other_models(client: OpenAI) -> None:
    with pytest.raises(NotFoundError, match="'base' is"):
        client.chat.completions.create(**ASK | {"model": "gpt"})


def call_error_for_bad_values(client: OpenAI) -> None:
    with pytest.raises(BadRequestError, match="temperature: got -1"):
        client.chat.completions.create(**ASK, temperature=-1)


def call_error_for_long_prompts(client: OpenAI) -> None:
    with pytest.raises(BadRequestError) as caught:
        client.chat.completions.create(**ASK | {"messages": [{"role": "user", "content": "x y " * 9000}]}, stream=True)
    assert caught.value.code == "context_length_exceeded"


def call_error_for_embeddings(client: OpenAI) -> None:
    with pytest.raises(NotFoundError, match="embeddings"):
        client.embeddings.create(model="base", input="text")


def call_error_for_wrong_tokens(client: OpenAI) -> None:
    with pytest.raises(APIStatusError) as caught:
        client.with_options(api_key="wrong").models.list()
    assert caught.value.status_code == 401


CALLS: list[Callable[[OpenAI], None]] = [call for name, call in list(globals().items()) if name.startswith("call_")]


@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.__name__.removeprefix("call_"))
def test_calls(client: OpenAI, call: Callable[[OpenAI], None]) -> None:
    call(client)

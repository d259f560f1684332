"""Calls are what the model says behind its thought, in whole answers and in streams."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import httpx2
import pytest

from repairgym.inference.renderer import ChatRenderer
from repairgym.inference.tool_calls import HERMES
from repairgym.serving.answers import split_answer
from repairgym.serving.models import ScriptModel

Connect = Callable[..., AbstractAsyncContextManager[httpx2.AsyncClient]]
CALL = '<tool_call>\n{"name": "bash", "arguments": {"command": "ls"}}\n</tool_call>'
OTHER = CALL.replace("ls", "rm -r .")
TOOLS = [{"type": "function", "function": {"name": "bash", "parameters": {}}}]
BODY: dict[str, Any] = {"messages": [{"role": "user", "content": "f is wrong"}], "tools": TOOLS}


async def ask(connect: Connect, renderer: ChatRenderer, text: str, **fields: Any) -> tuple[dict[str, Any], str]:
    """Return the choice of a whole answer and the content of a stream."""
    async with connect(ScriptModel(lambda conversation, tools: text, renderer)) as client:
        whole = (await client.post("/v1/chat/completions", json=BODY | fields)).json()["choices"][0]
        lines = (await client.post("/v1/chat/completions", json=BODY | fields | {"stream": True})).text.split("\n\n")
    chunks = [json.loads(line.removeprefix("data: ")) for line in lines[:-2]]
    return whole, "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks)


@pytest.mark.asyncio
async def test_a_call_that_a_thought_rejects_is_text(renderer: ChatRenderer, connect: Connect) -> None:
    text = f"<think>I could run {OTHER} but no</think>I am done."
    choice, streamed = await ask(connect, renderer, text)
    assert (choice["finish_reason"], choice["message"]) == ("stop", {"role": "assistant", "content": text})
    assert streamed == text


@pytest.mark.asyncio
async def test_a_call_behind_a_thought_is_made_and_the_thought_is_content(
    renderer: ChatRenderer, connect: Connect
) -> None:
    before = f"<think>not {OTHER}</think>\nLook."
    choice, streamed = await ask(connect, renderer, f"{before}\n{CALL}")
    assert (choice["finish_reason"], choice["message"]["content"]) == ("tool_calls", before)
    assert [call["function"]["arguments"] for call in choice["message"]["tool_calls"]] == ['{"command": "ls"}']
    assert streamed.strip() == before


@pytest.mark.asyncio
async def test_an_open_thought_calls_nothing(renderer: ChatRenderer, connect: Connect) -> None:
    for text, fields in ((f"<think>{CALL}", {}), (f"<think>{CALL} stop </think>{CALL}", {"stop": [" stop "]})):
        choice, streamed = await ask(connect, renderer, text, **fields)
        assert (choice["finish_reason"], choice["message"]["content"]) == ("stop", f"<think>{CALL}")
        assert streamed == f"<think>{CALL}"


@pytest.mark.asyncio
async def test_an_answer_cut_in_its_second_call_is_cut(renderer: ChatRenderer, connect: Connect) -> None:
    text = f"{CALL}\n{CALL}"
    num_first = len(renderer.action_ids(CALL)) - 1
    for num_tokens, finish in ((num_first, "tool_calls"), (num_first + 5, "length")):
        choice, _ = await ask(connect, renderer, text, max_tokens=num_tokens)
        assert (choice["finish_reason"], len(choice["message"]["tool_calls"])) == (finish, 1)


@pytest.mark.asyncio
async def test_calls_are_the_reason_of_an_end_also_before_a_stop_text(renderer: ChatRenderer, connect: Connect) -> None:
    body = {
        "max_tokens": 500,
        "messages": BODY["messages"],
        "stop_sequences": ["END"],
        "tools": [{"name": "bash", "input_schema": {}}],
    }
    async with connect(ScriptModel(lambda conversation, tools: f"{CALL}END{OTHER}", renderer)) as client:
        message = (await client.post("/v1/messages", json=body)).json()
    assert (message["stop_reason"], message["stop_sequence"]) == ("tool_use", None)
    assert [block["type"] for block in message["content"]] == ["tool_use"]


def test_a_stop_text_within_a_token_cuts_what_is_said(renderer: ChatRenderer) -> None:
    whole = f"{CALL}\nMore."
    split = split_answer(renderer, HERMES, renderer.prompt_ids(whole), CALL)
    assert (split.has_calls, split.num_chars, split.is_open) == (True, 0, False)
    assert not split_answer(renderer, None, renderer.prompt_ids(whole), whole).has_calls

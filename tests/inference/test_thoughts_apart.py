"""Servers that send thoughts apart, for a tokenizer whose template opens the thought in the prompt."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any

import pytest

from repairgym.config.models import EndpointConfig
from repairgym.inference.base import Generation, SamplingParams
from repairgym.inference.chat_template import Message
from repairgym.inference.endpoint import EndpointClient
from repairgym.inference.openai import OpenAIPolicy
from repairgym.inference.renderer import ChatRenderer
from repairgym.testing.servers import HttpFake, HttpRequest, send, url_of

CALL = "```command\nls\n```"


class Thinker(HttpFake):
    """Always gives one reply; remembers the requests."""

    def __init__(self, message: Mapping[str, Any], finish: str = "stop") -> None:
        text = {"message": {"role": "assistant", **message}, "text": message["content"]}
        self._reply = {"choices": [{"index": 0, "finish_reason": finish, **text}]}
        self.requests: list[Mapping[str, Any]] = []

    async def answer(self, request: HttpRequest, writer: asyncio.StreamWriter) -> bool:
        self.requests.append(request.body or {})
        return await send(writer, 200, json.dumps(self._reply).encode())


@pytest.fixture(scope="module")
def renderer(make_tokenizer, template_of) -> ChatRenderer:
    template = template_of("qwen3").replace("{%- if enable_thinking is", "{{ '<think>\\n' }}{%- if enable_thinking is")
    renderer = ChatRenderer(make_tokenizer(template), is_thinking=True)
    assert renderer.template.opens_thought
    return renderer


async def ask(server: Thinker, renderer: ChatRenderer, prompt_ids: list[int], **changes: object) -> Generation:
    async with await server.serve() as listening:
        known = {"base_url": url_of(listening), "model": "tiny", "max_attempts": 1}
        async with EndpointClient(EndpointConfig.model_validate(known | changes)) as client:
            sampling = SamplingParams(max_tokens=900, stop_token_ids=renderer.stop_token_ids)
            return await OpenAIPolicy(client, renderer).generate("s", prompt_ids, sampling)


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("message", "kept", "said"),
    [
        ({"content": CALL}, "dropped", f"\n</think>\n\n{CALL}"),
        ({"content": CALL, "reasoning_content": "hm\n"}, "dropped", f"\n</think>\n\n{CALL}"),
        ({"content": CALL, "reasoning_content": "hm\n"}, "kept", f"hm\n</think>\n\n{CALL}"),
        ({"content": f"hm</think>{CALL}"}, "dropped", f"hm</think>{CALL}"),
        ({"content": f"<think>\nhm</think>{CALL}"}, "kept", f"hm</think>{CALL}"),
    ],
)
async def test_the_answer_stands_behind_the_thought(
    renderer: ChatRenderer, message: dict[str, str], kept: str, said: str
) -> None:
    made = await ask(Thinker(message), renderer, renderer.open_ids("look"), reasoning=kept)
    answer = renderer.read(made.token_ids)
    assert renderer.decode(made.token_ids) == said
    assert not answer.is_thinking
    assert answer.text.strip() == CALL


@pytest.mark.asyncio
async def test_a_thought_that_was_cut_off_stays_one(renderer: ChatRenderer) -> None:
    opening = renderer.open_ids("look")
    for changes in ({}, {"api": "completions"}):
        made = await ask(Thinker({"content": "hm"}, "length"), renderer, opening, **changes)
        assert not made.is_stopped
        assert renderer.read(made.token_ids).is_thinking
    raw = await ask(Thinker({"content": f"hm\n</think>\n\n{CALL}"}), renderer, opening, api="completions")
    assert renderer.read(raw.token_ids).text.strip() == CALL


@pytest.mark.asyncio
async def test_the_server_reads_answers_as_its_model_wrote_them(renderer: ChatRenderer) -> None:
    ids = renderer.open_ids("look")
    for text in (f"\n</think>\n\n{CALL}", f"hm\n</think>\n\n{CALL}", CALL):
        ids += renderer.action_ids(text)
        ids += renderer.continuation_ids([Message("user", "seen")], ids[-1])
    server = Thinker({"content": CALL})
    await ask(server, renderer, ids)
    said = [message["content"] for message in server.requests[0]["messages"] if message["role"] == "assistant"]
    assert said == [CALL, f"<think>\nhm\n</think>\n\n{CALL}", CALL]

"""The protocol: answers, errors, and the bound on requests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import httpx2
import pytest

from repairgym.bridges.serving.models import ModelReply, PolicyModel, ScriptModel
from repairgym.bridges.serving.requests import ChatRequest
from repairgym.inference.renderer import ChatRenderer

Connect = Callable[..., AbstractAsyncContextManager[httpx2.AsyncClient]]
HELLO = [{"role": "user", "content": "f is wrong"}]


@pytest.mark.asyncio
async def test_chat_gives_tokens_and_log_probabilities_on_request(model: PolicyModel, connect: Connect) -> None:
    body = {"model": "tiny", "messages": HELLO, "max_tokens": 5, "seed": 1}
    async with connect(model) as client:
        plain = (await client.post("/v1/chat/completions", json=body)).json()
        exact = (
            await client.post("/v1/chat/completions", json=body | {"logprobs": True, "return_token_ids": True})
        ).json()
    choice = exact["choices"][0]
    assert plain["choices"][0]["message"] == choice["message"]
    assert {"token_ids", "logprobs"}.isdisjoint(plain["choices"][0])
    assert len(choice["token_ids"]) == len(choice["logprobs"]["content"]) == exact["usage"]["completion_tokens"]
    assert all(token["logprob"] < 0 for token in choice["logprobs"]["content"])
    assert model.renderer.decode(choice["token_ids"]) == choice["message"]["content"]
    assert exact["prompt_token_ids"] == model.renderer.open_ids("f is wrong")
    assert exact["usage"]["total_tokens"] == len(exact["prompt_token_ids"]) + len(choice["token_ids"])


@pytest.mark.asyncio
async def test_chat_and_token_completions_are_the_same_policy(model: PolicyModel, connect: Connect) -> None:
    settings = {"max_tokens": 6, "seed": 7, "return_token_ids": True}
    async with connect(model) as client:
        chat = (await client.post("/v1/chat/completions", json=settings | {"messages": HELLO, "logprobs": True})).json()
        prompt = chat["prompt_token_ids"]
        text = (await client.post("/v1/completions", json=settings | {"prompt": prompt, "logprobs": 1})).json()
        spelled = model.renderer.text(prompt)
        same = (await client.post("/v1/completions", json=settings | {"prompt": spelled})).json()
    log_probs = [token["logprob"] for token in chat["choices"][0]["logprobs"]["content"]]
    assert chat["choices"][0]["token_ids"] == text["choices"][0]["token_ids"] == same["choices"][0]["token_ids"]
    assert text["choices"][0]["logprobs"]["token_logprobs"] == pytest.approx(log_probs, abs=1e-5)


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("path", "changes", "status", "words"),
    [
        ("chat/completions", {"stream": True}, 400, "stream=True is not supported"),
        ("chat/completions", {"top_p": 0.9}, 400, "top_p=0.9"),
        ("chat/completions", {"n": 2}, 400, "n=2"),
        ("chat/completions", {"stop": ["\n"]}, 400, "stop="),
        ("chat/completions", {"messages": []}, 400, "at least one message"),
        ("chat/completions", {"messages": [*HELLO, {"role": "assistant", "content": "x"}]}, 400, "continuing"),
        ("chat/completions", {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, 400, "only text"),
        ("chat/completions", {"messages": [{"role": "user", "content": "x" * 2000}]}, 400, "maximum context length"),
        ("chat/completions", {"model": "gpt"}, 404, "'tiny' is"),
        ("completions", {"prompt": ["a", "b"]}, 400, "several prompts"),
        ("completions", {"prompt": [5, 10**6]}, 400, "token id 1000000"),
        ("completions", {"prompt": list(range(9)), "logprobs": 5}, 400, "expected 0 or 1"),
        ("nowhere", {}, 404, "Not Found"),
    ],
)
async def test_unsupported_requests_are_errors(
    model: PolicyModel, connect: Connect, path: str, changes: dict[str, Any], status: int, words: str
) -> None:
    async with connect(model) as client:
        response = await client.post(f"/v1/{path}", json={"messages": HELLO} | changes)
    assert response.status_code == status
    assert words in response.json()["error"]["message"]


@pytest.mark.asyncio
async def test_bodies_that_are_no_json_or_too_large_are_errors(model: PolicyModel, connect: Connect) -> None:
    async with connect(model, max_body_bytes=100) as client:
        assert (await client.post("/v1/completions", content=b'{"a": ')).status_code == 400
        assert (await client.post("/v1/completions", content=b"1" * 101)).status_code == 413


@pytest.mark.asyncio
async def test_a_full_context_is_an_error_that_clients_know(model: PolicyModel, connect: Connect) -> None:
    async with connect(model) as client:
        body = {"prompt": [5] * model.max_len_tokens}
        error = (await client.post("/v1/completions", json=body)).json()["error"]
        card = (await client.get("/v1/models")).json()["data"][0]
        body = {"prompt": [5] * (model.max_len_tokens - 3), "max_tokens": 50}
        last = (await client.post("/v1/completions", json=body)).json()
    assert error["code"] == "context_length_exceeded"
    assert (card["id"], card["max_model_len"]) == ("tiny", model.max_len_tokens)
    assert last["usage"]["completion_tokens"] <= 3


@pytest.mark.asyncio
async def test_a_token_is_required(model: PolicyModel, connect: Connect) -> None:
    async with connect(model, token="open sesame") as client:
        assert (await client.get("/v1/models")).status_code == 401
        wrong = await client.get("/v1/models", headers={"Authorization": "Bearer open"})
        right = await client.get("/v1/models", headers={"Authorization": "Bearer open sesame"})
        assert (await client.get("/health")).status_code == 200
    assert (wrong.status_code, right.status_code) == (401, 200)
    assert "sesame" not in wrong.text


class SlowModel(ScriptModel):
    """Answers once its gate is open."""

    def __init__(self, renderer: ChatRenderer) -> None:
        super().__init__(lambda conversation, tools: "submit", renderer)
        self.gate = asyncio.Event()
        self.num_running = 0
        self.most_running = 0

    async def chat(self, request: ChatRequest) -> ModelReply:
        self.num_running += 1
        self.most_running = max(self.most_running, self.num_running)
        try:
            await self.gate.wait()
            return await super().chat(request)
        finally:
            self.num_running -= 1


@pytest.mark.asyncio
async def test_the_queue_is_bounded(renderer: ChatRenderer, connect: Connect) -> None:
    model = SlowModel(renderer)
    async with connect(model, max_concurrent=2, max_waiting=3) as client:
        requests = [
            asyncio.create_task(client.post("/v1/chat/completions", json={"messages": HELLO})) for _ in range(8)
        ]
        done, _ = await asyncio.wait(requests, timeout=30, return_when=asyncio.FIRST_COMPLETED)
        rejected = (await asyncio.gather(*done))[0]
        model.gate.set()
        statuses = sorted(response.status_code for response in await asyncio.gather(*requests))
    assert statuses == [200] * 5 + [429] * 3
    assert (rejected.status_code, rejected.headers["retry-after"]) == (429, "1")
    assert rejected.json()["error"]["code"] == "queue_full"
    assert model.most_running == 2


@pytest.mark.asyncio
async def test_tool_calls_are_separated_from_text(renderer: ChatRenderer, connect: Connect) -> None:
    text = 'Let me look.\n<tool_call>\n{"name": "bash", "arguments": {"command": "ls"}}\n</tool_call>'
    tools = [{"type": "function", "function": {"name": "bash", "parameters": {"required": ["command"]}}}]
    async with connect(ScriptModel(lambda conversation, tools: text, renderer)) as client:
        body: dict[str, Any] = {"messages": HELLO}
        with_tools = (await client.post("/v1/chat/completions", json=body | {"tools": tools})).json()["choices"][0]
        without = (await client.post("/v1/chat/completions", json=body)).json()["choices"][0]
    assert with_tools["finish_reason"] == "tool_calls"
    assert with_tools["message"]["content"] == "Let me look."
    call = with_tools["message"]["tool_calls"][0]
    assert call["function"] == {"name": "bash", "arguments": '{"command": "ls"}'}
    assert without["message"] == {"role": "assistant", "content": text}


@pytest.mark.asyncio
async def test_scripts_respect_max_tokens(renderer: ChatRenderer, connect: Connect) -> None:
    text = "a long answer " * 100
    async with connect(ScriptModel(lambda conversation, tools: text, renderer)) as client:
        whole = (await client.post("/v1/chat/completions", json={"messages": HELLO})).json()
        cut = (await client.post("/v1/chat/completions", json={"messages": HELLO, "max_tokens": 3})).json()
    assert (whole["choices"][0]["finish_reason"], whole["choices"][0]["message"]["content"]) == ("stop", text)
    assert (cut["choices"][0]["finish_reason"], cut["usage"]["completion_tokens"]) == ("length", 3)
    assert text.startswith(cut["choices"][0]["message"]["content"])

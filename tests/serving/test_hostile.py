"""Clients that mean harm or are broken: what they get, and that nothing of them stays."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import httpx2
import pytest
from tests.serving.test_streams import EndlessSampler

from repairgym.config.commands import ServeConfig
from repairgym.inference.renderer import ChatRenderer
from repairgym.serving.models import PolicyModel, ScriptModel, ServedModel
from repairgym.serving.process import serve

Connect = Callable[..., AbstractAsyncContextManager[httpx2.AsyncClient]]
HELLO = [{"role": "user", "content": "f is wrong"}]
MESSAGE = {"max_tokens": 4, "messages": HELLO}


@pytest.mark.asyncio
@pytest.mark.parametrize("path", ["chat/completions", "completions", "responses", "messages"])
@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff",
        b"[1]",
        b'{"a": NaN}',
        b'{"messages": ' + b"[" * 5000,
        b'{"prompt": "\\ud800", "input": "", "max_tokens": 1, "messages": []}',
        b'{"messages": 1, "input": 1, "prompt": 1, "max_tokens": 1}',
        b'{"messages": [{"role": "user", "content": "a"}], "prompt": "a", "max_tokens": 1, "temperature": []}',
        b'{"messages": [{"role": ["a"], "content": {}}], "input": [{"type": []}], "prompt": [[]], "max_tokens": 1}',
        b'{"messages": [{"role": "user", "content": "a"}], "input": "a", "prompt": "a", "max_tokens": 1, "model": {}}',
    ],
    ids=["empty", "bytes", "list", "nan", "deep", "surrogate", "numbers", "kinds", "nested", "model"],
)
async def test_broken_bodies_are_errors_of_the_client(
    model: PolicyModel, connect: Connect, path: str, content: bytes
) -> None:
    async with connect(model) as client:
        response = await client.post(f"/v1/{path}", content=content)
    assert response.status_code == 400
    assert response.json()["error"]["message"]


@pytest.mark.asyncio
async def test_pages_of_browsers_get_nothing(model: PolicyModel, connect: Connect) -> None:
    async with connect(model) as client:
        rebound = await client.post("/v1/messages", json=MESSAGE, headers={"host": "evil.example"})
        foreign = await client.post("/v1/messages", json=MESSAGE, headers={"origin": "https://evil.example"})
        own = await client.post("/v1/messages", json=MESSAGE, headers={"origin": "http://localhost:3000"})
    assert [rebound.status_code, foreign.status_code, own.status_code] == [421, 403, 200]


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "changes",
    [{"temperature": 0.7}, {"top_p": 0.9}, {"top_k": 5}, {"logit_bias": {"7": 1}}, {"presence_penalty": 0.1}],
    ids=lambda changes: next(iter(changes)),
)
async def test_a_strict_server_samples_from_the_model_alone(
    model: PolicyModel, connect: Connect, changes: dict[str, Any]
) -> None:
    body = {"messages": HELLO, "max_tokens": 3, "temperature": 1, "top_k": -1, "n": 2, "stop": "zz"}
    async with connect(model, is_strict=True) as client:
        exact = await client.post("/v1/chat/completions", json=body)
        changed = await client.post("/v1/chat/completions", json=body | changes)
        formed = await client.post("/v1/chat/completions", json=body | {"response_format": {"type": "json_object"}})
    assert exact.status_code == 200
    assert (changed.status_code, changed.json()["error"]["code"]) == (400, "not_exact")
    assert next(iter(changes)) in changed.json()["error"]["message"]
    assert formed.json()["error"]["code"] == "not_exact"


@pytest.mark.asyncio
async def test_schemas_that_are_not_understood_are_errors(model: PolicyModel, connect: Connect) -> None:
    schema = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "nonsense"}}}
    async with connect(model) as client:
        response = await client.post("/v1/chat/completions", json={"messages": HELLO, "response_format": schema})
        after = await client.post("/v1/chat/completions", json={"messages": HELLO, "max_tokens": 2})
    assert (response.status_code, after.status_code) == (400, 200)
    assert "nonsense" in response.json()["error"]["message"]


@contextlib.asynccontextmanager
async def listening(model: ServedModel, **settings: Any) -> AsyncIterator[int]:
    """The port of a real server in this process."""
    url: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    task = asyncio.create_task(serve(model, "tiny", ServeConfig(port=0, **settings), url.set_result))
    try:
        yield int((await url).split(":")[2].removesuffix("/v1"))
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@pytest.mark.asyncio
async def test_half_a_request_is_dropped(renderer: ChatRenderer) -> None:
    async with listening(ScriptModel(lambda conversation, tools: "", renderer), client_timeout_s=0.3) as port:

        async def send(start: bytes, answered: bytes = b"") -> None:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            if answered:
                writer.write(answered)
                assert await reader.readuntil(b"\r\n\r\n")
            writer.write(start)
            with contextlib.suppress(ConnectionError):
                await asyncio.wait_for(reader.read(), 20)
            writer.close()

        head = b"POST /v1/messages HTTP/1.1\r\nhost: 127"
        whole = b"GET /health HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n"
        broken = (head, b"", head + b".0.0.1\r\ncontent-length: 9\r\n\r\n{")
        await asyncio.gather(*map(send, broken), send(head, answered=whole))


@pytest.mark.asyncio
async def test_a_client_that_reads_nothing_is_dropped(renderer: ChatRenderer) -> None:
    sampler = EndlessSampler()
    body = json.dumps({"messages": HELLO, "stream": True}).encode()
    head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: %d\r\n\r\n" % len(body)
    async with listening(PolicyModel(sampler, renderer, 256), client_timeout_s=0.3) as port:
        with socket.create_connection(("127.0.0.1", port)) as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            await asyncio.to_thread(connection.sendall, head + body)
            await asyncio.wait_for(sampler.has_begun.wait(), 20)
            await asyncio.wait_for(sampler.has_ended.wait(), 60)
    assert sampler.num_running == 0


@pytest.mark.asyncio
async def test_two_hundred_streams_come_whole_and_leave_nothing(model: PolicyModel) -> None:
    body = json.dumps({"messages": HELLO, "stream": True, "max_tokens": 2}).encode()
    head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\ncontent-length: %d\r\n\r\n"

    async def stream(port: int) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(head % len(body) + body)
        text = await reader.read()
        writer.close()
        return text

    async with listening(model) as port:
        num_before = len(asyncio.all_tasks())
        texts = await asyncio.gather(*(stream(port) for _ in range(200)))
        async with asyncio.timeout(20):
            while len(asyncio.all_tasks()) > num_before:  # noqa: ASYNC110 (tasks of the server)
                await asyncio.sleep(0.01)
    assert all(b" 200 OK" in text[:20] and b"data: [DONE]" in text for text in texts)


@pytest.mark.asyncio
async def test_an_announced_huge_body_is_rejected_unread(renderer: ChatRenderer) -> None:
    head = b"POST /v1/messages HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: 999999999\r\n\r\n"
    async with listening(ScriptModel(lambda conversation, tools: "", renderer)) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(head)
        answer = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 20)
        writer.close()
    assert b" 413 " in answer.split(b"\r\n")[0]


@pytest.mark.asyncio
async def test_large_bodies_at_one_time_are_bounded(renderer: ChatRenderer) -> None:
    size = 60_000
    head = b"POST /v1/messages HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\ncontent-length: %d\r\n\r\n" % size
    body = b'{"max_tokens": 1, "messages": [' + b" " * (size - 33) + b"]}"
    assert len(body) == size

    async def ask(port: int, content: bytes) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(content)
        return (await asyncio.wait_for(reader.read(), 20)).split(b"\r\n")[0]

    async with listening(ScriptModel(lambda conversation, tools: "", renderer), max_body_bytes=size) as port:
        waiting = []
        for _ in range(4):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(head + body[:-1])
            await writer.drain()
            waiting.append((reader, writer))
        await asyncio.sleep(0.5)  # their bodies are held, but for the last bytes
        first = await ask(port, head + body)
        for _, writer in waiting:
            writer.write(body[-1:])
        held = [await asyncio.wait_for(reader.read(), 20) for reader, _ in waiting]
        second = await ask(port, head + body)
    assert b" 429 " in first
    assert b" 400 " in second  # no messages: the room is free again
    assert all(b" 400 " in answer.split(b"\r\n")[0] for answer in held)

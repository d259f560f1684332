"""A model server whose every fault is scripted, to show what a client makes of it.

Speaks enough HTTP and OpenAI's protocol for `models/openai`; runs as a process of its own
(``python -m mendwright.models.faulty_server '["429", "ok"]'``) and prints its port. Invariant: request number k gets
fault number k, the last one again and again; nothing is random.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any


class Fault(StrEnum):
    """What one request meets."""

    OK = "ok"
    RATE_LIMITED = "429"
    """With ``Retry-After: 0.05``."""
    LONG_WAIT = "429-long"
    """With a ``Retry-After`` of a day."""
    NO_QUOTA = "429-quota"
    """Waiting will not help."""
    SERVER_ERROR = "500"
    KEY_ECHO = "500-echo"
    """The error holds the request's headers, as some proxies write them."""
    WRONG_KEY = "401"
    NO_MODEL = "404"
    TOO_LONG = "400-long"
    HANG = "hang"
    DRIP = "drip"
    """One byte every 50 ms, for ever."""
    HALF_BODY = "half-body"
    """The connection ends in the middle of the reply."""
    HALF_JSON = "half-json"
    CLOSED = "closed"
    """The connection ends instead of a reply, as an idle one does that the server has given up."""
    NO_CHOICES = "no-choices"
    NO_FINISH = "no-finish"
    NO_USAGE = "no-usage"
    """Not a fault: servers may leave the counts out."""
    WRONG_COUNTS = "wrong-counts"
    FEWER_LOG_PROBS = "fewer-log-probs"
    NO_TOKEN_IDS = "no-token-ids"
    """A text-only server."""


_STATUSES: dict[Fault, tuple[int, str, Mapping[str, str]]] = {
    Fault.RATE_LIMITED: (429, "slow down", {"Retry-After": "0.05"}),
    Fault.LONG_WAIT: (429, "come back tomorrow", {"Retry-After": "86400"}),
    Fault.NO_QUOTA: (429, "insufficient_quota", {}),
    Fault.SERVER_ERROR: (500, "internal error", {}),
    Fault.WRONG_KEY: (401, "incorrect key", {}),
    Fault.NO_MODEL: (404, "no such model", {}),
    Fault.TOO_LONG: (400, "this model's maximum context length is 8 tokens", {}),
}


class FaultyServer:
    """Serves ``faults``, and the replies of a model that always says ``text``."""

    def __init__(self, faults: Sequence[Fault], text: str = "submit") -> None:
        """``faults`` in the order of the requests."""
        self._faults = list(faults)
        self._text = text
        self.requests: list[Mapping[str, Any]] = []
        """Bodies in the order in which they came."""

    async def serve(self) -> asyncio.Server:
        """Listen on a free port of the loopback interface."""
        return await asyncio.start_server(self._connection, "127.0.0.1", 0)

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while await self._exchange(reader, writer):
                pass
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """One request and its reply; False when the connection is to end."""
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        fields = dict(line.lower().split(": ", 1) for line in head.split("\r\n")[1:] if line)
        body = json.loads(await reader.readexactly(int(fields.get("content-length", "0"))) or b"null")
        if body is None:  # a GET: this server is nothing that can be looked at
            return await _send(writer, 404, b"{}")
        fault = self._faults[min(len(self.requests), len(self._faults) - 1)]
        self.requests.append(body)
        return await self._answer(fault, head, body, writer)

    async def _answer(self, fault: Fault, head: str, body: Mapping[str, Any], writer: asyncio.StreamWriter) -> bool:
        if fault in _STATUSES:
            status, message, headers = _STATUSES[fault]
            return await _send(writer, status, _error(message), headers)
        if fault is Fault.KEY_ECHO:
            return await _send(writer, 500, _error(head))
        if fault is Fault.CLOSED:
            return False
        if fault is Fault.HANG:
            await asyncio.Event().wait()
        reply = json.dumps(self._reply(fault, body)).encode()
        if fault is Fault.HALF_JSON:
            return await _send(writer, 200, reply[: len(reply) // 2])
        if fault in (Fault.HALF_BODY, Fault.DRIP):
            writer.write(_head(200, len(reply), {}) + reply[: len(reply) // 2])
            while fault is Fault.DRIP:
                writer.write(b" ")
                await writer.drain()
                await asyncio.sleep(0.05)
            await writer.drain()
            return False
        return await _send(writer, 200, reply)

    def _reply(self, fault: Fault, body: Mapping[str, Any]) -> dict[str, Any]:
        """One choice of the kind that was asked for, changed as ``fault`` says."""
        num_tokens = 4
        choice: dict[str, Any] = {"index": 0, "finish_reason": None if fault is Fault.NO_FINISH else "stop"}
        if "messages" in body:
            choice["message"] = {"role": "assistant", "content": self._text}
        else:
            choice["text"] = self._text
        if body.get("return_token_ids") and fault is not Fault.NO_TOKEN_IDS:
            num_log_probs = num_tokens - (fault is Fault.FEWER_LOG_PROBS)
            stop_id = body["stop_token_ids"][0]
            choice |= {
                "token_ids": [*range(num_tokens - 1), stop_id],
                "logprobs": {"token_logprobs": [-0.5] * num_log_probs},
            }
        reply: dict[str, Any] = {"choices": [] if fault is Fault.NO_CHOICES else [choice]}
        if fault is not Fault.NO_USAGE:
            counted = 0 if fault is Fault.WRONG_COUNTS else num_tokens
            reply["usage"] = {"prompt_tokens": 100, "completion_tokens": counted, "total_tokens": 100 + num_tokens}
        return reply


def _error(message: str) -> bytes:
    return json.dumps({"error": {"message": message, "code": message}}).encode()


def _head(status: int, length: int, headers: Mapping[str, str]) -> bytes:
    lines = [f"HTTP/1.1 {status} .", "Content-Type: application/json", f"Content-Length: {length}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode()


async def _send(
    writer: asyncio.StreamWriter, status: int, body: bytes, headers: Mapping[str, str] | None = None
) -> bool:
    writer.write(_head(status, len(body), headers or {}) + body)
    await writer.drain()
    return True


async def _main(faults: Sequence[Fault]) -> None:
    async with await FaultyServer(faults).serve() as server:
        sys.stdout.write(f"{server.sockets[0].getsockname()[1]}\n")
        sys.stdout.flush()
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(_main([Fault(name) for name in json.loads(sys.argv[1])]))

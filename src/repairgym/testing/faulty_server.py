"""A model server whose every fault is scripted, to show what a client makes of it.

Speaks enough of OpenAI's protocol for `models/openai`; runs as a process of its own
(``python -m repairgym.testing.faulty_server '["429", "ok"]'``) and prints its port. Invariant: request number k gets
fault number k, the last one again and again; nothing is random.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any

from repairgym.testing.http_fake import HttpFake, HttpRequest, head, send


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


class FaultyServer(HttpFake):
    """Serves ``faults``, and the replies of a model that always says ``text``."""

    def __init__(self, faults: Sequence[Fault], text: str = "submit") -> None:
        """``faults`` in the order of the requests."""
        self._faults = list(faults)
        self._text = text
        self.requests: list[Mapping[str, Any]] = []
        """Bodies in the order in which they came."""

    async def answer(self, request: HttpRequest, writer: asyncio.StreamWriter) -> bool:
        """What the next fault makes of ``request``."""
        if request.body is None:  # a GET: this server is nothing that can be looked at
            return await send(writer, 404, b"{}")
        fault = self._faults[min(len(self.requests), len(self._faults) - 1)]
        self.requests.append(request.body)
        return await self._answer(fault, request.head, request.body, writer)

    async def _answer(self, fault: Fault, fields: str, body: Mapping[str, Any], writer: asyncio.StreamWriter) -> bool:
        if fault in _STATUSES:
            status, message, headers = _STATUSES[fault]
            return await send(writer, status, _error(message), headers)
        if fault is Fault.KEY_ECHO:
            return await send(writer, 500, _error(fields))
        if fault is Fault.CLOSED:
            return False
        if fault is Fault.HANG:
            await asyncio.Event().wait()
        reply = json.dumps(self._reply(fault, body)).encode()
        if fault is Fault.HALF_JSON:
            return await send(writer, 200, reply[: len(reply) // 2])
        if fault in (Fault.HALF_BODY, Fault.DRIP):
            writer.write(head(200, len(reply), {}) + reply[: len(reply) // 2])
            while fault is Fault.DRIP:
                writer.write(b" ")
                await writer.drain()
                await asyncio.sleep(0.05)
            await writer.drain()
            return False
        return await send(writer, 200, reply)

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
            prompt = body.get("prompt")
            num_prompt = len(prompt) if isinstance(prompt, list) else 100
            total = num_prompt + num_tokens
            reply["usage"] = {"prompt_tokens": num_prompt, "completion_tokens": counted, "total_tokens": total}
        return reply


def _error(message: str) -> bytes:
    return json.dumps({"error": {"message": message, "code": message}}).encode()


async def _main(faults: Sequence[Fault]) -> None:
    async with await FaultyServer(faults).serve() as server:
        sys.stdout.write(f"{server.sockets[0].getsockname()[1]}\n")
        sys.stdout.flush()
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(_main([Fault(name) for name in json.loads(sys.argv[1])]))

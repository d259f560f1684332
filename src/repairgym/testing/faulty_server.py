"""A model server with scripted faults, for tests of clients.

Speaks enough of OpenAI's protocol for `inference/openai`; runs as its own process
(``python -m repairgym.testing.faulty_server '["429", "ok"]'``) and prints its port. Request number k gets fault
number k, later requests the last fault; nothing is random.
"""

import asyncio
import json
import sys
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any

from repairgym.testing.http_fake import HttpFake, HttpRequest, head, send


class Fault(StrEnum):
    """The fault of one request."""

    OK = "ok"
    RATE_LIMITED = "429"
    """With ``Retry-After: 0.05``."""
    LONG_WAIT = "429-long"
    """With a ``Retry-After`` of a day."""
    NO_QUOTA = "429-quota"
    """Waiting does not help."""
    SERVER_ERROR = "500"
    KEY_ECHO = "500-echo"
    """The error contains the request's headers, as from some proxies."""
    WRONG_KEY = "401"
    NO_MODEL = "404"
    TOO_LONG = "400-long"
    HANG = "hang"
    DRIP = "drip"
    """One byte every 50 ms, forever."""
    HALF_BODY = "half-body"
    """The connection ends in the middle of the reply."""
    HALF_JSON = "half-json"
    CLOSED = "closed"
    """The connection ends instead of a reply, like an idle one that the server closed."""
    NO_CHOICES = "no-choices"
    NO_FINISH = "no-finish"
    NO_USAGE = "no-usage"
    """Not a fault: servers may omit the counts."""
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
    """A server of ``faults``, and of the replies of a model that always says ``text``."""

    def __init__(self, faults: Sequence[Fault], text: str = "submit") -> None:
        """Take ``faults`` in the order of the requests."""
        self._faults = list(faults)
        self._text = text
        self.requests: list[Mapping[str, Any]] = []
        """Bodies in order of arrival."""

    async def answer(self, request: HttpRequest, writer: asyncio.StreamWriter) -> bool:
        """Answer ``request`` with the next fault."""
        if request.body is None:  # a GET, which this server does not support
            return await send(writer, 404, b"{}")
        fault = self._faults[min(len(self.requests), len(self._faults) - 1)]
        self.requests.append(request.body)
        if fault in _STATUSES:
            status, message, headers = _STATUSES[fault]
            return await send(writer, status, _error(message), headers)
        if fault is Fault.KEY_ECHO:
            return await send(writer, 500, _error(request.head))
        if fault is Fault.CLOSED:
            return False
        if fault is Fault.HANG:
            await asyncio.Event().wait()
        reply = json.dumps(self._reply(fault, request.body)).encode()
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
        """Return one choice of the requested kind, changed by ``fault``."""
        num_tokens = 4
        choice: dict[str, Any] = {"index": 0, "finish_reason": None if fault is Fault.NO_FINISH else "stop"}
        if "messages" in body:
            choice["message"] = {"role": "assistant", "content": self._text}
        else:
            choice["text"] = self._text
        if body.get("return_token_ids") and fault is not Fault.NO_TOKEN_IDS:
            choice["token_ids"] = [*range(num_tokens - 1), body["stop_token_ids"][0]]
            choice["logprobs"] = {"token_logprobs": [-0.5] * (num_tokens - (fault is Fault.FEWER_LOG_PROBS))}
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

"""`repairgym serve` under many clients: how many streams come whole, how fast, and what of hostile clients stays.

Starts the server as users do, with the shipped model. First many clients stream at one time; then hostile ones come:
they read nothing, send huge bodies, broken JSON or half a request, or go away in the middle of a stream. After each
kind the server's open files, threads and memory are compared with those before it, and a client asks as usual.
`--quick`: shorter answers and fewer hostile clients.

    python benchmarks/serving.py --quick --json
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

NUM_CLIENTS = 200
TIMEOUT_S = 4.0
"""The server's patience with a client in the second part."""
LAUNCH = "import sys; from repairgym.cli.main import main; main(sys.argv[1:])"
HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\ncontent-length: %d\r\n\r\n"
CHUNKED = HEAD.replace(b"content-length: %d", b"transfer-encoding: chunked")


@dataclass(frozen=True)
class Server:
    """A running server."""

    port: int
    pid: int

    def state(self) -> dict[str, int]:
        """Its open files, threads and memory, now and at the most."""
        fields = dict(line.split(":", 1) for line in Path(f"/proc/{self.pid}/status").read_text().splitlines())
        return {
            "files": len(os.listdir(f"/proc/{self.pid}/fd")),
            "threads": int(fields["Threads"]),
            "memory_mb": int(fields["VmRSS"].split()[0]) >> 10,
            "peak_memory_mb": int(fields["VmHWM"].split()[0]) >> 10,
        }


@contextlib.contextmanager
def serving(*settings: str) -> Iterator[Server]:
    """The server with ``settings``."""
    command = [sys.executable, "-c", LAUNCH, "serve", "port=0", "model_name=base", *settings]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        try:
            url = process.stdout.readline().split()[3]
            yield Server(int(url.rsplit(":", 1)[1].partition("/")[0]), process.pid)
        finally:
            process.kill()


def request(max_tokens: int, seed: int = 0, **changes: Any) -> bytes:
    """One request for a stream."""
    body = {"messages": [{"role": "user", "content": "def f(a, b):"}], "stream": True, "max_tokens": max_tokens}
    content = json.dumps(body | {"seed": seed} | changes).encode()
    return HEAD % len(content) + content


async def stream(port: int, content: bytes) -> dict[str, float]:
    """Read one stream to its end; seconds to the first and to the last event."""
    begun = time.perf_counter()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(content)
    first_s, text = 0.0, b""
    while part := await reader.read(1 << 16):
        text += part
        first_s = first_s or (time.perf_counter() - begun if b"data:" in text else 0.0)
    writer.close()
    is_whole = text.startswith(b"HTTP/1.1 200") and b"data: [DONE]" in text and b'"error"' not in text
    return {"is_whole": is_whole, "first_s": first_s, "all_s": time.perf_counter() - begun}


async def measure_streams(server: Server, num: int, max_tokens: int) -> dict[str, Any]:
    """``num`` clients at one time."""
    before, begun = server.state(), time.perf_counter()
    answers = [stream(server.port, request(max_tokens, seed)) for seed in range(num)]
    results = [each for each in await asyncio.gather(*answers, return_exceptions=True) if isinstance(each, dict)]
    seconds = time.perf_counter() - begun
    await asyncio.sleep(1.0)
    return {
        "clients": num,
        "whole": sum(bool(each["is_whole"]) for each in results),
        "seconds": seconds,
        "first_event_median_s": statistics.median(each["first_s"] for each in results),
        "last_event_worst_s": max(each["all_s"] for each in results),
        "before": before,
        "after": server.state(),
    }


async def read_nothing(port: int) -> None:
    """Ask for a long stream and read none of it."""
    with socket.socket() as connection:
        connection.setblocking(False)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(connection, ("127.0.0.1", port))
        await loop.sock_sendall(connection, request(900, logprobs=True, top_logprobs=20))
        await asyncio.sleep(TIMEOUT_S + 2.0)


async def send(port: int, content: bytes, *, num_read: int = -1, hold_s: float = 0.0) -> None:
    """Send ``content``, wait, read at most ``num_read`` bytes (-1: all) and hang up without a goodbye."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    with contextlib.suppress(ConnectionError):
        writer.write(content)
        await writer.drain()
        await asyncio.sleep(hold_s)
        await reader.read(num_read)
    writer.transport.abort()


def hostile_clients(port: int) -> dict[str, Callable[[], Awaitable[None]]]:
    """Kind -> one client."""
    huge = 17 << 20
    return {
        "reads nothing": lambda: read_nothing(port),
        "goes in a stream": lambda: send(port, request(900), num_read=300),
        "goes while it waits": lambda: send(port, request(900), num_read=0),
        "huge body": lambda: send(port, HEAD % huge + b"[" * huge),
        "huge body, unannounced": lambda: send(port, CHUNKED + b"%x\r\n" % huge + b"[" * huge),
        "endless body": lambda: send(port, CHUNKED + b"8\r\n"),
        "broken JSON": lambda: send(port, HEAD % 9 + b'{"a": [1,'),
        "deep JSON": lambda: send(port, HEAD % 100_000 + b"[" * 100_000),
        "half a head": lambda: send(port, HEAD[:40], hold_s=TIMEOUT_S + 2.0),
        "half a body": lambda: send(port, HEAD % 99 + b"{", hold_s=TIMEOUT_S + 2.0),
        "huge head": lambda: send(port, b"GET / HTTP/1.1\r\nx: " + b"a" * (1 << 20)),
        "no HTTP": lambda: send(port, b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" * 9),
    }


async def measure_hostile(server: Server, num: int) -> dict[str, dict[str, Any]]:
    """``num`` clients of each kind at one time, and what of them stays."""
    results = {}
    for kind, make_client in hostile_clients(server.port).items():
        before, begun = server.state(), time.perf_counter()
        await asyncio.gather(*(make_client() for _ in range(num)), return_exceptions=True)
        while time.perf_counter() - begun < 60.0 and server.state()["files"] > before["files"]:  # noqa: ASYNC110
            await asyncio.sleep(0.2)
        after = server.state()
        answer = await stream(server.port, request(2))
        results[kind] = {
            "clients": num,
            "files_left": after["files"] - before["files"],
            "threads_left": after["threads"] - before["threads"],
            "memory_grown_mb": after["memory_mb"] - before["memory_mb"],
            "is_served_after": bool(answer["is_whole"]),
        }
    return results


async def run(arguments: argparse.Namespace) -> dict[str, Any]:
    num_tokens, num_hostile = (8, 20) if arguments.quick else (64, 100)
    with serving() as server:
        await stream(server.port, request(2))
        streams = await measure_streams(server, arguments.num, num_tokens)
    with serving(f"client_timeout_s={TIMEOUT_S}") as server:
        await measure_streams(server, 40, 2)
        hostile = await measure_hostile(server, num_hostile)
        state = server.state()
    return {"load": os.getloadavg()[0], "streams": streams, "hostile": hostile, "state": state}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="shorter answers, fewer hostile clients")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--num", type=int, default=NUM_CLIENTS, help="clients that stream at one time")
    arguments = parser.parse_args()
    result = asyncio.run(run(arguments))
    if arguments.json:
        print(json.dumps(result, indent=1))
        return
    streams = result["streams"]
    print(f"load {result['load']:.0f}: {streams['whole']} of {streams['clients']} whole in {streams['seconds']:.1f} s")
    print(f"first event {streams['first_event_median_s']:.2f} s (median), last {streams['last_event_worst_s']:.1f} s")
    print(f"memory {streams['before']['memory_mb']} MB before, {streams['after']['peak_memory_mb']} MB at the most")
    print(f"\n{'hostile client':20} {'files left':>10} {'threads':>8} {'memory MB':>10}  served after")
    for kind, row in result["hostile"].items():
        counts = f"{row['files_left']:10d} {row['threads_left']:8d} {row['memory_grown_mb']:10d}"
        print(f"{kind:20} {counts}  {row['is_served_after']}")


if __name__ == "__main__":
    main()

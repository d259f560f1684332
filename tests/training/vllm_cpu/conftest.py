"""Real servers: vLLM's CPU build over the shipped model, one process each.

Needs `requirements-vllm.txt`; run with `make vllm`. A start takes half a minute on an idle machine.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2
import pytest

from repairgym.inference.loading import shipped_base
from repairgym.sandbox.guest.syscalls import set_parent_death_signal

START_S = 1800.0
KV_BYTES = 128 << 20
_TABLE: list[tuple[str, str]] = []


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@contextmanager
def vllm_server(folder: Path, logs: Path, *options: str) -> Iterator[str]:
    """Base URL of a server of ``folder`` as ``tiny``, started as the documentation says."""
    port = free_port()
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(folder)]
    command += ["--served-model-name", "tiny", "--host", "127.0.0.1", "--port", str(port), "--dtype", "float32"]
    command += ["--enforce-eager", "--enable-scale-out", "--enable-prompt-tokens-details", "--max-model-len", "1024"]
    command += ["--max-num-seqs", "16", "--kv-cache-memory-bytes", str(KV_BYTES), *options]
    environment = os.environ | {
        "VLLM_TARGET_DEVICE": "cpu",
        "VLLM_SERVER_DEV_MODE": "1",
        "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1",
        "VLLM_CACHE_ROOT": str(logs / "cache"),
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
    }
    log = logs / "server.log"
    with log.open("w") as file:
        process = subprocess.Popen(
            command,
            env=environment,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=lambda: set_parent_death_signal(signal.SIGTERM),  # also when these tests are killed
        )
        started = time.monotonic()
        try:
            while not is_healthy(port):
                assert process.poll() is None, log.read_text()[-4000:]
                assert time.monotonic() - started < START_S, log.read_text()[-4000:]
                time.sleep(1.0)
            _TABLE.append((f"start {' '.join(options) or 'plain'}", f"{time.monotonic() - started:.0f} s"))
            yield f"http://127.0.0.1:{port}/v1"
        finally:
            os.killpg(process.pid, signal.SIGTERM)
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def is_healthy(port: int) -> bool:
    try:
        return httpx2.get(f"http://127.0.0.1:{port}/health", timeout=30.0, trust_env=False).status_code == 200
    except httpx2.HTTPError:
        return False


@pytest.fixture(scope="module")
def base() -> Path:
    """Instead of the tiny model of the other tests of recipes."""
    return shipped_base()


@pytest.fixture(scope="module")
def start_server(tmp_path_factory: pytest.TempPathFactory):
    def start(folder: Path, *options: str):
        return vllm_server(folder, tmp_path_factory.mktemp("vllm"), *options)

    return start


@pytest.fixture(scope="session")
def note() -> Callable[[str, str], None]:
    """Puts a figure into the table at the end."""
    return lambda what, figure: _TABLE.append((what, figure))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if _TABLE:
        terminalreporter.section("vLLM on CPU")
        for what, figure in _TABLE:
            terminalreporter.write_line(f"{what:60} {figure}")

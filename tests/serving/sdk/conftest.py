"""The server as users start it, with the shipped model, for the clients that providers publish."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

LAUNCH = "import sys; from repairgym.cli.main import main; main(sys.argv[1:])"


@pytest.fixture(scope="session")
def served() -> Iterator[tuple[str, str]]:
    """Address of `repairgym serve`, without /v1, and its token."""
    token = "a token for the tests"
    command = [sys.executable, "-c", LAUNCH, "serve", "port=0", "model_name=base", "default_reply_tokens=24"]
    environment = {**os.environ, "REPAIRGYM_SERVE_TOKEN": token}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line.startswith("serving base at http://127.0.0.1:")
            yield line.split()[3].removesuffix("/v1"), token
        finally:
            process.kill()


def pytest_ignore_collect(config: pytest.Config) -> bool | None:
    """Leave out files of slow tests where no slow test runs: importing the clients takes seconds in each worker."""
    return True if "not slow" in config.option.markexpr else None

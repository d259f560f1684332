"""Runs the tests of a request with the runner that it names, in this process.

Reads a request (the JSON form of ``TestRequest`` and a ``record_key``); the runner makes records on descriptor 3.
Invariants: the records leave by a descriptor with a number that differs each time and that no program started by a
test inherits; the testbed's sources come first on ``sys.path``; a runner that is not here is an error of the request.
"""

from __future__ import annotations

import fcntl
import json
import os
import sys
from typing import Any, Dict

from .streams import RECORD_FD


def main(request: bytes, testbed: str) -> int:
    """Run the tests of a request (JSON); returns the runner's exit status."""
    # A test that closes or writes to small numbers, or starts programs, never meets the records.
    record_fd = fcntl.fcntl(RECORD_FD, fcntl.F_DUPFD_CLOEXEC, 64 + int.from_bytes(os.urandom(1), "big"))
    os.close(RECORD_FD)
    status = _run(json.loads(request), testbed, record_fd)
    sys.stdout.flush()
    sys.stderr.flush()
    return status


def _run(request: Dict[str, Any], testbed: str, record_fd: int) -> int:
    # Imported here: an environment without pytest can still run unittest.
    if request["runner"]["type"] == "unittest":
        from . import unittest_runner

        return unittest_runner.run(request, testbed, record_fd)
    from . import pytest_runner

    return pytest_runner.run(request, testbed, record_fd)


def main_from_stdin() -> None:
    """Entry of a cold run: the request is on standard input, the testbed the first argument."""
    request = sys.stdin.buffer.read()
    # As in a warm run: no thread or exit handler of the tests delays or changes the exit.
    os._exit(main(request, sys.argv[1]))


def warm_up() -> bool:
    """Import and exercise the runners, so that forks find them loaded; False when there is no pytest."""
    from . import unittest_runner  # noqa: F401

    try:
        from . import pytest_runner
    except ModuleNotFoundError:
        return False
    pytest_runner.warm_up()
    return True

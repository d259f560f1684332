"""Runs pytest in this process under the grader's own configuration and reports each test as it ends.

Reads a request (the JSON form of ``TestRequest``), makes the records of :mod:`.recorder` on descriptor 3. Invariants:
the repository's pytest configuration is never read and no plugin is loaded that the request does not name; the records
leave by a descriptor with a number that differs each time and that no program started by a test inherits.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import sys
import tempfile
from typing import Any, Dict, List, Optional

import pytest

from .recorder import Recorder
from .streams import RECORD_FD

_INI = os.path.join(os.path.dirname(os.path.abspath(__file__)), "pytest.ini")
_UNUSED_PLUGINS = (
    "cacheprovider",
    "stepwise",
    "pastebin",
    "junitxml",
    "doctest",
    "faulthandler",
    "setuponly",
    "setupplan",
    "terminalprogress",
    # What these two report depends on when garbage is collected.
    "threadexception",
    "unraisableexception",
)


def _arguments(request: Dict[str, Any], testbed: str) -> Optional[List[str]]:
    """Arguments of pytest; None when no requested file exists."""
    paths = sorted({name.split("::")[0] for name in request["test_ids"]})
    existing = [path for path in paths if path and os.path.exists(os.path.join(testbed, path))]
    if paths and not existing:
        return None
    arguments = ["-q", "-c", _INI, f"--rootdir={testbed}", f"--confcutdir={testbed}", "--import-mode=prepend"]
    arguments += ["--continue-on-collection-errors", "--tb=line", "--color=no"]
    for name in _UNUSED_PLUGINS:
        arguments += ["-p", f"no:{name}"]
    for name in request["plugins"]:
        arguments += ["-p", name]
    return arguments + [os.path.join(testbed, path) for path in existing]


def _run(request: Dict[str, Any], testbed: str, record_fd: int) -> int:
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    sources = [os.path.normpath(os.path.join(testbed, path)) for path in request["source_paths"]]
    os.environ["PYTHONPATH"] = os.pathsep.join(sources)
    own = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    sys.path[:] = sources + [path for path in sys.path if path not in ("", own)]
    sys.argv[:] = ["pytest"]
    os.chdir(testbed)
    arguments = _arguments(request, testbed)
    if arguments is None:
        sys.stdout.write("none of the requested test files exists\n")
        return int(pytest.ExitCode.USAGE_ERROR)
    return int(pytest.main(arguments, plugins=[Recorder(request, testbed, record_fd)]))


def main(request: bytes, testbed: str) -> int:
    """Run the tests of a request (JSON); returns pytest's exit status."""
    # A test that closes or writes to small numbers, or starts programs, never meets the records.
    record_fd = fcntl.fcntl(RECORD_FD, fcntl.F_DUPFD_CLOEXEC, 64 + int.from_bytes(os.urandom(1), "big"))
    os.close(RECORD_FD)
    status = _run(json.loads(request), testbed, record_fd)
    sys.stdout.flush()
    sys.stderr.flush()
    return status


def main_from_stdin() -> None:
    """Entry of a cold run: the request is on standard input, the testbed the first argument."""
    request = sys.stdin.buffer.read()
    # As in a warm run: no thread or exit handler of the tests delays or changes the exit.
    os._exit(main(request, sys.argv[1]))


_WARM_UP_TESTS = """
import unittest.mock
import pytest

def test_pass(tmp_path, monkeypatch, capsys, recwarn, caplog):
    print(tmp_path)

@pytest.mark.parametrize("value", [1, 2])
def test_fail(value):
    assert {"a": [value]} == {"a": [3]}

class TestCase(unittest.TestCase):
    def test_method(self):
        with self.assertRaises(ValueError):
            raise ValueError
        self.assertEqual([1], [2])
"""


def warm_up(folder: str = "/tmp") -> None:
    """Run a small suite in this process and remove its traces, so that forks find pytest loaded."""
    path, environment, cwd = list(sys.path), dict(os.environ), os.getcwd()
    testbed = tempfile.mkdtemp(dir=folder)
    with open(os.path.join(testbed, "test_mend_warm_up.py"), "w") as file:
        file.write(_WARM_UP_TESTS)
    request = {"test_ids": [], "test_timeout_s": 60, "source_paths": [""], "plugins": [], "traced_paths": []}
    with open(os.devnull, "w") as null, contextlib.redirect_stdout(null), contextlib.redirect_stderr(null):
        _run(request, testbed, null.fileno())
    sys.path[:] = path
    sys.modules.pop("test_mend_warm_up", None)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(cwd)
    shutil.rmtree(testbed, ignore_errors=True)

"""Runs pytest in this process under the grader's own configuration and reports each test as it ends.

Reads a request (the JSON form of ``TestRequest``), makes JSON lines on descriptor 3: one
``{"id", "outcome", "message", "duration_s", "functions"}`` per finished test and one ``{"selected": [ids]}``.
Invariants: the repository's pytest configuration is never read and no plugin is loaded that the request does not name;
a test that was asked for and is unknown does not keep the others from running.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from typing import Any, Dict, Iterator, List, Optional, Set

import pytest

from . import tracing
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
_MAX_MESSAGE_CHARS = 200
_RANKS = {"passed": 0, "skipped": 1, "failed": 2, "error": 3}


def first_line(text: str) -> str:
    """The first line of ``text`` that says something, at most 200 characters."""
    lines = (line.strip() for line in text.splitlines())
    return next((line for line in lines if line), "")[:_MAX_MESSAGE_CHARS]


def _report_message(report: Any) -> str:
    """What a failed or skipped report says."""
    longrepr = report.longrepr
    crash = getattr(longrepr, "reprcrash", None)
    if crash is not None:
        return first_line(crash.message)
    if isinstance(longrepr, tuple):
        return first_line(str(longrepr[2]))
    return first_line(str(longrepr or ""))


def _collect_message(report: Any) -> str:
    """The exception in a collection failure: the last line pytest marked as an error."""
    lines = [line[1:].strip() for line in str(report.longrepr).splitlines() if line.startswith("E ")]
    return first_line(lines[0] if lines else str(report.longrepr))


def _outcome(report: Any) -> str:
    """Our word for one phase of a test; an expected failure is a pass."""
    if hasattr(report, "wasxfail") and report.outcome == "skipped":
        return "passed"
    if report.outcome == "failed" and report.when != "call":
        return "error"
    return str(report.outcome)


class Recorder:
    """Pytest plugin: selects the requested tests, bounds each one in time, writes the records."""

    def __init__(self, request: Dict[str, Any], testbed: str, record_fd: int) -> None:
        self._requested: List[str] = request["test_ids"]
        self._timeout_s: float = request["test_timeout_s"]
        self._record_fd = record_fd
        self._tracer = tracing.FunctionTracer(testbed, request["traced_paths"])
        self._broken: Dict[str, str] = {}
        self._current: Dict[str, Any] = {}
        self._deadline = 0.0
        self._is_expired = False
        self._pid = os.getpid()

    def _write(self, record: Dict[str, Any]) -> None:
        if os.getpid() != self._pid:
            return  # a child that a test forked and that came back into pytest
        data = json.dumps(record).encode() + b"\n"
        while data:
            data = data[os.write(self._record_fd, data) :]

    # --- collection ---

    @pytest.hookimpl(hookwrapper=True)
    def pytest_load_initial_conftests(self) -> Iterator[None]:
        """A conftest that cannot be imported is an error of every requested test."""
        outcome: Any = yield
        if outcome.excinfo is not None:
            error = outcome.excinfo[1]
            # Up to pytest 7 the failure holds an ``excinfo`` triple, then a ``cause``.
            cause = getattr(error, "cause", None) or getattr(error, "excinfo", (None, error))[1]
            self._broken[""] = first_line(f"{type(cause).__name__}: {cause}")
            self._write_broken(set())

    def pytest_collectreport(self, report: Any) -> None:
        """Remember what could not be collected."""
        if report.failed:
            self._broken[report.nodeid] = _collect_message(report)

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config: Any, items: List[Any]) -> None:
        """Keep the requested tests only."""
        if self._requested:
            kept = [item for item in items if self._is_requested(item.nodeid)]
            config.hook.pytest_deselected(items=[item for item in items if item not in set(kept)])
            items[:] = kept
        self._write({"selected": [item.nodeid for item in items]})
        self._write_broken({item.nodeid for item in items})

    def _is_requested(self, node_id: str) -> bool:
        return any(
            node_id == name or node_id.startswith((name + "::", name + "[", name + "/")) for name in self._requested
        )

    def _write_broken(self, selected: Set[str]) -> None:
        for name in self._requested or sorted(self._broken):
            message = self._broken_message(name)
            if message is not None and name not in selected:
                self._write({"id": name, "outcome": "error", "message": message, "duration_s": 0.0})

    def _broken_message(self, name: str) -> Optional[str]:
        for node_id, message in self._broken.items():
            package = os.path.dirname(node_id) if node_id.endswith("__init__.py") else node_id
            if name == node_id or not node_id or name.startswith((node_id + "::", package + "/")):
                return message
        return None

    # --- running ---

    @pytest.hookimpl(hookwrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: Any) -> Iterator[None]:
        """One test from its setup to its teardown."""
        self._current = {"id": item.nodeid, "outcome": "passed", "message": "", "duration_s": 0.0}
        self._deadline = time.monotonic() + self._timeout_s
        self._is_expired = False
        self._tracer.start()
        yield
        functions = self._tracer.stop()
        self._write({**self._current, "functions": functions})

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Merge one phase into the test's record: the worst phase decides."""
        current, outcome = self._current, _outcome(report)
        current["duration_s"] += report.duration
        if _RANKS[outcome] > _RANKS[current["outcome"]]:
            current["outcome"] = outcome
            current["message"] = "timed out" if self._is_expired else _report_message(report)

    @contextlib.contextmanager
    def _bounded(self) -> Iterator[None]:
        def expire(_: int, __: Any) -> None:
            self._is_expired = True
            pytest.fail("timed out", pytrace=False)

        previous = signal.signal(signal.SIGALRM, expire)
        # Repeated, because code under test may swallow the first exception.
        signal.setitimer(signal.ITIMER_REAL, max(self._deadline - time.monotonic(), 0.001), 1.0)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, previous)

    @pytest.hookimpl(hookwrapper=True, tryfirst=True)
    def pytest_runtest_setup(self) -> Iterator[None]:
        """Bound the setup."""
        with self._bounded():
            yield

    @pytest.hookimpl(hookwrapper=True, tryfirst=True)
    def pytest_runtest_call(self) -> Iterator[None]:
        """Bound the call."""
        with self._bounded():
            yield

    @pytest.hookimpl(hookwrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self) -> Iterator[None]:
        """Bound the teardown."""
        self._deadline += 1.0
        with self._bounded():
            yield


def _arguments(request: Dict[str, Any], testbed: str) -> Optional[List[str]]:
    """Arguments of pytest; None when no requested file exists."""
    paths = sorted({name.split("::")[0] for name in request["test_ids"]})
    existing = [path for path in paths if path and os.path.exists(os.path.join(testbed, path))]
    if paths and not existing:
        return None
    arguments = ["-q", "-c", _INI, f"--rootdir={testbed}", f"--confcutdir={testbed}", "--import-mode=prepend"]
    arguments += ["--continue-on-collection-errors", "--tb=short", "--color=no"]
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
    status = _run(json.loads(request), testbed, RECORD_FD)
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

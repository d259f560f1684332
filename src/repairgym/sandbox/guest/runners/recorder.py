"""The pytest plugin that selects the requested tests, bounds each in time and reports each as it ends.

Reads a request (the JSON form of ``TestRequest``), makes records for the supervisor (:mod:`.supervisor`): one
``{"id", "phase", "outcome", "message", "line", "duration_s", "is_forged"}`` per phase (setup, call, teardown) of a test
(with ``reached``, what the end of a sealed body told), one without a phase per test that could not be collected,
``{"id", "functions"}`` when calls are traced, one ``{"selected": [ids]}`` and one ``{"finished": exit status}``.
Guarantees: all lines of a test are written at its end, so a killed run keeps its finished tests; an unknown requested
test does not stop the others.

Code of the tree runs in the same process and can reach everything here (``gc``, frames, the plugin manager). What it
finds is worth little alone: a record counts only in the order of the tests and, of a pass, with the number that the
end of the test's body told (:mod:`.sealing`); ``is_forged`` marks a phase that raised here but that pytest, whose
classes that code can replace, reported as passed; the outcomes that canary tests need are known to the host only
(`repairgym.grading.canaries`). Functions called here are bound before that code runs.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
from typing import Any, Callable, Dict, Iterator, List, Optional, Set

import pytest

from ..deadlines import Deadline, deadline_of_this_process
from .start import FunctionTracer, first_line, run_checks, selectors
from .supervisor import Link, Opener

_EXCEPTION = re.compile(r"[\w.]*(Error|Exception|Exit|Interrupt|Warning)\b")
_TEST_FOLDERS = frozenset({"test", "tests", "testing"})
_LONG_PHASE_S = 0.005
"""Phases from here on are timed without their waits for a processor."""


def _report_message(report: Any) -> str:
    """Return the message of a failed or skipped report."""
    longrepr = report.longrepr
    crash = getattr(longrepr, "reprcrash", None)
    if crash is not None:
        return first_line(crash.message)
    if isinstance(longrepr, tuple):
        return first_line(str(longrepr[2]))
    return first_line(str(longrepr or ""))


def _own_line(report: Any, path: str) -> int:
    """Return the line of the test's own file from which a failure came; 0 where its traceback has none.

    The traceback begins in the test function, so that the first line of its file is the test's.
    """
    traceback = getattr(report.longrepr, "reprtraceback", None)
    places = (getattr(entry, "reprfileloc", None) for entry in getattr(traceback, "reprentries", ()))
    lines = (place.lineno for place in places if place is not None and str(place.path).endswith(path))
    return int(next(lines, 0))


def _collect_message(report: Any) -> str:
    """Return the exception of a collection failure: in pytest's text its lines start with ``E``."""
    text = str(report.longrepr)
    lines = [line[1:].strip() for line in text.splitlines() if line.startswith("E ")]
    named = [line for line in lines if _EXCEPTION.match(line)]
    return first_line(named[-1] if named else lines[0] if lines else text)


def _outcome(report: Any) -> str:
    """Return the outcome of one phase of a test; an expected failure is a pass."""
    if hasattr(report, "wasxfail") and report.outcome == "skipped":
        return "passed"
    if report.outcome == "failed" and report.when != "call":
        return "error"
    return str(report.outcome)


def _is_raised_by_test(traceback: Any, testbed: str) -> bool:
    """Return True when the innermost frame in the tree is in a file that grading restores, or no frame is in it."""
    innermost = ""
    while traceback is not None:
        path = os.path.realpath(traceback.tb_frame.f_code.co_filename)
        if path.startswith(os.path.realpath(testbed) + os.sep):
            innermost = os.path.relpath(path, os.path.realpath(testbed))
        traceback = traceback.tb_next
    *folders, name = innermost.split(os.sep)
    is_test = name.startswith(("test_", "conftest.")) or name.endswith("_test.py")
    return not innermost or is_test or not _TEST_FOLDERS.isdisjoint(folders)


def _do_nothing() -> None:
    """Flush nothing."""


def _expirer(deadline: Deadline, expired: List[bool]) -> Callable[[int, Any], None]:
    """Return a handler of the alarm; it holds nothing of the recorder, because code of the tree can ask for it."""

    def expire(_: int, __: Any) -> None:
        remaining_s = deadline.remaining_s()
        if remaining_s > 0:
            signal.setitimer(signal.ITIMER_REAL, remaining_s, 1.0)
            return
        expired.append(True)
        pytest.fail("timed out", pytrace=False)

    return expire


class Recorder:
    """Pytest plugin that selects the requested tests, bounds each one in time and writes the records."""

    def __init__(self, request: Dict[str, Any], testbed: str, link: Link) -> None:
        self._requested: List[str] = request["test_ids"]
        self._wanted = {name.partition("[")[0] for name in self._requested}
        self._file_names = {os.path.basename(name.partition("::")[0]) for name in self._requested}
        self._has_files_only = all(name.endswith(".py") for name in self._file_names)
        self._timeout_s: float = request["test_timeout_s"]
        self._write = link.write
        self._opener = Opener(link, request["is_sealed"])
        self._tracer = FunctionTracer(testbed, request["traced_paths"])
        self._testbed = testbed
        self._request = request
        self._broken: Dict[str, str] = {}
        self._current = ""
        self._is_forged = False
        self._deadline = deadline_of_this_process(self._timeout_s)
        self._waited_s = 0.0
        """Waits for a processor since the start of the test, when they were last read."""
        self._expired: List[bool] = []
        self._raised: Set[str] = set()

    # --- collection ---

    @pytest.hookimpl(hookwrapper=True)
    def pytest_load_initial_conftests(self) -> Iterator[None]:
        """Report a conftest that cannot be imported as an error of every requested test."""
        outcome: Any = yield
        if outcome.excinfo is not None:
            error = outcome.excinfo[1]
            # Up to pytest 7 the failure holds an ``excinfo`` triple, then a ``cause``.
            cause = getattr(error, "cause", None) or getattr(error, "excinfo", (None, error))[1]
            self._broken[""] = first_line(f"{type(cause).__name__}: {cause}")
            self._write_broken(set())

    @pytest.hookimpl(trylast=True)
    def pytest_sessionstart(self, session: Any) -> None:
        """Keep pytest's report of the run together: a write for each test wakes who reads it."""
        reporter = session.config.pluginmanager.get_plugin("terminalreporter")
        if hasattr(reporter, "flush"):
            reporter.flush = _do_nothing

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection(self) -> None:
        """Compile and import the requested files and modules, as the first test file would."""
        for record in run_checks(self._request, self._testbed):
            self._write(record)

    if hasattr(pytest, "Dir"):  # from pytest 8 on, a requested file is looked for among all files of its folders

        @pytest.hookimpl(tryfirst=True)
        def pytest_ignore_collect(self, collection_path: Any) -> Optional[bool]:
            """Skip files without a requested test."""
            name = collection_path.name
            is_other = self._requested and self._has_files_only and name.endswith(".py")
            return True if is_other and name not in self._file_names else None

    @pytest.hookimpl(tryfirst=True)
    def pytest_pycollect_makeitem(self, collector: Any, name: str) -> Optional[List[Any]]:
        """Skip functions and classes without a requested test: their collection would take most of a run's time."""
        node_id = f"{collector.nodeid}::{name}"
        if not self._requested or not self._wanted.isdisjoint(selectors(node_id)):
            return None
        return None if any(wanted.startswith(node_id + "::") for wanted in self._wanted) else []

    def pytest_collectreport(self, report: Any) -> None:
        """Remember a failed collection."""
        if report.failed:
            self._broken[report.nodeid] = _collect_message(report)

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config: Any, items: List[Any]) -> None:
        """Keep the requested tests only."""
        if self._requested:
            wanted = set(self._requested)
            others = [item for item in items if wanted.isdisjoint(selectors(item.nodeid))]
            config.hook.pytest_deselected(items=others)
            items[:] = [item for item in items if not wanted.isdisjoint(selectors(item.nodeid))]
        self._opener.collect({str(item.fspath) for item in items})
        self._write({"selected": [item.nodeid for item in items]})
        self._write_broken({item.nodeid for item in items})

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
        """Trace one test from its setup to its teardown."""
        self._current = item.nodeid
        self._is_forged = False
        self._deadline = deadline_of_this_process(self._timeout_s)
        self._waited_s = 0.0
        self._expired = []
        self._raised = set()
        self._tracer.start()
        yield
        functions = self._tracer.stop()
        if functions:
            self._write({"id": self._current, "functions": functions})

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Report one phase."""
        outcome = _outcome(report)
        is_clean = outcome == "passed" and not hasattr(report, "wasxfail")
        duration_s = self._own_duration_s(report.duration)
        record = {"id": self._current, "phase": report.when, "outcome": outcome, "duration_s": duration_s}
        message = "" if outcome == "passed" else "timed out" if self._expired else _report_message(report)
        is_forged = self._is_forged or (is_clean and report.when in self._raised)
        reached = {"reached": self._opener.reached[-1]} if self._opener.reached else {}
        line = _own_line(report, self._current.partition("::")[0]) if message else 0
        self._write({**record, "message": message, "line": line, "is_forged": is_forged, **reached})
        self._is_forged = False

    def _own_duration_s(self, duration_s: float) -> float:
        """Return ``duration_s`` of a phase without its waits for a processor; only after a long phase they are read."""
        if duration_s < _LONG_PHASE_S:
            return duration_s
        waited_s, before_s = self._deadline.waited_s(), self._waited_s
        self._waited_s = waited_s
        return max(duration_s - max(waited_s - before_s, 0.0), 0.0)

    def _note(self, when: str, outcome: Any) -> None:
        """Remember a phase that raised, as seen here and not in a report."""
        self._raised.discard(when)
        if outcome.excinfo is not None:
            self._raised.add(when)
            if type(outcome.excinfo[1]).__name__ == "XFailed" and not _is_raised_by_test(
                outcome.excinfo[2], self._testbed
            ):
                self._is_forged = True  # code under test declared its own failure as expected

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, exitstatus: Any) -> None:
        """Report the regular end of the run."""
        self._write({"finished": int(exitstatus)})

    @contextlib.contextmanager
    def _bounded(self) -> Iterator[None]:
        previous = signal.signal(signal.SIGALRM, _expirer(self._deadline, self._expired))
        # Repeated, because code under test may swallow the first exception.
        signal.setitimer(signal.ITIMER_REAL, max(self._deadline.remaining_s(), 0.001), 1.0)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, previous)

    @pytest.hookimpl(hookwrapper=True, tryfirst=True)
    def pytest_runtest_setup(self) -> Iterator[None]:
        """Bound the setup."""
        with self._bounded():
            outcome: Any = yield
        self._note("setup", outcome)

    @pytest.hookimpl(hookwrapper=True, tryfirst=True)
    def pytest_runtest_call(self) -> Iterator[None]:
        """Give the test its body and bound the call."""
        self._opener.open(self._current)
        with self._bounded():
            outcome: Any = yield
        self._note("call", outcome)

    @pytest.hookimpl(hookwrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self) -> Iterator[None]:
        """Bound the teardown."""
        self._deadline.extend(1.0)
        with self._bounded():
            outcome: Any = yield
        self._note("teardown", outcome)

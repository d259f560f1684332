"""Unittest in this process; each phase of a test is reported in the same signed records as pytest's.

Reads a request whose ids are pytest's (``tests/test_a.py::TestB::test_c``), makes the records of :mod:`.recorder` over
a given link. Guarantees: only files that the request names are imported, by their dotted name from the
repository root; a test counts as finished after its cleanup; an exception of a test method is a failure, one of
``setUp``, ``tearDown`` or a class or module fixture an error, as in pytest. The protection is that of
:mod:`.recorder`, except for phases that raised and were reported as passed, which unittest does not reveal.
"""

from __future__ import annotations

import os
import signal
import sys
import time
import unittest
from typing import Any, Dict, Iterator, List, Set

from ..deadlines import Deadline, deadline_of_this_process
from .start import FunctionTracer, enter, first_line, run_checks, selectors
from .supervisor import Link, Opener

# Bound now: code of the tree can replace the attributes of this module later.
_monotonic = time.monotonic
_PHASES = ("setup", "call", "teardown")
_PHASE_OF_FRAME = {"_callSetUp": "setup", "_callTearDown": "teardown", "doCleanups": "teardown"}
_RANKS = {"passed": 0, "skipped": 1, "failed": 2, "error": 3}


class _Expired(BaseException):
    """The test's deadline has passed; ``except Exception`` in the code under test does not catch it."""


def _phase(traceback: Any) -> str:
    """Return the phase whose frame of :mod:`unittest` is the outermost."""
    while traceback is not None:
        phase = _PHASE_OF_FRAME.get(traceback.tb_frame.f_code.co_name)
        if phase is not None:
            return phase
        traceback = traceback.tb_next
    return "call"


def _message(error: Any) -> str:
    kind, value, _ = error
    if kind is _Expired:
        return "timed out"
    return first_line(f"{kind.__name__}: {value}" if str(value) else kind.__name__)


class RecordingResult(unittest.TestResult):
    """A result that writes the phases of each test at its end."""

    def __init__(self, request: Dict[str, Any], testbed: str, link: Link) -> None:
        super().__init__()
        self._timeout_s: float = request["test_timeout_s"]
        self.write = link.write
        self.opener = Opener(link, request["is_sealed"])
        self._tracer = FunctionTracer(testbed, request["traced_paths"])
        self._paths: Dict[str, str] = {}
        self._members: Dict[str, List[str]] = {}
        self._phases: Dict[str, Dict[str, Any]] = {}
        self._current: Any = None
        self._started = 0.0
        self.has_problem = False

    def select(self, path: str, tests: List[unittest.TestCase]) -> None:
        """Register the tests of a file that will run."""
        for test in tests:
            module = type(test).__module__
            self._paths[module] = path
            # A class or module fixture that raises has this name.
            for name in (module, f"{module}.{type(test).__qualname__}"):
                self._members.setdefault(name, []).append(self.id_of(test))

    def id_of(self, test: unittest.TestCase) -> str:
        """Return the node id of ``test``."""
        kind = type(test)
        names = kind.__qualname__.replace(".", "::")
        return f"{self._paths[kind.__module__]}::{names}::{test._testMethodName}"

    def write_error(self, test_id: str, message: str) -> None:
        """Report a test that cannot run."""
        self.has_problem = True
        self.write({"id": test_id, "outcome": "error", "message": message, "duration_s": 0.0})

    def startTest(self, test: unittest.TestCase) -> None:
        """Start the deadline."""
        super().startTest(test)
        self.opener.open(self.id_of(test))
        self._current = test
        self._phases = {phase: {"outcome": "passed", "message": ""} for phase in _PHASES}
        self._started = _monotonic()
        deadline = deadline_of_this_process(self._timeout_s)
        signal.signal(signal.SIGALRM, lambda *_: _expire(deadline))
        # Repeated, because code under test may swallow the first exception.
        signal.setitimer(signal.ITIMER_REAL, self._timeout_s, 1.0)
        self._tracer.start()

    def stopTest(self, test: unittest.TestCase) -> None:
        """Report the phases."""
        functions = self._tracer.stop()
        signal.setitimer(signal.ITIMER_REAL, 0)
        duration_s, test_id = _monotonic() - self._started, self.id_of(test)
        for phase, record in self._phases.items():
            seconds = duration_s if phase == "call" else 0.0
            reached = {"reached": self.opener.reached[-1]} if self.opener.reached else {}
            timed = {"phase": phase, **record, "duration_s": seconds, "is_forged": False}
            self.write({"id": test_id, **timed, **reached})
        if functions:
            self.write({"id": test_id, "functions": functions})
        self._current = None
        super().stopTest(test)

    def _note(self, phase: str, outcome: str, message: str) -> None:
        record = self._phases[phase]
        self.has_problem |= outcome in ("failed", "error")
        if _RANKS[outcome] > _RANKS[record["outcome"]]:
            record.update(outcome=outcome, message=message)

    def addError(self, test: Any, error: Any) -> None:
        """An exception that is no failed assertion; ``test`` is no test when a class or module fixture raised."""
        if not isinstance(test, unittest.TestCase):
            for test_id in self._members.get(str(test).partition("(")[2].rstrip(")"), []):
                self.write_error(test_id, _message(error))
            return
        if test is not self._current:  # what a framework does around a test, outside of unittest's own steps
            self.write_error(self.id_of(test), _message(error))
            return
        phase = _phase(error[2])
        self._note(phase, "failed" if phase == "call" else "error", _message(error))

    def addFailure(self, test: Any, error: Any) -> None:
        """A failed assertion."""
        self.addError(test, error)

    def addSubTest(self, test: Any, subtest: Any, error: Any) -> None:
        """A part of a test; a failing part fails the test."""
        if error is not None:
            self._note("call", "failed", _message(error))

    def addSkip(self, test: Any, reason: str) -> None:
        """Skipped, by a decorator, in ``setUp`` or in the test."""
        if test is self._current:
            self._note("call", "skipped", first_line(f"Skipped: {reason}"))

    def addUnexpectedSuccess(self, test: Any) -> None:
        """Passed where a failure was expected."""
        self._note("call", "failed", "Unexpected success")


def _expire(deadline: Deadline) -> None:
    remaining_s = deadline.remaining_s()
    if remaining_s <= 0:
        raise _Expired("timed out")
    signal.setitimer(signal.ITIMER_REAL, remaining_s, 1.0)


def tests_in(suite: Any) -> Iterator[unittest.TestCase]:
    """Yield the tests of ``suite`` and of the suites in it."""
    for part in suite:
        if isinstance(part, unittest.TestCase):
            yield part
        else:
            yield from tests_in(part)


def _load(loader: unittest.TestLoader, path: str) -> List[unittest.TestCase]:
    """Load the tests of a file; raise whatever its import raises."""
    name = path[: -len(".py")].replace("/", ".")
    __import__(name)
    return list(tests_in(loader.loadTestsFromModule(sys.modules[name])))


def _files(wanted: Set[str], testbed: str) -> List[str]:
    """Return the files of the wanted tests; without any, all files named like tests."""
    if wanted:
        paths = {name.partition("::")[0] for name in wanted}
        return sorted(path for path in paths if path.endswith(".py") and os.path.isfile(os.path.join(testbed, path)))
    files = []
    for folder, _, names in os.walk(testbed):
        tests = [name for name in names if name.startswith("test") and name.endswith(".py")]
        files += [os.path.relpath(os.path.join(folder, name), testbed) for name in tests]
    return sorted(files)


def write_broken(result: RecordingResult, wanted: Set[str], path: str, message: str) -> None:
    """Report a file that cannot be imported as an error of each requested test in it."""
    for name in sorted(wanted) or [path]:
        if name == path or name.startswith(path + "::"):
            result.write_error(name, message)


def run(request: Dict[str, Any], testbed: str, link: Link) -> int:
    """Run the requested tests; return 0 when all passed, else 1."""
    enter(request, testbed, "unittest")
    # As with `python -m unittest`, but after the sources, which the tests have to import.
    sys.path.append(testbed)
    wanted: Set[str] = set(request["test_ids"])
    result = RecordingResult(request, testbed, link)
    for record in run_checks(request, testbed):
        result.write(record)
    loader, chosen = unittest.TestLoader(), []
    for path in _files(wanted, testbed):
        try:
            tests = _load(loader, path)
        except BaseException as error:
            write_broken(result, wanted, path, first_line(f"{type(error).__name__}: {error}"))
            continue
        result.select(path, tests)
        chosen += [test for test in tests if not wanted or not wanted.isdisjoint(selectors(result.id_of(test)))]
    result.opener.collect({os.path.join(testbed, path) for path in _files(wanted, testbed)})
    result.write({"selected": [result.id_of(test) for test in chosen]})
    loader.suiteClass(chosen).run(result)
    status = int(result.has_problem)
    result.write({"finished": status})
    return status

"""The test suite of Django in this process, by its own program; each test is reported as unittest's are.

Reads a request whose ids are node ids (``tests/app/tests.py::Case::test_a``); makes the records of
:mod:`.unittest_runner` over a given link. Guarantees: settings, applications and databases are those that
``tests/runtests.py`` of the tree sets up for the modules of the requested tests; only requested tests run, in the order
of that program; a module that cannot be imported, and a program that ends before its tests, are errors of the tests.
The protection is that of :mod:`.unittest_runner`.
"""

from __future__ import annotations

import importlib
import os
import runpy
import sys
import unittest
from typing import Any, Dict, List, Set

from .start import enter, first_line, run_checks, selectors
from .supervisor import Link
from .unittest_runner import RecordingResult, tests_in, write_broken

_FOLDER = "tests"
_PROGRAM = "runtests.py"


class _Session:
    """The requested tests of one run of the program."""

    def __init__(self, request: Dict[str, Any], testbed: str, link: Link) -> None:
        self._testbed = testbed
        self._wanted: Set[str] = set(request["test_ids"])
        self.result = RecordingResult(request, testbed, link)
        self._paths = {name.partition("::")[0] for name in self._wanted}
        self._is_started = False

    def labels(self) -> List[str]:
        """Return the modules of the requested tests that exist, as the program names them."""
        own = [path for path in sorted(self._paths) if path.startswith(_FOLDER + "/") and path.endswith(".py")]
        return [_module(path) for path in own if os.path.isfile(os.path.join(self._testbed, path))]

    def run_suite(self, suite: Any) -> RecordingResult:
        """Run the requested tests of ``suite``, in place of the method of Django's runner."""
        self._is_started = True
        by_path: Dict[str, List[unittest.TestCase]] = {}
        for test in tests_in(suite):
            if type(test).__name__ == "_FailedTest":  # what unittest makes of a module that cannot be imported
                self._write_unimported(test._testMethodName, str(getattr(test, "_exception", "")))
            else:
                by_path.setdefault(self._path_of(test), []).append(test)
        for path, tests in by_path.items():
            self.result.select(path, tests)
        tests = [test for tests in by_path.values() for test in tests]
        chosen = [test for test in tests if not self._wanted.isdisjoint(selectors(self.result.id_of(test)))]
        self.result.opener.collect({os.path.join(self._testbed, path) for path in self._paths})
        self.result.write({"selected": [self.result.id_of(test) for test in chosen]})
        type(suite)(chosen).run(self.result)
        return self.result

    def _path_of(self, test: unittest.TestCase) -> str:
        file = getattr(sys.modules.get(type(test).__module__), "__file__", None) or ""
        return os.path.relpath(os.path.realpath(file), os.path.realpath(self._testbed))

    def _write_unimported(self, module: str, message: str) -> None:
        lines = [line for line in message.splitlines() if line.strip()]
        for path in self._paths:
            if _module(path) == module or _module(path).endswith("." + module):
                write_broken(self.result, self._wanted, path, first_line(lines[-1] if lines else "not imported"))

    def write_unstarted(self, message: str) -> None:
        """Report tests of a program that ended before them."""
        for path in sorted(self._paths) if not self._is_started else ():
            write_broken(self.result, self._wanted, path, message)


def _module(path: str) -> str:
    name = path[len(_FOLDER) + 1 : -len(".py")]
    return (name[: -len("/__init__")] if name.endswith("/__init__") else name).replace("/", ".")


def run(request: Dict[str, Any], testbed: str, link: Link) -> int:
    """Run the requested tests; return 0 when all passed, else 1."""
    enter(request, testbed, _PROGRAM)
    folder = os.path.join(testbed, _FOLDER)
    sys.path.insert(0, folder)
    session = _Session(request, testbed, link)
    for record in run_checks(request, testbed):
        link.write(record)
    message = "the program ended before the tests"
    try:
        runner: Any = importlib.import_module("django.test.runner").DiscoverRunner
        runner.run_suite = lambda _, suite, **__: session.run_suite(suite)
        sys.argv[1:] = ["--parallel=1", "--verbosity=0", *session.labels()]
        runpy.run_path(os.path.join(folder, _PROGRAM), run_name="__main__")
    except SystemExit:
        pass
    except BaseException as error:
        message = first_line(f"{type(error).__name__}: {error}")
        session.result.has_problem = True
    session.write_unstarted(message)
    status = int(session.result.has_problem)
    link.write({"finished": status})
    return status

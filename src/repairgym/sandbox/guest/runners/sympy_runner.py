"""Functions of SymPy's test files in this process, as its own program runs them; reported as unittest's tests are.

Reads a request whose ids are node ids (``sympy/core/tests/test_expr.py::test_a``); makes the records of
:mod:`.unittest_runner` over a given link. Guarantees: a file is executed as ``bin/test -C`` does it (its text, without
a module of its own; the cache is off; deprecations raise); a test whose outcome is an expected failure or a skip is
*skipped*, never passed, so code under test gains nothing from raising either. The protection is that of
:mod:`.unittest_runner`.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import os
import random
import sys
import unittest
import warnings
from typing import Any, Callable, ContextManager, Dict, List, Set

from .start import enter, first_line, run_checks, selectors
from .supervisor import Link
from .unittest_runner import RecordingResult, write_broken

_NOT_DECIDED = frozenset({"Skipped", "XFail"})
_SEED = 0
_Strictness = Callable[[], ContextManager[Any]]


class _Test(unittest.TestCase):
    """One function."""

    def __init__(self, node_id: str, function: Any, strictness: _Strictness) -> None:
        super().__init__("runTest")
        self.node_id = node_id
        self._function = function
        self._strictness = strictness

    def runTest(self) -> None:
        """Call the function; of a generator, each function that it yields."""
        if getattr(self._function, "_slow", False):
            self.skipTest("slow")
        random.seed(_SEED)
        try:
            with self._strictness():
                if inspect.isgeneratorfunction(self._function):
                    for function, *arguments in self._function():
                        function(*arguments)
                else:
                    self._function()
        except Exception as error:
            if type(error).__name__ in _NOT_DECIDED:
                self.skipTest(f"{type(error).__name__} {error}")
            raise


class _Result(RecordingResult):
    """A result whose tests are functions."""

    def id_of(self, test: Any) -> str:
        """Return the node id of ``test``."""
        return str(test.node_id)


def _strictness() -> _Strictness:
    """Import SymPy; return what makes its deprecations errors."""
    try:
        program: Any = importlib.import_module("sympy.testing.runtests")
    except ImportError:
        program = importlib.import_module("sympy.utilities.runtests")
    if hasattr(program, "raise_on_deprecated"):
        return program.raise_on_deprecated  # type: ignore[no-any-return]
    warnings.simplefilter("error", importlib.import_module("sympy.utilities.exceptions").SymPyDeprecationWarning)
    return contextlib.nullcontext


def _functions(path: str, testbed: str) -> Dict[str, Any]:
    """Execute a file; return its tests by name, in the order of their lines."""
    place = os.path.join(testbed, path)
    with open(place, encoding="utf8") as file:
        source = file.read()
    names: Dict[str, Any] = {"__file__": place}
    exec(compile(source, place, "exec", dont_inherit=True), names)  # noqa: S102 - a test file
    if names.get("disabled", False):
        return {}
    tests = [(name, value) for name, value in names.items() if name.startswith("test_") and inspect.isfunction(value)]
    own = [(name, value) for name, value in tests if inspect.unwrap(value).__code__.co_filename == place]
    return dict(sorted(own, key=lambda pair: inspect.unwrap(pair[1]).__code__.co_firstlineno))


def _tests(result: RecordingResult, request: Dict[str, Any], testbed: str) -> List[_Test]:
    """Execute the files of the request and return its tests; what cannot be executed is reported."""
    wanted: Set[str] = set(request["test_ids"])
    chosen: List[_Test] = []
    for path in sorted({name.partition("::")[0] for name in wanted}):
        try:
            strictness, functions = _strictness(), _functions(path, testbed)
        except FileNotFoundError:
            continue
        except BaseException as error:
            write_broken(result, wanted, path, first_line(f"{type(error).__name__}: {error}"))
            continue
        ids = {f"{path}::{name}": function for name, function in functions.items()}
        chosen += [_Test(key, ids[key], strictness) for key in ids if not wanted.isdisjoint(selectors(key))]
    return chosen


def run(request: Dict[str, Any], testbed: str, link: Link) -> int:
    """Run the requested tests; return 0 when all passed, else 1."""
    os.environ["SYMPY_USE_CACHE"] = "no"
    enter(request, testbed, "test")
    sys.path.append(testbed)
    result = _Result(request, testbed, link)
    for record in run_checks(request, testbed):
        link.write(record)
    chosen = _tests(result, request, testbed)
    result.opener.collect({os.path.join(testbed, name.partition("::")[0]) for name in request["test_ids"]})
    link.write({"selected": [test.node_id for test in chosen]})
    unittest.TestSuite(chosen).run(result)
    status = int(result.has_problem)
    link.write({"finished": status})
    return status

"""Test runs in this process: the choice of the runner, and what the runners share.

Reads a request (the JSON form of ``TestRequest``); the runner makes records for the supervisor (:mod:`.supervisor`).
Guarantees: the testbed's sources come first on ``sys.path``; a missing runner is an error of the request.

`run_checks` compiles files and imports modules before the tests and makes one record ``{"check", "outcome", "message",
"duration_s"}`` per kind. The tests would have paid the same time. Code of the tree runs here as it does in its tests
and gains no more, because a passing check earns nothing.

`FunctionTracer` makes ``path::first_line`` ids of executed functions (``co_firstlineno``, the first decorator's line if
there is one). Module and class bodies, comprehensions and lambdas do not count as functions. Files that are not traced
cost one dictionary look-up per call (per code object from Python 3.12 on).
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import threading
import time
from types import CodeType, FrameType
from typing import Any, Callable, Dict, List, Optional, Sequence, Set, Tuple

from . import NODE_RUNNERS, supervisor, watching

MAX_MESSAGE_CHARS = 200
_CO_OPTIMIZED = 1
_MODULES = dict.fromkeys(NODE_RUNNERS, "node")
"""Runner -> name of its module, where several share one."""


def main(request: bytes, testbed: str, prepare: Callable[[], None] = lambda: None) -> int:
    """Run the tests of a request (JSON) and return the runner's exit status.

    ``prepare`` is called in the tests' process and may run code of the tree.
    """
    parsed = json.loads(request)
    return supervisor.run(parsed, testbed, lambda link: _run(parsed, testbed, link, prepare))


def _run(request: Dict[str, Any], testbed: str, link: supervisor.Link, prepare: Callable[[], None]) -> int:
    if request["is_sealed"]:
        watching.watch(testbed, link.write)
    name = request["runner"]["type"]
    if name == "own_pytest":  # pytest comes from the tree: only this process, which runs its code anyway, imports it
        sys.path[:0], name = _sources(request, testbed), "pytest"
    # Imported here: an environment without pytest can still run the others.
    runner = importlib.import_module(f"{__package__}.{_MODULES.get(name, name)}_runner")
    _forget_modules()
    prepare()
    return int(runner.run(request, testbed, link))


def _forget_modules() -> None:
    """Take our own modules out of ``sys.modules``, where code of the tree could look them up by their names."""
    own = __name__.rpartition(".runners.")[0]
    for name in [name for name in sys.modules if name == own or name.startswith(own + ".")]:
        del sys.modules[name]


def main_from_stdin() -> None:
    """Run a cold request from standard input; the first argument is the testbed."""
    request = sys.stdin.buffer.read()
    # As in a warm run, no thread or exit handler of the tests delays or changes the exit.
    os._exit(main(request, sys.argv[1]))


def warm_up() -> bool:
    """Import and exercise the runners, so that forks find them loaded; False when there is no pytest."""
    import fractions  # noqa: F401 - for the subjects of replays
    import pickle  # noqa: F401

    from . import django_runner, sympy_runner  # noqa: F401

    try:
        from . import pytest_runner
    except ModuleNotFoundError:
        return False
    pytest_runner.warm_up()
    return True


# --- the testbed ------------------------------------------------------------------------------------------------------


def enter(request: Dict[str, Any], testbed: str, program: str) -> None:
    """Enter the testbed with its sources first on ``sys.path`` and without the runner's own folder."""
    sources = _sources(request, testbed)
    os.environ["PYTHONPATH"] = os.pathsep.join(sources)
    own = os.path.abspath(os.path.join(os.path.dirname(__file__), os.pardir, os.pardir))
    sys.path[:] = sources + [path for path in sys.path if path not in ("", own)]
    sys.argv[:] = [program]
    os.chdir(testbed)


def _sources(request: Dict[str, Any], testbed: str) -> List[str]:
    return [os.path.normpath(os.path.join(testbed, path)) for path in request["source_paths"]]


def first_line(text: str) -> str:
    """Return the first line of ``text`` that is not empty, at most 200 characters."""
    lines = (line.strip() for line in text.splitlines())
    return next((line for line in lines if line), "")[:MAX_MESSAGE_CHARS]


def selectors(node_id: str) -> Set[str]:
    """Return every id that selects ``node_id``: its own, its function, class, file and folders."""
    base = node_id.partition("[")[0]
    names = {node_id, base}
    for separator in ("::", "/"):
        while separator in base:
            base = base.rpartition(separator)[0]
            names.add(base)
    return names


# --- checks -----------------------------------------------------------------------------------------------------------


def run_checks(request: Dict[str, Any], testbed: str) -> List[Dict[str, Any]]:
    """Compile and import what ``request`` lists and return the records; never raises."""
    # No argument here leads to the recorder: code of the tree is on the stack above.
    return [
        _check(kind, names, act, os.path.realpath(testbed))
        for kind, names, act in (
            ("compile", request["compiled_paths"], _compile),
            ("import", request["imported_modules"], importlib.import_module),
        )
        if names
    ]


def _compile(path: str) -> None:
    with open(path, "rb") as file:
        compile(file.read(), path, "exec", dont_inherit=True)


def _check(kind: str, names: List[str], act: Callable[[str], Any], testbed: str) -> Dict[str, Any]:
    started, outcome, message = time.monotonic(), "passed", ""
    try:
        for name in names:
            act(name)
    except BaseException as error:
        outcome, message = "failed", _describe(error, testbed)
    return {"check": kind, "outcome": outcome, "message": message, "duration_s": time.monotonic() - started}


def _describe(error: BaseException, testbed: str) -> str:
    """Return ``path:line: Exception: text`` with the last place in the testbed."""
    path, line, text = "", 0, str(error)
    traceback = error.__traceback__
    while traceback is not None:
        name = os.path.realpath(traceback.tb_frame.f_code.co_filename)
        # Frames of the interpreter itself, such as <frozen importlib>, have no file.
        if name.startswith(testbed + os.sep) and os.path.isfile(name):
            path, line = os.path.relpath(name, testbed), traceback.tb_lineno
        traceback = traceback.tb_next
    if isinstance(error, SyntaxError) and error.filename:
        path, line, text = os.path.relpath(os.path.realpath(error.filename), testbed), error.lineno or 0, str(error.msg)
    place = f"{path}:{line}: " if path else ""
    return first_line(f"{place}{type(error).__name__}: {text}" if text else f"{place}{type(error).__name__}")


# --- tracing -------------------------------------------------------------------------------------------------------


class FunctionTracer:
    """A collector of ids between :meth:`start` and :meth:`stop`; does nothing without paths."""

    def __init__(self, root: str, paths: Sequence[str]) -> None:
        self._relative = {os.path.realpath(os.path.join(root, path)): path for path in paths}
        self._ids: Dict[Tuple[str, CodeType], Optional[str]] = {}
        self._executed: Set[str] = set()
        self._monitoring: Any = getattr(sys, "monitoring", None) if paths else None
        if self._monitoring is not None:
            self._monitoring.use_tool_id(self._monitoring.PROFILER_ID, "repairgym")
            self._monitoring.register_callback(
                self._monitoring.PROFILER_ID, self._monitoring.events.PY_START, self._on_start
            )

    def _id(self, code: CodeType) -> Optional[str]:
        key = (code.co_filename, code)  # code objects of two files are equal where text and line are
        if key not in self._ids:
            path = self._relative.get(os.path.realpath(code.co_filename))
            is_function = code.co_flags & _CO_OPTIMIZED and not code.co_name.startswith("<")
            self._ids[key] = f"{path}::{code.co_firstlineno}" if path is not None and is_function else None
        return self._ids[key]

    def _note(self, code: CodeType) -> None:
        name = self._id(code)
        if name is not None:
            self._executed.add(name)

    def _on_start(self, code: CodeType, _: int) -> Any:
        self._note(code)
        return self._monitoring.DISABLE

    def _on_profile(self, frame: FrameType, event: str, _: Any) -> None:
        if event == "call":
            self._note(frame.f_code)

    def start(self) -> None:
        """Start collecting."""
        self._executed = set()
        if not self._relative:
            return
        if self._monitoring is not None:
            self._monitoring.set_events(self._monitoring.PROFILER_ID, self._monitoring.events.PY_START)
            self._monitoring.restart_events()
        else:
            threading.setprofile(self._on_profile)
            sys.setprofile(self._on_profile)

    def stop(self) -> List[str]:
        """Stop collecting; return the sorted ids."""
        if self._relative and self._monitoring is not None:
            self._monitoring.set_events(self._monitoring.PROFILER_ID, 0)
        elif self._relative:
            sys.setprofile(None)
            threading.setprofile(None)
        return sorted(self._executed)

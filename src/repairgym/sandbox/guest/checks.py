"""Compiles files and imports modules in the process of the tests, before them.

Reads the paths and names of a request, makes one record ``{"check", "outcome", "message", "duration_s"}`` per kind.
Invariants: it costs what the tests would have paid anyway; code of the tree runs here as it does in its tests, and can
gain no more: a check that passes earns nothing.
"""

from __future__ import annotations

import importlib
import os
import time
from typing import Any, Callable, Dict, List

from .testbed import first_line

Write = Callable[[Dict[str, Any]], None]


def run_checks(request: Dict[str, Any], testbed: str, write: Write) -> None:
    """Do what ``request`` asks for; nothing raises."""
    for kind, names, act in (
        ("compile", request["compiled_paths"], _compile),
        ("import", request["imported_modules"], importlib.import_module),
    ):
        if names:
            _check(kind, names, act, os.path.realpath(testbed), write)


def _compile(path: str) -> None:
    with open(path, "rb") as file:
        compile(file.read(), path, "exec", dont_inherit=True)


def _check(kind: str, names: List[str], act: Callable[[str], Any], testbed: str, write: Write) -> None:
    started, outcome, message = time.monotonic(), "passed", ""
    try:
        for name in names:
            act(name)
    except BaseException as error:
        outcome, message = "failed", _describe(error, testbed)
    write({"check": kind, "outcome": outcome, "message": message, "duration_s": time.monotonic() - started})


def _describe(error: BaseException, testbed: str) -> str:
    """``path:line: Exception: text``; the place is the last one in the testbed."""
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

"""A watch over what code of the tree reaches for while tests run: frames, objects of the collector, tracing, signals.

Installed before code of the tree runs, as an audit hook (PEP 578): the interpreter itself reports the access, under
whatever name, in a text or through a function that looks names up, and before the object is handed out. Handlers of
signals, which get a frame, have no such event: functions in place of the interpreter's report them. Makes records
``{"reached_for", "path"}``, one for each kind of access and file. Guarantees: nothing that runs later can remove it;
accesses of pytest, of test files, of installed packages and of the standard library for its own use (a traceback that
is printed, the place of a warning) are not reported. An access in a thread without code of the tree has the path
`IN_THREAD`. The locals of a frame and attributes of ordinary objects have no such report.
"""

from __future__ import annotations

import _imp
import os
import signal
import sys
from _thread import get_ident
from importlib.machinery import ModuleSpec
from threading import main_thread
from types import FrameType
from typing import Any, Callable, Dict, Optional, Set, Tuple

from ..wire import Header

_EVENTS = frozenset({
    "gc.get_objects", "gc.get_referrers", "gc.get_referents", "sys._getframe", "sys._current_frames", "sys.settrace",
    "sys.setprofile", "sys.addaudithook",
})  # fmt: skip
IN_THREAD = "<thread>"
"""Stands for the file that handed a function to a thread."""
_ATTRIBUTES = frozenset({"tb_frame", "gi_frame", "cr_frame", "ag_frame"})
_LIBRARY = os.path.realpath(os.path.dirname(os.__file__)) + os.sep
_KEEPING = frozenset({
    "logging", "warnings", "traceback", "unittest", "collections", "enum", "typing", "dataclasses", "doctest",
    "asyncio", "concurrent", "threading", "abc", "linecache", "codeop", "code", "contextlib",
})  # fmt: skip
"""Modules of the standard library that look at frames and keep what they find."""
_RUNNERS = frozenset({"_pytest", "pluggy", "pytest", "repairgym_guest"})
_GIVING = frozenset({
    "walk_tb", "walk_stack", "currentframe", "_current_frames", "_task_get_stack", "signal", "<lambda>",
})  # fmt: skip
"""Functions of these that give their caller a frame, or its handler one."""


def watch(testbed: str, tell: Callable[[Header], None], getframe: Callable[[int], FrameType] = sys._getframe) -> None:
    """Report to ``tell`` what code below ``testbed`` reaches for, from now until the process ends."""
    root = os.path.realpath(testbed) + os.sep
    told: Set[Tuple[str, str]] = set()
    busy: Set[int] = set()
    places: Dict[str, str] = {}
    guarded: Set[int] = set()

    def place_of(file: str) -> str:
        if file not in places:
            # Code from a text has no file of its own: what it reaches for is for the file that ran it.
            real = os.path.realpath(file) if os.path.isabs(file) else ""
            places[file] = _place(real, real[len(root) :] if real.startswith(root) else "")
        return places[file]

    def heard(event: str, values: Tuple[Any, ...]) -> None:
        if event == "object.__getattr__":
            event = values[1] if id(values[0]) not in guarded else "signal.signal"
            if event not in _ATTRIBUTES and event != "signal.signal":
                return
        elif event not in _EVENTS:
            return
        look(event)

    def look(event: str) -> None:
        thread = get_ident()
        if thread in busy:  # the look at the stack is an access, too
            return
        busy.add(thread)
        try:
            path = _reader(getframe(2), place_of, event.rpartition(".")[2])
            if path and (event, path) not in told:
                told.add((event, path))
                tell({"reached_for": event, "path": path})
        finally:
            busy.discard(thread)

    guarded.update(map(id, _guard_signals(look)))
    sys.addaudithook(heard)


def _guard_signals(look: Callable[[str], None]) -> Tuple[Callable[..., Any], ...]:
    """Report handlers of signals that are functions; return the functions that do so.

    Each holds the interpreter's own function as a default, because the interpreter reports who reads defaults.
    """
    inner: Any = sys.modules["_signal"]

    def install(number: Any, handler: Any, _install: Callable[..., Any] = inner.signal) -> Any:
        if callable(handler):
            look("signal.signal")
        return _install(number, handler)

    def create(spec: Any, _create: Callable[..., Any] = _imp.create_builtin) -> Any:
        if type(spec) is not ModuleSpec or spec.name in ("_signal", "_imp"):
            look("signal.signal")
        return _create(spec)

    inner.signal, _imp.create_builtin = install, create
    vars(signal.signal).pop("__wrapped__", None)
    return install, create


def _place(real: str, relative: str) -> str:
    """Return ``tree:`` and a path, ``keeps``, ``runner``, or an empty text for a file that hands on what it reads."""
    if relative:
        *folders, name = relative.split(os.sep)
        is_test = name.startswith(("test_", "conftest.")) or name.endswith("_test.py")
        return "runner" if is_test or {"test", "tests", "testing"} & set(folders) else f"tree:{relative}"
    if not _RUNNERS.isdisjoint(real.split(os.sep)):
        return "runner"
    is_installed = "-packages" + os.sep in real
    top = real[len(_LIBRARY) :].partition(os.sep)[0].partition(".")[0] if real.startswith(_LIBRARY) else ""
    return "keeps" if is_installed or top in _KEEPING else ""


def _reader(frame: Optional[FrameType], place_of: Callable[[str], str], what: str) -> str:
    """Return the file of the tree that an access to ``what`` is for; empty for one of the runner or of the library."""
    is_first = True
    # Code that does not name what it reaches for was handed it by its caller, as a function to call.
    is_handed = frame is not None and what not in frame.f_code.co_names
    while frame is not None:
        place = place_of(frame.f_code.co_filename)
        if place.startswith("tree:"):
            return place[len("tree:") :]
        if place == "runner":
            return ""
        is_giving = frame.f_code.co_name in _GIVING
        if place == "keeps" and is_first and not is_giving and not is_handed:
            return ""
        # What gave a frame away is not asked again: the one it was given to may keep it.
        is_first = is_giving
        frame = frame.f_back
    # The first thread begins in the runner.
    return "" if get_ident() == main_thread().ident else IN_THREAD

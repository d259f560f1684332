"""A tracer of the executed functions of given files.

Reads paths of source files, makes ``path::first_line`` ids (``co_firstlineno``, the first decorator's line if there is
one). Module and class bodies, comprehensions and lambdas do not count as functions. Other files cost one dictionary
look-up per call (per code object from Python 3.12 on).
"""

from __future__ import annotations

import os
import sys
import threading
from types import CodeType, FrameType
from typing import Any, Dict, List, Optional, Sequence, Set

_CO_OPTIMIZED = 1


class FunctionTracer:
    """A collector of ids between :meth:`start` and :meth:`stop`; does nothing without paths."""

    def __init__(self, root: str, paths: Sequence[str]) -> None:
        self._relative = {os.path.realpath(os.path.join(root, path)): path for path in paths}
        self._ids: Dict[CodeType, Optional[str]] = {}
        self._executed: Set[str] = set()
        self._monitoring: Any = getattr(sys, "monitoring", None) if paths else None
        if self._monitoring is not None:
            self._monitoring.use_tool_id(self._monitoring.PROFILER_ID, "repairgym")
            self._monitoring.register_callback(
                self._monitoring.PROFILER_ID, self._monitoring.events.PY_START, self._on_start
            )

    def _id(self, code: CodeType) -> Optional[str]:
        if code not in self._ids:
            path = self._relative.get(os.path.realpath(code.co_filename))
            is_function = code.co_flags & _CO_OPTIMIZED and not code.co_name.startswith("<")
            self._ids[code] = f"{path}::{code.co_firstlineno}" if path is not None and is_function else None
        return self._ids[code]

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

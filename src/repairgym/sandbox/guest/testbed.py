"""What the runners share: how a process becomes one that runs the tests of a testbed, and which ids are asked for."""

from __future__ import annotations

import os
import sys
from typing import Any, Dict, Set

MAX_MESSAGE_CHARS = 200


def enter(request: Dict[str, Any], testbed: str, program: str) -> None:
    """Go to the testbed with its sources first on ``sys.path``; nothing of the runner is importable from there."""
    sources = [os.path.normpath(os.path.join(testbed, path)) for path in request["source_paths"]]
    os.environ["PYTHONPATH"] = os.pathsep.join(sources)
    own = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    sys.path[:] = sources + [path for path in sys.path if path not in ("", own)]
    sys.argv[:] = [program]
    os.chdir(testbed)


def first_line(text: str) -> str:
    """The first line of ``text`` that says something, at most 200 characters."""
    lines = (line.strip() for line in text.splitlines())
    return next((line for line in lines if line), "")[:MAX_MESSAGE_CHARS]


def selectors(node_id: str) -> Set[str]:
    """Every id that stands for ``node_id``: its own, its function, class, file and folders."""
    base = node_id.partition("[")[0]
    names = {node_id, base}
    for separator in ("::", "/"):
        while separator in base:
            base = base.rpartition(separator)[0]
            names.add(base)
    return names

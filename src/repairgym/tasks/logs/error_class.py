"""The class of an error: keywords in a fixed order, the first class that matches (paper A, error table).

Reads the line that says what went wrong; makes an :data:`~repairgym.records.ErrorClass`. Invariant: the order is the
paper's, so a missing package that a test reports is a dependency error and not a test error. Like the paper's, the
labels are keywords and no diagnosis.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import get_args

from repairgym.records import ErrorClass

ERROR_CLASSES: tuple[ErrorClass, ...] = get_args(ErrorClass)
_KEYWORDS: Mapping[ErrorClass, str] = {
    "dependency": (
        r"no matching (distribution|package)|could not find a version|conflicting dependencies|resolutionimpossible"
        r"|^because .*(depends? on|not found|unsatisfiable|incompatible)|no module named|cannot find module"
        r"|cannot import name|modulenotfounderror|could not resolve dependenc|unresolved import"
        r"|package \S+ does not exist|no cached response|has no installation candidate|verify hashes"
    ),
    "build_tool": (
        r"syntaxerror|indentationerror|taberror|fatal error:|cannot find symbol|undeclared|could not compile"
        r"|returned non-zero exit status|subprocess-exited|failed building|no rule to make target|\bcmake\b|\bninja\b"
        r"|\bgradle\b|linker"
    ),
    "test": r"assertionerror|^assert |\d+ failed|tests? failed",
    "configuration": (
        r"configuration|pyproject\.toml(?!\))|setup\.cfg|pytest\.ini|tomldecode|toml parse|unclosed table"
        r"|unrecognized arguments|unknown (config|option)|no such option|usage:|invalid requirement"
        r"|multiple top-level packages"
    ),
    "installation": (
        r"could not install|failed to install|externally-managed|not a supported wheel|invalid wheel|corrupt"
    ),
    "version": (
        r"requires (a different )?python|requires-python|python_requires|unsupported (class file|python)"
        r"|requires \S+-\d|version \S+ (is )?(not|required)"
    ),
    "environment": (
        r"not found|no such file|name or service not known|connection|network|no space left|memoryerror|out of memory"
        r"|killed|temporary failure|locale|took longer"
    ),
    "permission": r"permission denied|permissionerror|operation not permitted|read-only file system",
}
_PATTERNS = {name: re.compile(pattern, re.IGNORECASE) for name, pattern in _KEYWORDS.items()}


def classify(message: str, likely: ErrorClass = "other") -> ErrorClass:
    """The first class whose keywords are in ``message``; ``likely`` counts as a match at its own place in the order.

    Args:
        message: One line of a log.
        likely: What the form of the log says: a linter's line, a test's failure.
    """
    for name in ERROR_CLASSES:
        if name == likely or (name in _PATTERNS and _PATTERNS[name].search(message)):
            return name
    return "other"

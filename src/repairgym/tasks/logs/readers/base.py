"""A reader of the logs of one tool, and the parts that several readers share."""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from repairgym.records import ErrorClass, MainError

Lines = Sequence[str]
"""Lines of a log without colours and ends of lines."""


@dataclass(frozen=True)
class Reader:
    """Errors in the logs of one tool."""

    name: str
    mark: re.Pattern[str]
    """Found at the start of some line of each log with an error of the tool, and in no log of another one."""
    read: Callable[[Lines], Iterator[MainError]]
    """Yields the errors in their order; nothing where the tool only reports what another one printed."""


def error(error_class: ErrorClass, message: str, path: str | None = "", line: str | int | None = None) -> MainError:
    """Return the record of an error."""
    message = " ".join(message.split())
    return MainError(error_class=error_class, message=message, path=path or "", line=int(line) if line else None)


def first_class(rules: Sequence[tuple[str, ErrorClass]], text: str, otherwise: ErrorClass) -> ErrorClass:
    """Return the class of the first of ``rules`` (pattern, class) that is found in ``text``."""
    return next((name for pattern, name in rules if re.search(pattern, text)), otherwise)


def block_after(lines: Lines, index: int, end: str, limit: int = 60) -> Lines:
    """Return the lines after ``index`` up to one that matches ``end``."""
    block: list[str] = []
    for line in lines[index + 1 : index + 1 + limit]:
        if re.match(end, line):
            break
        block.append(line)
    return block


# --- JavaScript: exceptions and their stacks -----------------------------------------------------------------------

JAVASCRIPT_CLASSES: tuple[tuple[str, ErrorClass], ...] = (
    (
        r"[Cc]annot find (?:module|package)|ERR_MODULE_NOT_FOUND|does not provide an export|has no exported member",
        "dependency",
    ),
    (
        r"ERR_PACKAGE_PATH_NOT_EXPORTED|ERR_REQUIRE_ESM|Failed to (?:resolve|load) (?:import|url)|cannot be found\b",
        "dependency",
    ),
    (r"SyntaxError|Parse failure|Transform failed|Failed to parse source|Unexpected token", "build_tool"),
    (r"\b(?:ENOENT|ENOSPC|ECONNREFUSED|ENOTFOUND|ETIMEDOUT|ENOMEM)\b|heap out of memory", "environment"),
    (r"\b(?:EACCES|EPERM|EROFS)\b", "permission"),
    (r"AssertionError|ERR_ASSERTION", "test"),
)
EXCEPTION = re.compile(
    r"^\s*(?:Uncaught |Exception during run: |\[?cause\]?: )?(?P<message>(?:[A-Z]\w*)?(?:Error|Exception"
    r"|Warning)(?: \[\w+\])?: .+|(?:[A-Z]\w*)?Error)$"
)
_FRAME = re.compile(
    r"^\s*(?:at |❯ )?(?:[^\s(].*? )?\(?(?:file://)?(?P<path>(?:/|\.{0,2}/?[\w@.-]+/|[\w@-]+\.)[^\s():]*):(?P<line>\d+):\d+\)?$"
)
_FOREIGN = re.compile(r"(?:^|/)node_modules/|^node:|^internal/")
_POINTED = re.compile(r"^\s*(?:Exception during run: )?(?:file://)?(?P<path>/\S+?):(?P<line>\d+)$")
Place = tuple[str, str | None]


def frame_place(lines: Lines) -> Place | None:
    """Return the first frame of a stack in ``lines`` that is in the project."""
    for line in lines:
        match = _FRAME.match(line)
        if match and not _FOREIGN.search(match["path"]):
            return match["path"], match["line"]
    return None


def pointed_place(lines: Lines, index: int) -> Place | None:
    """Return the place that Node prints with the source line in front of the error at ``index``."""
    for line in reversed(lines[max(0, index - 6) : index]):
        if (match := _POINTED.match(line)) and not _FOREIGN.search(match["path"]):
            return match["path"], match["line"]
    return None

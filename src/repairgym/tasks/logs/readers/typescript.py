"""Errors of the TypeScript compiler and of ESLint."""

import re
from collections.abc import Iterator

from repairgym.records import ErrorClass, MainError
from repairgym.tasks.logs.readers.base import JAVASCRIPT_CLASSES, Lines, Reader, error, first_class

_TSC = re.compile(
    r"^\s*(?:(?P<path>\S[^():]*)(?:\((?P<line>\d+),\d+\)|:(?P<line2>\d+):\d+))?(?: - "
    r"|: )?(?P<message>error TS(?P<code>\d+): .+)"
)
_TSC_DEPENDENCY = {2305, 2306, 2307, 2613, 2614, 2688, 2724, 2792, 7016}
_TSC_SETTINGS = {6046, 6053, 6059, 6304, 6305, 6306, 6307, 6310, 18002, 18003, 17004}


def _tsc_class(code: int) -> ErrorClass:
    if code in _TSC_DEPENDENCY:
        return "dependency"
    return "configuration" if code in _TSC_SETTINGS or 5000 <= code < 6000 else "build_tool"


def _read_tsc(lines: Lines) -> Iterator[MainError]:
    for line in lines:
        if match := _TSC.match(line):
            name = _tsc_class(int(match["code"]))
            yield error(name, match["message"], match["path"], match["line"] or match["line2"])


_ESLINT_FILE = re.compile(r"^(?:/|[A-Za-z]:\\|\.{0,2}[\w@])\S*\.\w+$")
_ESLINT_LINE = re.compile(r"^\s+(?P<line>\d+):\d+\s+(?P<level>error|warning)\s+(?P<message>.+)$")
_ESLINT_END = re.compile(
    r"(?:TypeError: |ConfigError: )?(?P<message>No files matching the pattern .+|Invalid option .+"
    r"|ESLint couldn't find .+"
    r"|ESLint found too many warnings.+|All files matched by .+ are ignored\..*)"
)
_IMPORTED_FROM = re.compile(r"imported from (\S+)")


def _read_eslint(lines: Lines) -> Iterator[MainError]:
    path, warnings, num_errors = "", [], 0
    for line in lines:
        if _ESLINT_FILE.match(line):
            path = line
        elif path and (match := _ESLINT_LINE.match(line)):
            problem = error("build_tool", match["message"], path, match["line"])
            if match["level"] == "error":
                num_errors += 1
                yield problem
            else:
                warnings.append(problem)
    if not num_errors:
        crash = _eslint_crash(lines)
        yield from [crash] if crash else warnings


def _eslint_crash(lines: Lines) -> MainError | None:
    """Return the error of a run that checked nothing."""
    for index, line in enumerate(lines):
        if re.match(r"ESLint: \d", line):
            message = next((text.strip() for text in lines[index + 1 :] if text.strip()), "")
            message = message.removeprefix("Error: ").strip() or message
            place = _IMPORTED_FROM.search(message)
            name = first_class(JAVASCRIPT_CLASSES[:2], message, "configuration")
            return error(name, message, place[1] if place else "")
    for line in lines:
        match = _ESLINT_END.match(line)
        if match and "too many warnings" not in line:
            return error("configuration", match["message"])
    return None


TSC = Reader("tsc", re.compile(r"(?:.*[\s:])?error TS\d+: "), _read_tsc)
ESLINT = Reader(
    "eslint",
    re.compile(r"✖ \d+ problems? |ESLint: \d|Oops! Something went wrong! :\(|" + _ESLINT_END.pattern),
    _read_eslint,
)

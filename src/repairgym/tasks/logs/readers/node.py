"""Errors of Node.js programs and of its test runner (TAP and spec reporters)."""

import re
from collections.abc import Iterator

from repairgym.records import MainError
from repairgym.tasks.logs.readers.base import (
    EXCEPTION,
    JAVASCRIPT_CLASSES,
    Lines,
    Reader,
    error,
    first_class,
    frame_place,
    pointed_place,
)

_IMPORTED_FROM = re.compile(r"imported from (?:file://)?(/\S+)")
_IN_JSON = re.compile(r"SyntaxError: (?:file://)?(?P<path>/\S+\.json): ")
_BAD_OPTION = re.compile(r"^\S*node: (?P<message>(?:bad option|.* is not allowed).*)$")
_STACK = re.compile(r"^\s+at |^\s*- /|^Require stack|^\s*$|^\s+\.\.\. \d+ lines")


def exceptions(lines: Lines, likely: str = "other") -> Iterator[MainError]:
    """Yield the exceptions that are printed with a stack."""
    for index, line in enumerate(lines):
        match = EXCEPTION.match(line)
        if match is None:
            continue
        stack = _stack(lines, index)
        if not any(re.match(r"\s+at ", text) for text in stack):
            continue
        message = match["message"].removesuffix(" {")
        named = _IN_JSON.match(message) or _IMPORTED_FROM.search(message)
        # A syntax error's stack is the loader's alone; the source line is in front of it.
        pointed = pointed_place(lines, index)
        place = (named[1], None) if named else frame_place(stack) or pointed
        name = first_class(JAVASCRIPT_CLASSES, message, "test" if likely == "test" else "other")
        yield error(name, message, *(place or ("", None)))


def _stack(lines: Lines, index: int) -> Lines:
    """Return the stack of the exception at ``index``, with the details between message and stack."""
    stack: list[str] = []
    is_inside = False
    for text in lines[index + 1 : index + 60]:
        is_frame = bool(re.match(r"\s+at ", text))
        if is_inside and not is_frame:
            break
        is_inside = is_inside or is_frame
        stack.append(text)
    return stack


def _read_node(lines: Lines) -> Iterator[MainError]:
    for line in lines:
        if match := _BAD_OPTION.match(line):
            yield error("configuration", match["message"])
            return
    yield from exceptions(lines)


# --- node:test -----------------------------------------------------------------------------------------------------

_NOT_OK = re.compile(r"^(?P<indent>\s*)not ok \d+ - (?P<title>.*?)(?: # .*)?$")
_FIELD = re.compile(r"^\s*(?P<key>\w+): (?P<value>.*)$")
_LOCATION = re.compile(r"^'?(?:file://)?(?P<path>/.+):(?P<line>\d+):\d+'?$")
_COULD_NOT = re.compile(r"^Could not find '(?P<path>.+)'")
_SPEC = re.compile(r"^\s*✖ (?P<title>.+?) \(\d[\d.]*ms\)$")
_GROUPS = ("subtestsFailed",)


def _read_node_test(lines: Lines) -> Iterator[MainError]:
    for line in lines:
        if match := _COULD_NOT.match(line):
            yield error("configuration", line)
            return
    # What a file printed before it ended, as comments of TAP.
    printed = [text[2:] if text.startswith("# ") else "" for text in lines]
    crashes = [each for each in exceptions(printed, "test") if any(text.startswith("# Node.js v") for text in lines)]
    if crashes:
        yield from crashes
        return
    num_errors = 0
    for index, line in enumerate(lines):
        if match := _NOT_OK.match(line):
            report = _report(lines, index)
            if report.get("failureType", "").strip("'") not in _GROUPS:
                num_errors += 1
                yield _failed(match["title"], report, lines, index)
    if not num_errors:
        yield from _read_spec(lines)


def _report(lines: Lines, index: int) -> dict[str, str]:
    """Return the top fields of the YAML block of a failed test; a text of several lines by its first one."""
    report: dict[str, str] = {}
    indent: int | None = None
    for number, text in enumerate(lines[index + 1 : index + 120], index + 1):
        if text.strip() == "...":
            break
        match = _FIELD.match(text)
        depth = len(text) - len(text.lstrip())
        indent = depth if indent is None and match else indent
        if match and depth == indent:
            value = match["value"]
            is_text = value in ("|-", "|", ">-", "|+") and number + 1 < len(lines)
            # An assertion about an exception has the fields of both: its own error is the first, its stack the last.
            report.setdefault(match["key"], lines[number + 1].strip() if is_text else value.strip("'\""))
            if is_text and match["key"] == "stack":
                report["stack_at"] = str(number)
    return report


def _failed(title: str, report: dict[str, str], lines: Lines, index: int) -> MainError:
    message = report.get("error", "the test failed")
    kind = report.get("name", "")
    start = int(report.get("stack_at", index))
    place = frame_place(_frames_of(lines, start)) if "stack_at" in report else None
    location = _LOCATION.match(report.get("location", ""))
    file = location["path"] if location else ""
    path, number = place or (file, None)
    text = f"{kind}: {message}" if kind and not message.startswith(kind) else message
    return error(
        first_class(JAVASCRIPT_CLASSES[:1], text, "test"), text, f"{path}::{title}" if path == file else path, number
    )


def _frames_of(lines: Lines, start: int) -> Lines:
    frames: list[str] = []
    for text in lines[start + 1 : start + 40]:
        if text.strip() == "..." or re.match(r"\s*\w+: ", text):
            break
        frames.append(text)
    return frames


def _read_spec(lines: Lines) -> Iterator[MainError]:
    """Yield the errors of the spec reporter's list of failures."""
    start = next((index for index, text in enumerate(lines) if text.strip() == "✖ failing tests:"), None)
    title = ""
    for index in range(start + 1, len(lines)) if start is not None else ():
        if match := _SPEC.match(lines[index]):
            title = match["title"]
        for each in exceptions(lines[index : index + 1 + len(_stack(lines, index))], "test"):
            is_test_file = re.search(r"[./_-](?:test|spec)\b|/tests?/", each.path)
            yield each.model_copy(update={"path": f"{each.path}::{title}"}) if is_test_file else each


NODE = Reader(
    "node",
    re.compile(r"Node\.js v\d+\.|\s+at .*\(?node:internal/|\S*node: (?:bad option|.*is not allowed)"),
    _read_node,
)
NODE_TEST = Reader(
    "node:test",
    re.compile(r"TAP version 1[34]|ℹ (?:tests|fail) \d|Could not find '.*'$|✖ failing tests:"),
    _read_node_test,
)

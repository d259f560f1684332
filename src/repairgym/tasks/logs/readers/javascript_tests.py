"""Errors of Jest, Vitest and Mocha: of the first failed test, its message and the first frame in the project."""

import re
from collections.abc import Iterator

from repairgym.records import MainError
from repairgym.tasks.logs.readers.base import (
    JAVASCRIPT_CLASSES,
    Lines,
    Reader,
    block_after,
    error,
    first_class,
    frame_place,
)

_SYNTAX = re.compile(r"^\s*(?P<message>SyntaxError: (?:(?P<path>/\S+?): )?.+?(?: \((?P<line>\d+):\d+\))?)$")


def _failed(block: Lines, message: str, file: str, title: str) -> MainError:
    """Return the error of test ``title`` in ``file``; a place in the file of the test has the name of the test."""
    if message.startswith("expect("):
        # An expected exception has a stack of its own in front of the assertion's.
        block = [text for text in block if file.removeprefix("./") in text] or block
    path, line = frame_place(block) or (file, None)
    is_own = not path.removeprefix("./").endswith(file.removeprefix("./")) or not title
    # In a test only a missing module and a wrong syntax are other errors than the test's.
    name = first_class(JAVASCRIPT_CLASSES[:3], message, "test")
    return error(name, message, path if is_own else f"{path}::{title}", line)


def _first_text(block: Lines, otherwise: str = "the test failed") -> str:
    return next((text.strip() for text in block if text.strip()), otherwise)


# --- Jest ----------------------------------------------------------------------------------------------------------

_JEST_FILE = re.compile(r"^(?:FAIL|PASS) (?:\S+ )*?(?P<path>\S+\.\w+)(?: \([\d.]+ m?s\))?$")
_JEST_TITLE = re.compile(r"^ {0,2}● (?!Console\b)(?P<title>.+)$")
_JEST_NONE = re.compile(r"^(?P<message>No tests found, exiting with code \d|Error: .*(?:jest\.config|--config).*)")
_JEST_SETTINGS = re.compile(r"Validation Error|Multiple configurations|Deprecation Warning")


def _read_jest(lines: Lines) -> Iterator[MainError]:
    file = ""
    for index, line in enumerate(lines):
        if match := _JEST_FILE.match(line):
            file = match["path"]
        elif match := _JEST_NONE.match(line):
            yield error("configuration", match["message"])
        elif match := _JEST_TITLE.match(line):
            block = block_after(lines, index, r" {0,2}● |Test Suites: |FAIL |PASS |Summary of", 120)
            yield _jest_error(match["title"], block, file)


def _jest_error(title: str, block: Lines, file: str) -> MainError:
    message = _first_text(block)
    if _JEST_SETTINGS.search(title):
        return error(first_class(JAVASCRIPT_CLASSES[1:2], message, "configuration"), message)
    syntax = next((hit for text in block if (hit := _SYNTAX.match(text))), None)
    if title == "Test suite failed to run" and syntax:
        return error("build_tool", syntax["message"], syntax["path"] or file, syntax["line"])
    return _failed(block, message, file, "" if title == "Test suite failed to run" else title)


# --- Vitest --------------------------------------------------------------------------------------------------------

_VITEST_FAILED = re.compile(r"^ ?FAIL  (?:\|\S+\| )?(?P<file>\S+)(?: > (?P<title>.+)| \[ .+ \])?$")
_VITEST_NONE = re.compile(r"^(?P<message>No test files found, exiting with code \d)")
_TRANSFORM = re.compile(r"^\s*(?P<path>/\S+?):(?P<line>\d+):\d+: (?P<message>ERROR: .+)$")
_AT_FILE = re.compile(r"^\s*(?:File:|At file:) (?P<path>/\S+?)(?::(?P<line>\d+):\d+)?$")


def _read_vitest(lines: Lines) -> Iterator[MainError]:
    for index, line in enumerate(lines):
        if match := _VITEST_NONE.match(line):
            yield error("configuration", match["message"])
        elif match := _VITEST_FAILED.match(line):
            block = block_after(lines, index, r"⎯+(?:\[|⎯)| Test Files ", 120)
            while block and (_VITEST_FAILED.match(block[0]) or not block[0].strip()):
                block = block[1:]
            end = next((number for number, text in enumerate(block) if _VITEST_FAILED.match(text)), len(block))
            yield _vitest_error(match["title"] or "", block[:end], match["file"])


def _vitest_error(title: str, block: Lines, file: str) -> MainError:
    transform = next((hit for text in block if (hit := _TRANSFORM.match(text))), None)
    if transform:
        return error("build_tool", transform["message"], transform["path"], transform["line"])
    if any(re.match(r"\s*❯ (?:parseAst|ssrTransform|getRollupError|transformWithEsbuild)", text) for text in block):
        return error("build_tool", _first_text(block), file)
    at_file = next((hit for text in block if (hit := _AT_FILE.match(text))), None)
    failure = _failed(block, _first_text(block), file, title)
    if at_file and not title and failure.line is None:
        return failure.model_copy(
            update={"path": at_file["path"], "line": int(at_file["line"]) if at_file["line"] else None}
        )
    return failure


# --- Mocha ---------------------------------------------------------------------------------------------------------

_MOCHA_COUNT = re.compile(r"^\s+\d+ failing$")
_MOCHA_ENTRY = re.compile(r"^  \d+\) (?P<title>.+)$")
_MOCHA_NONE = re.compile(r"^\s*(?:Error: )?(?P<message>No test files found.*)$")


def _read_mocha(lines: Lines) -> Iterator[MainError]:
    start = next((index for index, line in enumerate(lines) if _MOCHA_COUNT.match(line)), None)
    if start is None:
        yield from (error("configuration", match["message"]) for line in lines if (match := _MOCHA_NONE.match(line)))
        return
    for index in range(start + 1, len(lines)):
        if not (match := _MOCHA_ENTRY.match(lines[index])):
            continue
        block = block_after(lines, index, r"  \d+\) ", 120)
        titles = [match["title"].strip()]
        while not titles[-1].endswith(":") and block and block[0].strip():
            titles.append(block[0].strip())
            block = block[1:]
        place = frame_place(block)
        file = (
            place[0] if place and re.search(r"[./_-](?:test|spec)\b|(?:^|/)tests?/", place[0]) else _named_file(block)
        )
        yield _failed(block, _first_text(block), file, " ".join(titles).removesuffix(":"))


def _named_file(block: Lines) -> str:
    """Return the file that a message about a timeout names."""
    named = next((match for text in block if (match := re.search(r"\((/\S+\.[cm]?[jt]sx?)\)", text))), None)
    return named[1] if named else ""


JEST = Reader("jest", re.compile(r"Test Suites: \d|No tests found, exiting| {0,2}● "), _read_jest)
VITEST = Reader("vitest", re.compile(r" ?FAIL  \S|No test files found, exiting"), _read_vitest)
MOCHA = Reader("mocha", re.compile(_MOCHA_COUNT.pattern + "|Error: No test files found"), _read_mocha)

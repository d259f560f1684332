"""The errors of a log or a test run, the main one first, their class, and equality of two (paper A, full pipeline).

Reads the output of a build or test command, or a test run. Makes :class:`~repairgym.records.MainError` records.
Guarantees: rules are tried in order and the first that matches decides, so that a compiler's words inside of a failed
installation precede the installer's own; every log with a printed line has a main error; its other errors are of the
same rule. Classes are keywords in the paper's order, so that a missing package in a test's message is a dependency
error; like the paper's, they are no diagnosis. Equality is symmetric and reflexive: differences between equal runs
(numbers, versions, addresses, folders, lines) and other values in a failed assertion never make errors different;
another name (a module, a symbol, a test) or another assertion does.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import get_args

from repairgym.records import ErrorClass, MainError, TestOutcome, TestRun
from repairgym.tasks.logs.readers.registry import read_errors

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
    """Return the first class with keywords in ``message``, one line of a log.

    ``likely``, the class that the form of the log suggests (a linter's line), matches at its own place in the order.
    """
    for name in ERROR_CLASSES:
        if name == likely or (name in _PATTERNS and _PATTERNS[name].search(message)):
            return name
    return "other"


MAX_MESSAGE_CHARS = 300
MAX_LOG_LINES, MAX_LINE_CHARS = 20_000, 2000
MAX_ERRORS = 100
"""Errors of one log that are compared."""
_COLOURS = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_DECORATION = re.compile(r"^(?:[│|]?\s*(?:╰─[>▶]|×|\[ERROR\]|npm (?:error|ERR!)|cause:|Cause:)\s*|\s+)*")
_FRAME = re.compile(r'^File "([^"<]+)", line (\d+)')
_ARROW = re.compile(r"^-->\s*(\S+?):(\d+)")
_PYTEST_PLACE = re.compile(r"^(\S+\.py):(\d+): ")
_LIBRARY = re.compile(r"site-packages|lib/python\d")


@dataclass(frozen=True)
class Rule:
    """Form of an error message of one kind of tool."""

    pattern: str
    """Groups ``message`` and, where the line names a place, ``path`` and ``line``."""
    likely: ErrorClass = "other"
    is_last: bool = False
    """The last match counts: a traceback ends with the exception."""
    is_block: bool = False
    """Lines that follow one another are one error."""


_NOISE = (
    r"(?!Exception:|usage:|Failed to build|Failed building|Could not find a version|subprocess-exited|backend-unavail"
    r"|metadata-generation|failed-wheel|Command ')"
)
_TEST = r"\S+?::[^\[]*?(?:\[.*?\](?= - |$)|\[.*)?|\S+\.py"
"""A test or a file in pytest's summary; the parameters of a test may hold the mark that ends its name."""
RULES: tuple[Rule, ...] = (
    # Resolvers: pip, uv, cargo, Maven.
    Rule(r"^(?:ERROR: )?(?P<message>No matching distribution found for .+)"),
    Rule(r"^ERROR: (?P<message>Cannot install .+ conflicting dependencies.*)"),
    Rule(r"^(?P<message>Because .+)"),
    Rule(r"^error: (?P<message>no matching package named .+)"),
    Rule(r"^(?P<message>.*Could not resolve dependencies .+)"),
    Rule(r"^(?:ERROR: )?(?P<message>Package .+ requires a different Python.*)", "version"),
    # Compilers and type checkers: gcc, javac, mypy, rustc.
    Rule(r"^(?P<path>[^\s:]+):(?P<line>\d+)(?::\d+)?: (?P<message>(?:fatal )?error: .+)", "build_tool"),
    Rule(r"^(?P<message>error\[E\d+\]: .+)", "build_tool"),
    # A byte compiler continues with the next file: the first error is the main one.
    Rule(r"^(?P<message>(?:SyntaxError|IndentationError|TabError): .+)", "build_tool"),
    # Linters, in their concise and their full form.
    Rule(r"^(?P<path>[^\s:]+):(?P<line>\d+):\d+: (?P<message>[A-Z]{1,4}\d{3,4} .+)", "build_tool"),
    Rule(r"^(?P<message>[A-Z]{1,4}\d{3,4} (?:\[\*\] )?\S.+)", "build_tool"),
    # pytest: the first failure, from its own lines or from the summary; then unittest.
    Rule(r"^E {2,}(?P<message>\S.*)", "test", is_block=True),
    Rule(rf"^(?:FAILED|ERROR) (?P<path>{_TEST})(?: - (?P<message>.+))?$", "test"),
    Rule(r"^(?P<message>(?:configuration error|invalid pyproject).+)", "configuration"),
    Rule(r"^(?P<message>[\w.]*(?:Error|Exception|Exit|Interrupt|Warning|gaierror)(?:: .*)?)$", is_last=True),
    Rule(r"^\S*python\S*: (?P<message>No module named .+)"),
    Rule(r"^make\S*: \*\*\* (?P<message>.+)", "build_tool"),
    Rule(rf"^ERROR: (?P<message>{_NOISE}.+)"),
    Rule(rf"^(?:\S+: )?error: (?P<message>{_NOISE}.+)"),
    Rule(r"^(?:\S*sh: )(?:line )?\d+: (?P<message>.+)"),
    Rule(r"^(?P<message>(?:Failed to parse|TOML parse error) .+)", "configuration", is_last=True),
    Rule(r"^(?P<message>.*\b(?:[Ee]rror|[Ff]ail(?:ed|ure)|[Cc]annot|[Cc]ould not|[Rr]equires)\b.*)"),
    Rule(r"^(?P<message>\S.*)", is_last=True),
)


def parse_main_error(log: str) -> MainError | None:
    """Return the main error in the log of a failed command; None for an empty log."""
    return next(_errors_in(log), None)


def parse_errors(log: str) -> tuple[MainError, ...]:
    """Return the distinct errors in the log of a failed command, the main one first; empty for an empty log."""
    return distinct_errors(islice(_errors_in(log), MAX_ERRORS))


def _errors_in(log: str) -> Iterator[MainError]:
    """Yield the matches of the rule that decides: a compiler's next error, the failure of another test."""
    raw = [line[:MAX_LINE_CHARS] for line in _COLOURS.sub("", log).splitlines()[:MAX_LOG_LINES]]
    is_read = False
    for error in read_errors(raw):
        is_read = True
        yield error.model_copy(update={"message": error.message[:MAX_MESSAGE_CHARS].strip()})
    if not is_read:
        yield from _by_rules(raw)


def _by_rules(raw: Sequence[str]) -> Iterator[MainError]:
    lines = [_DECORATION.sub("", line) for line in raw]
    for rule in RULES:
        pattern = re.compile(rule.pattern)
        matches = {index: match for index, line in enumerate(lines) if (match := pattern.match(line))}
        chosen = [index for index in matches if not (rule.is_block and index - 1 in matches)]
        chosen = chosen[-1:] if rule.is_last else chosen
        tests = _failed_tests(lines) if rule.likely == "test" else []
        for number, index in enumerate(chosen):
            # Only a summary of as many tests says which one a later failure belongs to.
            is_known = bool(tests) and (number == 0 or len(tests) == len(chosen))
            place = (tests[number], None) if is_known else _place(lines, index, rule)
            yield _main_error(rule, lines[index], matches[index].groupdict(), place)
        if chosen:
            return


_LinePlace = tuple[str | None, str | None]


def _main_error(rule: Rule, text: str, groups: dict[str, str | None], place: _LinePlace) -> MainError:
    message = (groups.get("message") or text)[:MAX_MESSAGE_CHARS].strip()
    path, line = (groups["path"], groups.get("line")) if groups.get("path") is not None else place
    return MainError(
        error_class=classify(message, rule.likely), message=message, path=path or "", line=int(line) if line else None
    )


def _place(lines: Sequence[str], index: int, rule: Rule) -> _LinePlace:
    """Return the place of the error at ``index``: after it (pytest, rustc, ruff) or in frames before it (Python)."""
    for line in lines[index + 1 : index + 12]:
        if match := _ARROW.match(line) or (_PYTEST_PLACE.match(line) if rule.likely == "test" else None):
            return match[1], match[2]
    frames: list[re.Match[str]] = []
    for line in reversed(lines[:index]):
        if line.startswith("Traceback (most recent call last)"):
            break
        if match := _FRAME.match(line):
            frames.append(match)
    own = [match for match in frames if not _LIBRARY.search(match[1])]
    return (own[0][1], own[0][2]) if own else (None, None)


def _failed_tests(lines: Sequence[str]) -> list[str]:
    """Return the tests or files in pytest's summary."""
    pattern = re.compile(rf"^(?:FAILED|ERROR) ({_TEST})(?: - .+)?$")
    return [match[1] for line in lines if (match := pattern.match(line))]


def errors_of_tests(run: TestRun, test_ids: Iterable[str]) -> tuple[MainError, ...]:
    """Return the distinct errors of those of ``test_ids`` that did not pass, in their order."""
    failed = (test_id for test_id in test_ids if run.outcome(test_id) is not TestOutcome.PASSED)
    return distinct_errors(error_of_test(run, test_id) for test_id in islice(failed, MAX_ERRORS))


def error_of_test(run: TestRun, test_id: str) -> MainError:
    """Return the error of a test that did not pass."""
    result = run.results.get(test_id)
    message = (result.message if result else "") or str(run.outcome(test_id))
    return MainError(error_class=classify(message, "test"), message=message, path=test_id)


# --- equality (paper A, outer loop: another error keeps the progress, the same one reverts it) ---------------------

_ADDRESS = re.compile(r"0x[0-9a-fA-F]+")
_FOLDERS = re.compile(r"(?:(?<=[\s'\"(=])|^)(?:[\w.@+~-]*/)+(?=[\w.@+-])")
_NAME = re.compile(r"@[\w.-]+/|(?:[\w-]+\.)+(?:com|org|io|net|dev|in|sh|cc|net|edu)/")
"""Scope of an npm package, host of a Go module: a part of a name and no folder."""
_NAMED = re.compile(r"(?:[Mm]odule|[Pp]ackage|import|resolve|require|subpath) ['\"]?$")
_HASH = re.compile(r"\bsha\d+-[\w+/]+=*")
_NUMBER = re.compile(r"(?<![\w])\d+(?:\.\d+)*(?![\w])")
_ASSERTION = re.compile(r"^(?:AssertionError\b(?:: )?|(?=assert\b))")
_VALUE = re.compile(
    r"[bru]{0,2}(?:'(?:[^'\\]|\\.)*(?:'|$)|\"(?:[^\"\\]|\\.)*(?:\"|$))"  # texts; the last one may be cut off
    r"|(?<![\w#])[-+]?\d[\d_]*(?:\.\d*)?(?:e[-+]?\d+)?j?(?!\w)|\b(?:True|False|None|nan|inf)\b"
)
_JUNIT = re.compile(r"(expected: ?<).*?(> but was: ?<).*(>)")
_DISPLAY = re.compile(r"[\[({][#\s,:.]*[\])}]")
"""A list, tuple, dictionary or set of values alone."""


def normalize(message: str) -> str:
    """Return ``message`` without addresses, folders, numbers and white space, which differ between equal errors."""
    text = _HASH.sub("#", _ADDRESS.sub("#", message))
    text = _FOLDERS.sub(lambda match: match.group() if _is_name(match) else "", text)
    return " ".join(_NUMBER.sub("#", text).split())


def _is_name(match: re.Match[str]) -> bool:
    """Return True for folders that belong to the name of a package or a module, such as ``./a/`` in an import."""
    if _NAME.match(match.group()):
        return True
    return not match.group().startswith("/") and bool(_NAMED.search(match.string, 0, match.start()))


def shape(message: str) -> str:
    """Return the identity of ``message``: `normalize`, and ``#`` for each value of a failed assertion.

    ``assert 3 == 4`` and ``assert [1, 'a'] == []`` are both ``assert # == #``, ``assert 3 in [4]`` is not.
    """
    message = _JUNIT.sub(r"\1#\2#\3", message)
    match = _ASSERTION.match(message)
    if match is None:
        return normalize(message)
    text = _VALUE.sub("#", _ADDRESS.sub("#", message[match.end() :]))
    while (shorter := _DISPLAY.sub("#", text)) != text:
        text = shorter
    return " ".join(text.split())


def is_same_error(left: MainError, right: MainError) -> bool:
    """Return True for errors of one class, place and shape."""
    if left.error_class != right.error_class:
        return False
    # Sandboxes move folders, so that only the names of files count; test ids stay.
    places = {_place_name(path) for path in (left.path, right.path) if path}
    if len(places) > 1:
        return False
    return shape(left.message) == shape(right.message)


def _place_name(path: str) -> str:
    file, mark, test = path.partition("::")
    return normalize(file) + mark + test if not mark or file.startswith("/") else path


def distinct_errors(errors: Iterable[MainError]) -> tuple[MainError, ...]:
    """Return the first of equal ``errors``; tests that fail alike have one error."""
    kept: list[tuple[MainError, MainError]] = []
    for error in errors:
        plain = error.model_copy(update={"path": ""}) if "::" in error.path else error
        if not any(is_same_error(plain, other) for _, other in kept):
            kept.append((error, plain))
    return tuple(error for error, _ in kept)

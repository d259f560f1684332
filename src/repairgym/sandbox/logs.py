"""Outcomes of tests from the log of their program, by a named parser: the unsigned fallback.

Reads the output of a command. Makes results by the names that the log shows, which are those of data sets. Guarantees:
a name with several outcomes has the worst; lines that no parser knows are ignored. Code under test can write any line
of a log, so verdicts on it carry the note ``unsigned_results``.
"""

import re
from collections.abc import Mapping

from repairgym.records import TestOutcome, TestResult

_WORDS = {
    "PASSED": TestOutcome.PASSED, "FAILED": TestOutcome.FAILED, "ERROR": TestOutcome.ERROR,
    "SKIPPED": TestOutcome.SKIPPED, "XFAIL": TestOutcome.PASSED, "XPASS": TestOutcome.FAILED,
    "ok": TestOutcome.PASSED, "FAIL": TestOutcome.FAILED, "skipped": TestOutcome.SKIPPED,
    "expected failure": TestOutcome.PASSED, "unexpected success": TestOutcome.FAILED,
    "F": TestOutcome.FAILED, "E": TestOutcome.ERROR, "f": TestOutcome.SKIPPED, "s": TestOutcome.SKIPPED,
    "X": TestOutcome.FAILED,
}  # fmt: skip
_PATTERNS: Mapping[str, tuple[re.Pattern[str], ...]] = {
    # The short summary (-rA), where a reason follows the id (which may hold " - " in its brackets), and lines of -v.
    "pytest": (
        re.compile(r"(?P<word>PASSED) (?P<name>\S+::.+)"),
        re.compile(r"(?P<word>FAILED|ERROR|XFAIL|XPASS) (?P<name>\S+?::[^\[]+?(?:\[.*?\])?)(?: - .*)?"),
        re.compile(r"(?P<name>\S+::.+?) (?P<word>PASSED|FAILED|ERROR|SKIPPED|XFAIL|XPASS)\b.*"),
    ),
    # The lines of -v, and the headings of the reports behind them.
    "unittest": (
        re.compile(r"(?P<name>\S.*?) \.\.\. (?P<word>ok|FAIL|ERROR|skipped|expected failure|unexpected success)\b.*"),
        re.compile(r"(?P<word>FAIL|ERROR): (?P<name>\S.*)"),
    ),
    "sympy": (re.compile(r"(?P<name>test_\w+) (?P<word>ok|[FEfsX])(?: .*)?"),),
}
_RANKS = (TestOutcome.PASSED, TestOutcome.SKIPPED, TestOutcome.FAILED, TestOutcome.ERROR)


def parse_log(parser: str, text: str) -> dict[str, TestResult]:
    """Return name -> result of each test that the ``parser`` (pytest, unittest, sympy) finds in ``text``."""
    outcomes: dict[str, TestOutcome] = {}
    for line in text.splitlines():
        matches = (pattern.fullmatch(line.strip()) for pattern in _PATTERNS[parser])
        if match := next(filter(None, matches), None):
            name, outcome = match["name"], _WORDS[match["word"]]
            outcomes[name] = max(outcome, outcomes.get(name, outcome), key=_RANKS.index)
    return {name: TestResult(outcome=outcome) for name, outcome in outcomes.items()}

from __future__ import annotations

from repairgym.records import TestOutcome, TestResult, TestRun
from repairgym.tasks.adding.npm import stable_files


def run_of(outcomes: str) -> TestRun:
    """A run of one file; each letter is the outcome of a test: passed, failed or skipped."""
    kinds = {"p": TestOutcome.PASSED, "f": TestOutcome.FAILED, "s": TestOutcome.SKIPPED}
    results = {f"a.js::{number}": TestResult(outcome=kinds[letter]) for number, letter in enumerate(outcomes)}
    return TestRun(results=results, exit_status=0)


def test_files_stay_that_pass_most_tests_alike_in_every_run() -> None:
    kept = {
        runs: bool(stable_files([run_of(outcomes) for outcomes in runs.split()], ("a.js",)))
        for runs in ("ppf ppf", "pff pff", "pss pss", "ppp ppf", "ppp pp", "ss ss", f"{'p' * 99}p {'p' * 99}f")
    }
    assert [runs for runs, is_kept in kept.items() if is_kept] == ["ppf ppf", "pss pss", f"{'p' * 100} {'p' * 99}f"]

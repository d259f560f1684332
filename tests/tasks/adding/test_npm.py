from __future__ import annotations

from pathlib import Path

from repairgym.records import TestOutcome, TestResult, TestRun
from repairgym.tasks.adding.npm import read_release, stable_files
from repairgym.tasks.layers.package_index import Sdist


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


def test_benchmarks_and_types_are_no_sources(tmp_path: Path) -> None:
    for path in ("index.js", "lib/a.js", "benchmarks/run.js", "types/index.test-d.ts", "eslint.config.js"):
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text("module.exports = 1\n", encoding="utf-8")
    (tmp_path / "test").mkdir()
    (tmp_path / "test/a.test.js").write_text("const { test } = require('node:test')\n", encoding="utf-8")
    release = read_release(Sdist(name="a", version="1.0.0", sha256="sha512-x"), tmp_path)
    assert release is not None
    assert (release.runner, release.sources) == ("node_test", ("index.js", "lib/**/*.js"))

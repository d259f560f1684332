from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from repairgym.config.sandbox import SandboxConfig
from repairgym.errors import TaskError
from repairgym.records import TestOutcome, TestResult, TestRun
from repairgym.sandbox.base import SandboxBackend
from repairgym.sandbox.probe import create_backend
from repairgym.tasks.adding.npm_project import read_folder
from repairgym.tasks.adding.npm_trial import NodeTrial, stable_files, told_times
from repairgym.tasks.layers.npm_locks import resolve_npm_lock
from repairgym.tasks.layers.store import LayerStore

needs_npm = pytest.mark.skipif(
    shutil.which("node") is None or shutil.which("npm") is None, reason="there is no node or no npm on this machine"
)
GOOD = "const { test } = require('node:test');\ntest('a', () => {});\n"
FILES = {
    "package.json": '{"name": "a"}',
    "index.js": "module.exports = 1;\n",
    "test/a.test.js": GOOD,
    "test/b.test.js": f"{GOOD}require('no-such-package');\n",
}


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


@pytest_asyncio.fixture
async def backend() -> AsyncIterator[SandboxBackend]:
    made = create_backend(SandboxConfig())
    yield made
    await made.close()


def trial_of(
    backend: SandboxBackend, folder: Path, files: dict[str, str], max_run_s: float = 60.0
) -> tuple[NodeTrial, list[str]]:
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text, encoding="utf-8")
    said: list[str] = []
    store = LayerStore(folder.with_name("layers"))
    return NodeTrial(store, backend, "train", "repairgym tasks add a", said.append, max_run_s=max_run_s), said


@needs_npm
@pytest.mark.asyncio
async def test_a_file_that_fails_runs_once_and_its_error_is_told(backend: SandboxBackend, tmp_path: Path) -> None:
    trial, said = trial_of(backend, tmp_path / "a", FILES)
    tried = await trial.run(read_folder(tmp_path / "a"), resolve_npm_lock({}))
    assert (tried.kept, tried.num_files, tried.num_passed) == (("test/a.test.js",), 2, 1)
    assert [text.rpartition(": ")[2] for text in said] == ["2 test files", "1 test files", "1 test files"]
    left, first, last = tried.problems[:3]
    assert left == "1 of 2 test files are left out"
    assert first.startswith("test/b.test.js: Error: Cannot find module 'no-such-package'")
    assert "output of run 1" in Path(last.rpartition(" ")[2]).read_text(encoding="utf-8")


@needs_npm
@pytest.mark.asyncio
async def test_without_a_passing_file_the_error_names_the_first_errors(backend: SandboxBackend, tmp_path: Path) -> None:
    files = {path: text for path, text in FILES.items() if "a.test" not in path}
    trial, said = trial_of(backend, tmp_path / "a", files)
    with pytest.raises(TaskError, match=r"test/b\.test\.js: Error: Cannot find module 'no-such-package'"):
        await trial.run(read_folder(tmp_path / "a"), resolve_npm_lock({}))
    assert len(said) == 1


@needs_npm
@pytest.mark.asyncio
async def test_files_that_the_first_run_does_not_reach_are_left_out(backend: SandboxBackend, tmp_path: Path) -> None:
    many = {f"test/{letter}.test.js": GOOD for letter in "abcdefghijkl"}
    trial, _ = trial_of(backend, tmp_path / "a", {**FILES, **many}, max_run_s=0.001)
    tried = await trial.run(read_folder(tmp_path / "a"), resolve_npm_lock({}))
    assert len(tried.kept) == 10
    assert "a run starts no file after 0 s" in tried.problems
    assert "test/k.test.js: it did not run" in tried.problems


def test_settings_for_slow_tests_are_told() -> None:
    def told(duration_s: float, test_s: float) -> tuple[str, ...]:
        passed = TestResult(outcome=TestOutcome.PASSED, duration_s=test_s)
        return told_times(TestRun(results={"a.js::a": passed}, exit_status=0, duration_s=duration_s), 10)

    assert told(10.0, 0.5) == ()
    assert told(42.0, 0.5) == (
        "a test file takes 4.2 s here, the slowest test 0.5 s; build with run_timeout_s=9 test_timeout_s=2",
    )
    assert told(10.0, 6.5)[0].endswith("build with run_timeout_s=3 test_timeout_s=7")

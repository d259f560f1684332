"""A repository of JavaScript from its path to certified tasks; the default test needs node and npm, but no network."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from repairgym.cli.tasks import app
from repairgym.config.tasks import HistoryConfig, MutationConfig, TasksConfig
from repairgym.errors import InputError, TaskError
from repairgym.tasks.build.build_tasks import build
from repairgym.tasks.layers.catalogue import NpmRepository, load_catalogue
from repairgym.tasks.layers.npm_locks import pinned_npm_lock

needs_npm = pytest.mark.skipif(
    shutil.which("node") is None or shutil.which("npm") is None, reason="there is no node or no npm on this machine"
)
LOCK = {"name": "bounds", "lockfileVersion": 3, "packages": {"": {"name": "bounds"}}}
SOURCE = """'use strict';

function clamp(value, low, high) {
    if (value < low) {
        return low;
    }
    if (value > high) {
        return value;
    }
    return value;
}

function sum(values) {
    let total = 0;
    for (const value of values) {
        total += value;
    }
    return total;
}

module.exports = { clamp, sum };
"""
TEST = """'use strict';
const { describe, it } = require('node:test');
const assert = require('node:assert');
const { clamp, sum } = require('../lib/index.js');

describe('clamp', () => {
    it('keeps values between the bounds', () => {
        assert.strictEqual(clamp(3, 1, 5), 3);
    });
});

describe('sum', () => {
    it('adds three', () => {
        assert.strictEqual(sum([1, 2, 3]), 6);
    });
    it('adds one', () => {
        assert.strictEqual(sum([4]), 4);
    });
});
"""
FIXED = TEST.replace(
    "    it('keeps",
    """    it('returns the upper bound', () => {
        assert.strictEqual(clamp(7, 1, 5), 5);
    });
    it('takes equal bounds', () => {
        assert.strictEqual(clamp(7, 1, 1), 1);
    });
    it('keeps""",
)
TYPED = {
    "package.json": json.dumps({
        "name": "@me/bounds", "type": "module", "scripts": {"test": "vitest run"},
        "devDependencies": {"vitest": "2.1.9"},
    }),
    "lib/index.ts": "export const clamp = (value: number, low: number, high: number): number =>\n"
    "    value < low ? low : value;\n",
    "test/index.test.ts": "import { expect, it } from 'vitest';\nimport { clamp } from '../lib/index';\n\n"
    "it('keeps', () => {\n    expect(clamp(3, 1, 5)).toBe(3);\n});\n",
}  # fmt: skip
TYPED_FIX = {
    "lib/index.ts": TYPED["lib/index.ts"].replace(": value;", ": value > high ? high : value;"),
    "test/index.test.ts": TYPED["test/index.test.ts"] + "it('returns the upper bound', () => {\n"
    "    expect(clamp(7, 1, 5)).toBe(5);\n});\nit('takes equal bounds', () => {\n    expect(clamp(7, 1,"
    " 1)).toBe(1);\n});\n",
}


def added(repository: Any, catalogue: Path, locks: Path) -> str:
    given = ["add", str(repository.folder), "--catalogue", str(catalogue), "--locks", str(locks), "--yes"]
    done = CliRunner().invoke(app, given)
    assert done.exit_code == 0, done.output
    return done.output


@needs_npm
def test_a_path_becomes_certified_tasks(tmp_path: Path, make_repository: Callable[[Path], Any]) -> None:
    repository = make_repository(tmp_path / "bounds")
    repository.write("package.json", json.dumps({"name": "bounds", "license": "MIT", "main": "lib/index.js"}))
    repository.write("package-lock.json", json.dumps(LOCK))
    repository.write("lib/index.js", SOURCE)
    repository.write("test/index.test.js", TEST)
    repository.commit("First version")
    repository.write(
        "lib/index.js", SOURCE.replace("> high) {\n        return value", "> high) {\n        return high")
    )
    repository.write("test/index.test.js", FIXED)
    repository.commit("Fix clamp: it returned values above the upper bound")
    catalogue, locks = tmp_path / "mine.toml", tmp_path / "locks"
    output = added(repository, catalogue, locks)
    assert "5 tests pass, 0 fail" in output
    assert "1 commits may be fixes" in output
    (entry,) = load_catalogue(catalogue).npm_repository
    assert (entry.name, entry.runner, entry.sources) == ("bounds", "node_test", ("lib/**/*.js",))
    config = TasksConfig(
        catalogue=str(catalogue), locks=str(locks), sources=("mutations", "history"), num_workers=1, run_timeout_s=60,
        mutations=MutationConfig(num_per_function=1, num_per_package=1), history=HistoryConfig(), test_timeout_s=20,
    )  # fmt: skip
    tasks = {task.source: task for task in build(config, tmp_path / "tasks").load()}
    assert set(tasks) == {"mutations", "history"}
    assert all(task.certificate.is_valid and task.runner.type == "node_test" for task in tasks.values())
    assert set(tasks["history"].fail_to_pass) == {
        "test/index.test.js::clamp::returns the upper bound", "test/index.test.js::clamp::takes equal bounds",
    }  # fmt: skip
    assert tasks["history"].labels["lock"] == "undated"
    again = CliRunner().invoke(app, ["add", str(repository.folder), "--catalogue", str(catalogue), "--yes"])
    assert "bounds" in str(again.output) + str(again.exception)
    assert again.exit_code != 0


@pytest.mark.network
@pytest.mark.slow
@needs_npm
def test_typescript_in_vitest_becomes_a_certified_task(tmp_path: Path, make_repository: Callable[[Path], Any]) -> None:
    repository = make_repository(tmp_path / "bounds")
    for path, text in TYPED.items():
        repository.write(path, text)
    repository.commit("First version")
    for path, text in TYPED_FIX.items():
        repository.write(path, text)
    repository.commit("Fix clamp")
    catalogue, locks = tmp_path / "mine.toml", tmp_path / "locks"
    added(repository, catalogue, locks)
    config = TasksConfig(
        catalogue=str(catalogue), locks=str(locks), sources=("history",), num_workers=1, run_timeout_s=300,
        test_timeout_s=60,
    )  # fmt: skip
    (task,) = build(config, tmp_path / "tasks").load()
    assert task.certificate.is_valid
    assert (task.runner.type, len(task.fail_to_pass)) == ("vitest", 2)


def test_a_projects_own_lock_loses_addresses_and_keeps_integrities() -> None:
    entry = {"version": "1.0.0", "resolved": "https://example.invalid/a.tgz", "integrity": "sha512-abc=", "dev": True}
    own = {"lockfileVersion": 3, "packages": {"": {"name": "x"}, "node_modules/a": entry}}
    lock = json.loads(pinned_npm_lock(json.dumps(own), {"a": "^1.0.0"}))
    assert lock["packages"][""]["dependencies"] == {"a": "^1.0.0"}
    assert lock["packages"]["node_modules/a"]["integrity"] == "sha512-abc="
    assert "resolved" not in lock["packages"]["node_modules/a"]
    for broken in (
        {"lockfileVersion": 1, "dependencies": {}},
        {"packages": {"": {}, "node_modules/a": {"link": True}}},
        {"packages": {"": {}, "node_modules/a": {"version": "1"}}},
    ):
        with pytest.raises(TaskError):
            pinned_npm_lock(json.dumps(broken), {})


def test_an_entry_has_no_scope() -> None:
    fields: dict[str, Any] = {"split": "train", "sources": ("a.js",), "tests": ("t.js",), "url": "u", "runner": "jest"}
    assert NpmRepository(name="a", **fields).test_runner.is_node
    with pytest.raises(ValueError, match="scope"):
        NpmRepository(name="@a/b", **fields)


_FIELDS = f'name = "a-b"\nsplit = "train"\nsources = ["a"]\ntests = ["b"]\nurl = "/a"\nrevision = "{40 * "a"}"\n'
NPM_ENTRY = f'[[npm_repository]]\n{_FIELDS}runner = "tape"\n'
PYTHON_ENTRY = f"[[repository]]\n{_FIELDS}"


@pytest.mark.parametrize(
    ("path", "text", "entry"),
    [
        ("package.json", '{"author": {"name": "c"}, "name": "@a/b"}', NPM_ENTRY),
        ("pyproject.toml", '[project]\nname = "a-b"\n', PYTHON_ENTRY),
    ],
)
def test_a_repository_that_the_catalogue_has_is_told_before_anything_runs(
    tmp_path: Path, make_repository: Callable[..., Any], path: str, text: str, entry: str
) -> None:
    made = make_repository(tmp_path / "repository")
    (made.folder / path).write_text(text)
    made.git("add", ".")
    made.git("commit", "-q", "-m", "settings")
    (tmp_path / "mine.toml").write_text(entry)
    arguments = ["add", str(made.folder), "--catalogue", str(tmp_path / "mine.toml")]
    failed = CliRunner().invoke(app, arguments)
    assert isinstance(failed.exception, InputError)
    assert "mine.toml has a repository a-b already" in str(failed.exception)

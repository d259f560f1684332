from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from repairgym.errors import TaskError
from repairgym.tasks.adding.npm_project import patterns_of_tests, read_folder


def test_benchmarks_and_types_are_no_sources(tmp_path: Path) -> None:
    for path in ("index.js", "lib/a.js", "benchmarks/run.js", "types/index.test-d.ts", "eslint.config.js"):
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text("module.exports = 1\n", encoding="utf-8")
    (tmp_path / "test").mkdir()
    (tmp_path / "test/a.test.js").write_text("const { test } = require('node:test')\n", encoding="utf-8")
    (tmp_path / "package.json").write_text("{}", encoding="utf-8")
    folder = read_folder(tmp_path, "a")
    assert (folder.runner, folder.sources) == ("node_test", ("index.js", "lib/**/*.js"))


@pytest.mark.parametrize(
    ("settings", "files", "runner"),
    [
        ({"scripts": {"test": "vitest run"}}, {"src/a.test.ts": "it('a', () => {})"}, "vitest"),
        ({"devDependencies": {"jest": "29", "mocha": "10"}, "scripts": {"test": "jest"}},
         {"__tests__/a.js": "test.each([1])('a', () => {})"}, "jest"),
        ({"devDependencies": {"mocha": "10"}}, {"test/a.js": "describe('a', () => {})"}, "mocha"),
        ({"devDependencies": {"tape": "5"}}, {"test/a.js": "import { test } from 'node:test'; test(f)"}, "node_test"),
    ],
)  # fmt: skip
def test_the_framework_is_that_of_the_script_else_of_the_tests(
    tmp_path: Path, settings: dict[str, Any], files: dict[str, str], runner: str
) -> None:
    for path, text in {**files, "src/a.ts": "export const a = 1;\n", "test/helper.js": "module.exports = 1;\n"}.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text, encoding="utf-8")
    (tmp_path / "package.json").write_text(json.dumps(settings), encoding="utf-8")
    project = read_folder(tmp_path, "a")
    assert (project.runner, project.tests) == (runner, tuple(files))
    assert project.sources == ("src/**/*.ts",)


def test_a_project_without_tests_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "index.js").write_text("module.exports = 1;\n", encoding="utf-8")
    (tmp_path / "package.json").write_text("{}", encoding="utf-8")
    with pytest.raises(TaskError, match="no test file"):
        read_folder(tmp_path, "a")


def test_what_tests_import_is_needed_and_tsx_reads_typescript(tmp_path: Path) -> None:
    settings = {
        "name": "a",
        "devDependencies": {"mocha": "10", "chai": "4", "eslint": "8", "typescript": "5", "benchmark": "2", "a": "1"},
        "dependencies": {"b": "1"},
        "peerDependencies": {"c": "1"},
    }
    files = {
        "package.json": json.dumps(settings),
        "src/a.ts": "export const a = 1;\n",
        "src/tests/a.test.ts": "import chai from 'chai'; import a from 'a'; describe('a', () => {})\n",
        "bench/run.js": "require('benchmark')\n",
    }
    for path, text in files.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text, encoding="utf-8")
    folder = read_folder(tmp_path)
    assert folder.needed == {"chai": "4", "typescript": "5", "b": "1", "c": "1"}
    assert folder._replace(runner="mocha").tools("10.8.2") == {"mocha": "10.8.2", "tsx": "4.19.2"}
    assert folder._replace(runner="vitest").tools("2.1.9") == {"vitest": "2.1.9"}


def test_tests_beside_sources_have_patterns_that_match_no_source() -> None:
    paths = ("test/a.test.ts", "test/b.js", "test/c.js", "src/a.spec.ts", "src/b.spec.ts", "src/test.js", "test.js")
    wanted = ("src/*.spec.ts", "src/test.js", "test.js", "test/*.js", "test/*.ts")
    assert patterns_of_tests(paths) == wanted


def test_what_settings_name_is_needed(tmp_path: Path) -> None:
    names = ("@me/base", "preset-a", "transform-b", "babel-c", "unused", "jest")
    settings = {
        "name": "a",
        "devDependencies": dict.fromkeys((*names, "@types/node"), "1"),
        "jest": {"preset": "preset-a", "transform": {"\\.ts$": ["transform-b/fast", {}]}},
    }
    files = {
        "package.json": json.dumps(settings),
        "tsconfig.json": '{ // the base\n "extends": ["@me/base/tsconfig.json", "./unused"] }',
        "babel.config.json": '{"plugins": ["babel-c"]}',
        "src/a.ts": "export const a = 1;\n",
        "test/a.test.ts": "test('a', () => {})\n",
        "node_modules/b/tsconfig.json": '{"extends": "unused"}',
    }
    for path, text in files.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text, encoding="utf-8")
    assert set(read_folder(tmp_path).needed) == {"@me/base", "preset-a", "transform-b", "babel-c", "@types/node"}

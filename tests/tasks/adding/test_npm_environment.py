from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from repairgym.errors import PackageNotFoundError, TaskError
from repairgym.tasks.adding.npm_environment import node_mismatch, own_or_resolved_lock
from repairgym.tasks.adding.npm_project import NodeFolder, read_folder
from repairgym.tasks.layers.npm_locks import locked_version
from repairgym.tasks.layers.store import LayerStore


@pytest.mark.parametrize(
    ("wanted", "version", "is_told"),
    [
        (">=22.12.0", "20.20.2", True),
        (">=22.12.0", "22.12.0", False),
        ("^18.18.0 || ^20.9.0 || >=21.1.0", "18.17.0", True),
        ("^18.18.0 || ^20.9.0 || >=21.1.0", "20.1.0", False),
        ("22.x", "20.20.2", True),
        ("*", "20.20.2", False),
        ("", "20.20.2", False),
        ("< 16", "20.20.2", False),
        (">=22.12.0", "22", False),
        (">=22.12.0", "21", True),
    ],
)
def test_a_node_older_than_every_one_that_is_asked_for_is_told(wanted: str, version: str, is_told: bool) -> None:
    assert bool(node_mismatch({"engines": {"node": wanted}}, version)) is is_told


def test_the_node_of_development_counts_before_that_of_users() -> None:
    settings = {"engines": {"node": ">=18"}, "devEngines": {"runtime": [{"name": "node", "version": ">=22.4"}]}}
    assert "--node 22" in node_mismatch(settings, "20.20.2")


needs_npm = pytest.mark.skipif(shutil.which("npm") is None, reason="there is no npm on this machine")


@needs_npm
@pytest.mark.parametrize(
    ("name", "text", "cause"),
    [
        ("package-lock.json", '{"lockfileVersion": 1}', "npm before 7"),
        ("package-lock.json", json.dumps({"packages": {
            "": {}, "node_modules/b": {"integrity": "sha512-b=", "dependencies": {"a": "1"}},
            "node_modules/a": {"integrity": "sha512-a="},
        }}), "it holds the project itself: b > a"),
        ("pnpm-lock.yaml", "lockfileVersion: '9.0'", "pnpm-lock.yaml is not read"),
    ],
)  # fmt: skip
def test_a_lock_that_cannot_serve_is_told_before_another_is_resolved(
    tmp_path: Path, name: str, text: str, cause: str
) -> None:
    tree = tmp_path / "a"
    files = {
        "package.json": '{"name": "a", "devDependencies": {"b": "1"}}',
        "index.js": "module.exports = 1;\n",
        "test/a.js": "require('node:test').test('a', () => {});\nconst it = 1; it(1)\n",
        name: text,
    }
    for path, content in files.items():
        (tree / path).parent.mkdir(parents=True, exist_ok=True)
        (tree / path).write_text(content, encoding="utf-8")
    said: list[str] = []
    resolved = own_or_resolved_lock(LayerStore(tmp_path / "layers"), read_folder(tree), "", said.append)
    assert [told for told in resolved.told if cause in told]
    assert cause in " ".join(said[:-1])
    assert list(json.loads(resolved.lock)["packages"]) == [""]


def project(tree: Path, **settings: object) -> NodeFolder:
    """A project whose tests run in mocha."""
    (tree / "test").mkdir(parents=True)
    (tree / "package.json").write_text(json.dumps(settings), encoding="utf-8")
    (tree / "index.js").write_text("module.exports = 1;\n", encoding="utf-8")
    (tree / "test/a.js").write_text("it('a', () => {});\n", encoding="utf-8")
    return read_folder(tree)


@needs_npm
def test_a_framework_that_needs_the_project_in_each_version_is_told_at_once(tmp_path: Path) -> None:
    needs = {"mocha": "10.8.2", "agent-base": "6.0.2"}
    folder, said = project(tmp_path / "a", name="debug", devDependencies=needs), list[str]()
    (folder.tree / "test/b.js").write_text("require('agent-base');\n", encoding="utf-8")
    with pytest.raises(TaskError, match=r"each known version of mocha needs it \(mocha > debug\)"):
        own_or_resolved_lock(LayerStore(tmp_path / "layers"), folder, "", said.append)
    assert sum("resolves a lock" in line for line in said) == 1


@needs_npm
def test_what_reads_the_tests_may_need_the_project_too(tmp_path: Path) -> None:
    folder = project(tmp_path / "a", name="get-tsconfig", devDependencies={"mocha": "10.8.2"})
    (tmp_path / "a/index.ts").write_text("export default 1;\n", encoding="utf-8")
    folder = read_folder(folder.tree)
    with pytest.raises(TaskError, match="tsx > get-tsconfig"):
        own_or_resolved_lock(LayerStore(tmp_path / "layers"), folder, "", lambda _: None)


@needs_npm
def test_a_package_for_development_that_the_registry_lacks_is_left_out_and_told(tmp_path: Path) -> None:
    folder = project(tmp_path / "a", name="a-b-c", devDependencies={"reusify": "99.0.0", "mocha": "10.8.2"})
    (folder.tree / "test/b.js").write_text("require('reusify');\n", encoding="utf-8")
    resolved = own_or_resolved_lock(LayerStore(tmp_path / "layers"), folder, "", lambda _: None)
    assert resolved.told == ("no reusify: the registry has no reusify@99.0.0; tests that need it fail",)
    needs = {"dependencies": {"reusify": "99.0.0"}, "devDependencies": {"mocha": "10.8.2"}}
    folder = project(tmp_path / "b", name="a-b-c", **needs)
    with pytest.raises(PackageNotFoundError, match=r"reusify@99\.0\.0"):
        own_or_resolved_lock(LayerStore(tmp_path / "layers"), folder, "", lambda _: None)


def test_settings_of_bundlers_scripts_and_examples_need_nothing(tmp_path: Path) -> None:
    wanted = dict.fromkeys(("rollup", "chalk", "left", "@babel/core", "sinon"), "1")
    folder = project(tmp_path / "a", name="a", devDependencies={**wanted, "mocha": "10"})
    uses = {
        "rollup.config.mjs": "rollup",
        "scripts/a.js": "chalk",
        "example.js": "left",
        "babel.config.js": "@babel/core",
        "test/setup.js": "sinon",
    }
    (folder.tree / "scripts").mkdir()
    for path, package in uses.items():
        (folder.tree / path).write_text(f"require('{package}');\n", encoding="utf-8")
    folder = read_folder(folder.tree)
    assert folder.needed == {"@babel/core": "1", "sinon": "1"}
    assert folder.sources == ("index.js",)


@pytest.mark.parametrize(
    ("settings", "path", "cause"),
    [
        (
            {"scripts": {"test": "xo && ava"}},
            "test.js",
            "its tests run in ava; the frameworks that run here",
        ),
        ({"devDependencies": {"uvu": "1"}}, "test/a.js", "its tests run in uvu"),
        ({}, "test/a.js", r"1 files look like tests \(test/a.js\), and none calls vitest"),
        ({}, "a.js", "no test file"),
    ],
)
def test_why_a_project_has_no_tests_is_told(tmp_path: Path, settings: dict[str, object], path: str, cause: str) -> None:
    for name, text in {"package.json": json.dumps(settings), path: "0;\n", "index.js": "0;\n"}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    with pytest.raises(TaskError, match=cause):
        read_folder(tmp_path, "a")


@pytest.mark.parametrize(
    ("settings", "files", "named"),
    [
        ({"scripts": {"test": "nyc -r lcov mocha --require @babel/register"}}, {}, "@babel/register"),
        ({"scripts": {"test": "nyc -r lcov mocha -r esm test"}}, {}, "esm"),
        ({"scripts": {"test": "nyc -r lcov mocha"}}, {}, ""),
        ({"mocha": {"require": ["ts-node/register"]}}, {}, "ts-node/register"),
        ({}, {".mocharc.yml": "require:\n  - ./test/setup.js\n"}, "./test/setup.js"),
        ({}, {".mocharc.json": '{"require": "a"}'}, "a"),
    ],
)
def test_modules_that_mocha_would_load_first_are_told(
    tmp_path: Path, settings: dict[str, object], files: dict[str, str], named: str
) -> None:
    folder = project(tmp_path / "a", name="a", **{"devDependencies": {"mocha": "10"}, **settings})
    for path, text in files.items():
        (folder.tree / path).write_text(text, encoding="utf-8")
    told = (f"mocha's option require ({named}) is not read; tests that need it fail",) if named else ()
    assert folder.unread_options == told


@needs_npm
def test_a_framework_that_is_too_old_for_the_runner_is_replaced_and_told(tmp_path: Path) -> None:
    folder = project(tmp_path / "a", name="a-b-c", devDependencies={"mocha": "^6.2.3"})
    resolved = own_or_resolved_lock(LayerStore(tmp_path / "layers"), folder, "", lambda _: None)
    assert resolved.told == ("mocha ^6.2.3 is too old for the runner here; a newer one runs the tests",)
    assert locked_version(resolved.lock, "mocha") == "10.8.2"

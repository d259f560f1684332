from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from repairgym.tasks.adding.npm_environment import node_mismatch, own_or_resolved_lock
from repairgym.tasks.adding.npm_project import read_folder
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
    ],
)
def test_a_node_older_than_every_one_that_is_asked_for_is_told(wanted: str, version: str, is_told: bool) -> None:
    assert bool(node_mismatch(wanted, version)) is is_told


@pytest.mark.skipif(shutil.which("npm") is None, reason="there is no npm on this machine")
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

from __future__ import annotations

import json
from pathlib import Path

import pytest

from repairgym.tasks.javascript.built_copies import built_copies


def made(tree: Path, **entry: object) -> Path:
    files = {
        "package.json": json.dumps({"main": "./lib/index", **entry}),
        "lib/index.js": "module.exports = require('./parse');",
        "lib/parse.js": "module.exports = 1;",
        "test/parse.js": "require('../').parse; require('../dist/loaded');",
        "dist/loaded.js": "require('./inner.js');",
        "dist/inner.js": "",
        "dist/qs.js": "",
        "dist/notes.md": "",
        "qs.min.js": "",
        "lib/parse.coffee": "",
        "lib/other.coffee": "",
        "lib/parse.js.map": "{}",
        "build/parse.js": "",
        "build/publish.js": "",
        "node_modules/other/dist/other.js": "",
    }
    for path, text in files.items():
        (tree / path).parent.mkdir(parents=True, exist_ok=True)
        (tree / path).write_text(text, encoding="utf-8")
    return tree


def test_outputs_and_originals_of_builds_are_copies_unless_something_loads_them(tmp_path: Path) -> None:
    sources = ("lib/index.js", "lib/parse.js")
    copies = ("build/parse.js", "dist/qs.js", "lib/parse.coffee", "lib/parse.js.map", "qs.min.js")
    assert built_copies(made(tmp_path), sources) == copies


@pytest.mark.parametrize(
    ("entry", "kept"),
    [
        ({"main": "dist/qs"}, "dist/qs.js"),
        ({"exports": {".": {"require": "./dist/qs.js"}}}, "dist/qs.js"),
        ({"bin": {"qs": "qs.min.js"}}, "qs.min.js"),
    ],
)
def test_entry_points_are_no_copies(entry: dict[str, object], kept: str, tmp_path: Path) -> None:
    copies = built_copies(made(tmp_path, **entry), ("lib/index.js",))
    assert kept not in copies
    assert len(copies) == 2  # the name of "build/parse.js" is that of no source here


def test_sources_and_what_browsers_load(tmp_path: Path) -> None:
    tree = made(tmp_path, browser="qs.min.js")
    assert built_copies(tree, ("dist/qs.js",)) == ("lib/parse.js.map", "qs.min.js")

"""A tiny package of npm with a scope, in two releases, whose tests run in node:test on this machine's node."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from repairgym.tasks.layers.catalogue import NpmPackage
from repairgym.tasks.layers.npm_registry import integrity_of
from repairgym.tasks.layers.store import LayerStore
from repairgym.testing.npm_archives import Folder, pack

LOCK = json.dumps({"lockfileVersion": 3, "packages": {"": {"name": "environment", "version": "0.0.0"}}})
FILES = {
    "package.json": '{"name": "@tiny/math", "version": "1.1.0", "license": "MIT", "main": "index.js"}\n',
    "CHANGELOG.md": "# Changes\n\n## 1.1.0\n\n- `clamp` returns the upper bound for larger values\n",
    "index.js": """'use strict';

// Bounds.
function clamp(value, low, high) {
    if (value < low) {
        return low;
    }
    if (value > high) {
        return high;
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
""",
    "dist/math.min.js": "var m=(v,l,h)=>v<l?l:v>h?h:v;module.exports={clamp:m};",
    "test/index.test.js": """'use strict';

const test = require('node:test');
const { describe, it } = test;
const assert = require('node:assert');
const { clamp, sum } = require('../');

describe('clamp', () => {
    it('keeps values between the bounds', () => {
        assert.strictEqual(clamp(3, 1, 5), 3);
    });
    it('returns the lower bound', () => {
        assert.strictEqual(clamp(0, 1, 5), 1);
    });
    it('returns the upper bound', () => {
        assert.strictEqual(clamp(7, 1, 5), 5);
    });
    it('takes [equal] bounds', () => {
        assert.strictEqual(clamp(7, 1, 1), 1);
    });
});

test('sum of three', () => {
    assert.strictEqual(sum([1, 2, 3]), 6);
});

test('sum of nothing', () => {
    assert.strictEqual(sum([]), 0);
});

test('sum of one', async () => {
    assert.strictEqual(sum([4]), 4);
});
""",
}
OLDER = {"index.js": FILES["index.js"].replace("return high;", "return value;")}


def needs_node() -> None:
    if shutil.which("node") is None:
        pytest.skip("there is no node on this machine")


@pytest.fixture(scope="module")
def tinymath(tmp_path_factory: pytest.TempPathFactory) -> tuple[NpmPackage, LayerStore, Path]:
    """The entry, a store that can make its layers, and a folder with its lock."""
    needs_node()
    folder = tmp_path_factory.mktemp("npm")
    releases = {"1.0.0": {**FILES, **OLDER}, "1.1.0": FILES}
    pins = {version: integrity_of(pack(folder, "@tiny/math", version, files)) for version, files in releases.items()}
    (folder / "locks/npm").mkdir(parents=True)
    (folder / "locks/npm/@tiny+math.json").write_text(LOCK, encoding="utf-8")
    package = NpmPackage(
        name="@tiny/math",
        split="train",
        sources=("index.js",),
        tests=("test/*.js",),
        version="1.1.0",
        releases=(("1.0.0", "1.1.0"),),
        sdists=pins,
        runner="node_test",
    )
    return package, LayerStore(folder / "layers", index=Folder(folder)), folder

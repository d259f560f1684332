"""Locks of npm packages."""

from __future__ import annotations

import json

import pytest

from repairgym.tasks.layers.npm_locks import names_that_need

LOCK = json.dumps(
    {
        "packages": {
            "": {"dependencies": {"ajv": "^8", "tape": "^5"}},
            "node_modules/ajv": {"dependencies": {"fast-uri": "^3", "tools": "^1"}},
            "node_modules/ajv/node_modules/tools": {"peerDependencies": {"ajv": "^8"}},
            "node_modules/fast-uri": {},
            "node_modules/@scope/plugin": {"optionalDependencies": {"ajv": "^8"}},
            "node_modules/tape": {"dependencies": {"object-inspect": "^1"}},
        }
    }
)


@pytest.mark.parametrize(
    ("name", "users"),
    [("fast-uri", {"ajv", "tools", "@scope/plugin"}), ("object-inspect", {"tape"}), ("tape", set()), ("qs", set())],
)
def test_packages_need_another_one_themselves_or_through_others(name: str, users: set[str]) -> None:
    assert names_that_need(LOCK, name) == users

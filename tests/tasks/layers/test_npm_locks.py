"""Locks of npm packages, and their registry."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from repairgym.tasks.layers.npm_locks import chain_to, names_that_need, without_unavailable
from repairgym.tasks.layers.npm_registry import NpmRegistry
from repairgym.tasks.layers.package_index import Sdist

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


def test_a_chain_leads_from_what_was_asked_for_to_a_package() -> None:
    assert chain_to(LOCK, "fast-uri") == ("ajv", "fast-uri")
    assert chain_to(LOCK, "ajv") == ("ajv",)
    assert chain_to(LOCK, "qs") == ()


def test_optional_packages_that_the_registry_did_not_have_leave_the_lock() -> None:
    entry = {"optionalDependencies": {"ajv": "^8", "of-another-system": "^1"}}
    lock = {"packages": {"": {}, "node_modules/vite": entry, "node_modules/vite/node_modules/ajv": {}}}
    assert without_unavailable(lock)["packages"]["node_modules/vite"] == {"optionalDependencies": {"ajv": "^8"}}


@pytest.mark.network
def test_one_start_of_npm_fetches_archives_and_leaves_out_what_has_another_integrity(tmp_path: Path) -> None:
    pin = "sha512-2yyAR8qBkN3YuheJanUpWC5U3bb5osDywNB8RzDVlDwDHbocAJveqqj1u8+SVD7jkWT4yvsHCpWqqWqAxb0zCA=="
    good = Sdist(name="minimist", version="1.2.8", sha256=pin)
    scoped = Sdist(
        name="@fastify/error",
        version="4.2.0",
        sha256="sha512-RSo3sVDXfHskiBZKBPRgnQTtIqpi/7zhJOEmAxCiBcM7d0uwdGdxLlsCaLzGs8v8NnxIRlfG0N51p5yFaOentQ==",
    )
    other = Sdist(name="minimist", version="1.2.7", sha256=pin)
    fetched = NpmRegistry().fetch_all([good, scoped, other], tmp_path)
    assert set(fetched) == {good, scoped}
    assert all(path.is_file() for path in fetched.values())

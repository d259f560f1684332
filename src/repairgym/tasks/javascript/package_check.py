"""The check of a package of npm: packed, installed, loaded and tested, with the environment in which that works.

Reads an `NpmPackage`. Makes the files that a task adds to the tree, and locks. Guarantees: the check reads ranges with
the package of npm that does so itself, which the lock pins under another name; a lock holds further versions of a
package under names of their own, so that npm installs them next to each other.
"""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from repairgym.records import Task
from repairgym.tasks.build.wheel_check import check_text
from repairgym.tasks.layers.catalogue import NpmPackage

NPM_CHECK_FOLDER = "repairgym_npm"
NPM_TEST = f"{NPM_CHECK_FOLDER}/package.test.cjs"
NPM_EXPECTED = f"{NPM_CHECK_FOLDER}/expected.json"
NPM_SCOPE = f"{NPM_CHECK_FOLDER}/package.json"
"""Keeps the settings of the package, which may be broken, away from the check."""
SETTINGS, TYPE_SETTINGS = "package.json", "tsconfig.json"
_COMPILATION = re.compile(r"\btsc\b[^&|]*?(?:-p|--project)[ =](?:\./)?([^\s\"&|]+\.json)")
_SEMVER = {
    "name": "semver",
    "version": "7.7.3",
    "integrity": "sha512-SdsKMrI9TdgjdweUSR9MweHA4EJ8YxHn8DFaDisvhVlUOe4BF1tLD7GAj0lIqWVl+dPb/rExr0Btby5loQm20Q==",
    "license": "ISC",
    "bin": {"semver": "bin/semver.js"},
    "engines": {"node": ">=10"},
}
_SEMVER_NAME = "repairgym-semver"


def is_npm_check(test_ids: tuple[str, ...]) -> bool:
    """Return True when tests of a package of npm are among ``test_ids``."""
    return any(test_id.startswith(f"{NPM_CHECK_FOLDER}/") for test_id in test_ids)


def checked(package: NpmPackage) -> NpmPackage:
    """Return ``package`` with the runner of its check, which needs no framework."""
    return package.model_copy(update={"runner": "node_test"})


def check_files(package: NpmPackage, tests: Sequence[str], tree: Path) -> dict[str, str]:
    """Return relative path -> text of the files over ``tree`` of ``package``; nothing is expected of it yet."""
    own = {"runner": package.runner, "tests": list(tests), "tsconfig": _type_settings(tree)}
    expected = expected_text(own)
    return {NPM_TEST: check_text(NPM_TEST), NPM_SCOPE: '{ "type": "commonjs" }\n', NPM_EXPECTED: expected}


def _type_settings(tree: Path) -> str:
    """Return the settings with which the scripts of ``tree`` compile types, else those at its top; empty for none."""
    named = _COMPILATION.findall((tree / SETTINGS).read_text(encoding="utf-8", errors="replace"))
    return next((path for path in (*named, TYPE_SETTINGS) if (tree / path).is_file()), "")


def expected_text(expected: Mapping[str, object]) -> str:
    """Return the text of `NPM_EXPECTED`."""
    return json.dumps(expected, indent=1, sort_keys=True) + "\n"


def with_reader_of_ranges(lock: str) -> str:
    """Return ``lock`` with the package that reads ranges."""
    content = json.loads(lock)
    content["packages"][f"node_modules/{_SEMVER_NAME}"] = _SEMVER
    root = content["packages"][""]
    root["dependencies"] = {**root.get("dependencies", {}), _SEMVER_NAME: f"npm:semver@{_SEMVER['version']}"}
    return json.dumps(content, indent=1, sort_keys=True) + "\n"


def without_reader_of_ranges(lock: str) -> str:
    """Return the lock from which `with_reader_of_ranges` made ``lock``."""
    content = json.loads(lock)
    content["packages"].pop(f"node_modules/{_SEMVER_NAME}", None)
    root = content["packages"][""]
    root.get("dependencies", {}).pop(_SEMVER_NAME, None)
    if not root.get("dependencies", True):
        del root["dependencies"]
    return json.dumps(content, indent=1, sort_keys=True) + "\n"


def with_npm_check(task: Task, max_build_s: float) -> Task:
    """Give ``task`` the deadline of a build; grading restores the check, and no settings."""
    paths = tuple(sorted({*task.test_paths, NPM_TEST, NPM_EXPECTED, NPM_SCOPE}))
    bounds = {"test_timeout_s": max_build_s, "timeout_s": max_build_s}
    return task.model_copy(update={**bounds, "test_paths": paths})

"""Certified tasks as Harbor task folders that run without this project.

Reads a `Task` and its pinned tree. Makes the files (`formats.folders`) that replace those that `formats.harbor` writes
for a record with an image. Guarantees: the image is built from the locked packages and the agent's tree, without hidden
tests and without the repair; the verifier restores every pinned test file before it runs the tests.
"""

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from repairgym.records import Task
from repairgym.tasks.formats.base import Fields
from repairgym.tasks.formats.folders import WORK_FOLDER, program, read_folder


def base_image(task: Task) -> str:
    """Return the base image of the environment of ``task``: its own Python."""
    return f"python:{task.environment.python}-slim"


def harbor_files(task: Task, tree: Path) -> Fields:
    """Return environment, verifier and solution of ``task`` with the pinned ``tree``.

    Raises:
        RecordError: the tree has a link or cannot be read.
    """
    pinned = read_folder(tree)
    base = {path: value for path, value in {**pinned, **task.base_files}.items() if value is not None}
    tests = {path: pinned[path] for path in task.test_paths if path in pinned}
    gold = {path: text for path, text in task.gold_files.items() if text is not None}
    removed = [path for path, text in task.gold_files.items() if text is None]
    return {
        "environment/Dockerfile": _dockerfile(task),
        "environment/requirements.txt": task.environment.lock,
        **_below("environment/base", base),
        "tests/test.sh": program(_verifier(task)),
        **_below("tests/files", tests),
        "solution/solve.sh": program(_solution(removed)),
        **_below("solution/files", gold),
    }


def _below(folder: str, files: Mapping[str, Any]) -> Fields:
    return {f"{folder}/{path}": value for path, value in files.items()}


def _search_path(task: Task) -> str:
    return ":".join(f"{WORK_FOLDER}/{path}".rstrip("/") for path in task.source_paths)


def _dockerfile(task: Task) -> str:
    return f"""FROM {base_image(task)}
COPY requirements.txt /tmp/requirements.txt
RUN pip install --no-cache-dir --require-hashes -r /tmp/requirements.txt
COPY base {WORK_FOLDER}
WORKDIR {WORK_FOLDER}
ENV PYTHONPATH={_search_path(task)} PYTEST_DISABLE_PLUGIN_AUTOLOAD=1 PYTHONDONTWRITEBYTECODE=1
"""


def _verifier(task: Task) -> str:
    """Return a script that restores the pinned test files and runs every test by name."""
    plugins = "".join(f" -p {shlex.quote(name)}" for name in task.plugins)
    return f"""#!/bin/bash
set -uo pipefail
tests="$(dirname "$(readlink -f "$0")")"
cp -r "$tests/files/." {WORK_FOLDER}/
cd {WORK_FOLDER}
export PYTHONPATH={shlex.quote(_search_path(task))} PYTEST_DISABLE_PLUGIN_AUTOLOAD=1 PYTHONDONTWRITEBYTECODE=1
mapfile -t ids < "$tests/test_ids.txt"
python -m pytest -q -rA -p no:cacheprovider{plugins} "${{ids[@]}}"
status=$?
mkdir -p /logs/verifier
if [ $status -eq 0 ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt
"""


def _solution(removed: list[str]) -> str:
    lines = "".join(f"rm -f {shlex.quote(path)}\n" for path in removed)
    return f"""#!/bin/bash
set -euo pipefail
cp -r "$(dirname "$(readlink -f "$0")")/files/." {WORK_FOLDER}/
cd {WORK_FOLDER}
{lines}"""

"""Task folders of Harbor (``task.toml`` schema 1.0 to 1.4): an instruction, an environment, a verifier, a solution.

Harbor runs any container task, so that a folder says little about repository, patches and tests. Adapters of SWE-bench
put the whole record into ``tests/config.json``; it is read if present, as is a reference patch in a here-document of
``solution/solve.sh``. Written folders hold both, and a verifier that runs the tests by name and writes its reward to
``/logs/verifier/reward.txt``.
"""

import json
import re
import tomllib

from repairgym.config.loading import to_toml
from repairgym.records import Record
from repairgym.tasks.formats.base import (
    Fields,
    RecordError,
    get_scores,
    get_table,
    has,
    keep_filled,
    text_or_empty,
)
from repairgym.tasks.formats.folders import WORK_FOLDER, command_of, dockerfile, get_file, program, restore_lines
from repairgym.tasks.formats.swe_bench import SweBench, read_core
from repairgym.tasks.unbuilt import FormatName, UnbuiltTask

TASK_FILE, RECORD_FILE, SOLUTION_FILE = "task.toml", "tests/config.json", "solution/solve.sh"
_HERE_DOCUMENT = re.compile(r"<<-?\s*(['\"]?)(\w+)\1[^\n]*\n(.*?\n)\2\s*(?:\n|$)", re.DOTALL)


class _Task(Record):
    name: str
    description: str = ""


class _Timeout(Record):
    timeout_sec: float


class _Environment(Record):
    build_timeout_sec: float = 600.0


class _TaskFile(Record):
    """The written part of ``task.toml`` (schema 1.1); missing limits are Harbor's own."""

    schema_version: str = "1.1"
    task: _Task
    metadata: dict[str, str]
    verifier: _Timeout = _Timeout(timeout_sec=1800.0)  # the bound of SWE-bench's harness
    agent: _Timeout = _Timeout(timeout_sec=3000.0)
    environment: _Environment = _Environment()


class Harbor:
    """Reads and writes task folders of Harbor."""

    name: FormatName = "harbor"
    is_folder = True

    def matches(self, fields: Fields) -> bool:
        """See `Format.matches`: the file of settings."""
        return TASK_FILE in fields

    def read(self, fields: Fields) -> UnbuiltTask:
        """See `Format.read`."""
        settings = _settings(get_file(fields, TASK_FILE, None))
        environment = get_table(settings, "environment")
        image = text_or_empty(environment.get("docker_image")) or _base_image(
            get_file(fields, "environment/Dockerfile")
        )
        issue = get_file(fields, "instruction.md", None)
        record = _record(fields)
        if record is not None:
            core = read_core(record) | {"issue": issue}
            return UnbuiltTask(format=self.name, image=image, **core)
        name = text_or_empty(get_table(settings, "task").get("name"))
        if not name:
            raise RecordError(f"{TASK_FILE} has no task.name and there is no {RECORD_FILE}: the task has no id")
        return UnbuiltTask(
            id=name,
            format=self.name,
            issue=issue,
            gold_patch=_patch_in(get_file(fields, SOLUTION_FILE)),
            image=image,
            quality_scores=get_scores(get_table(settings, "metadata")),
        )

    def write(self, task: UnbuiltTask) -> Fields:
        """See `Format.write`."""
        if not task.image:
            raise RecordError("harbor needs a container image, and the record names none")
        metadata = {"repository": task.repository, "base_commit": task.base_commit, "created_at": task.created_at}
        settings = _TaskFile(
            task=_Task(name=task.id),
            metadata=keep_filled(metadata),
        )
        return {
            TASK_FILE: to_toml(settings),
            "instruction.md": task.issue,
            **{f"environment/{name}": text for name, text in dockerfile(task).items()},
            RECORD_FILE: json.dumps(SweBench().write(task), indent=2, ensure_ascii=False) + "\n",
            "tests/test.patch": task.test_patch,
            "tests/test_ids.txt": "".join(f"{name}\n" for name in task.fail_to_pass + task.pass_to_pass),
            "tests/test.sh": program(_verifier(task)),
            "solution/gold.patch": task.gold_patch,
            SOLUTION_FILE: program(_solution()),
        }


def _settings(text: str) -> Fields:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise RecordError(f"{TASK_FILE} is no TOML: {error}") from error


def _record(fields: Fields) -> Fields | None:
    """Return the record in ``tests/config.json``; None without one of SWE-bench's form."""
    if RECORD_FILE not in fields:
        return None
    try:
        record = json.loads(get_file(fields, RECORD_FILE))
    except ValueError as error:
        raise RecordError(f"{RECORD_FILE} is no JSON: {error}") from error
    is_known = isinstance(record, dict) and has(record, "instance_id", "repo", "base_commit", "patch", "FAIL_TO_PASS")
    return record if is_known else None


def _base_image(dockerfile: str) -> str:
    images = re.findall(r"(?mi)^FROM\s+(?:--\S+\s+)*(\S+)", dockerfile)
    return images[-1] if images else ""


def _patch_in(script: str) -> str:
    """Return the patch in a solution's here-document; empty without one."""
    texts = (match[3] for match in _HERE_DOCUMENT.finditer(script))
    return next((text for text in texts if text.startswith(("diff --git ", "--- "))), "")


def _solution() -> str:
    return f"""#!/bin/bash
set -euo pipefail
cd {WORK_FOLDER}
git apply --whitespace=nowarn "$(dirname "$(readlink -f "$0")")/gold.patch"
"""


def _verifier(task: UnbuiltTask) -> str:
    """Return a script that runs every test by name and writes a reward of 1 if all passed."""
    return f"""#!/bin/bash
set -uo pipefail
tests="$(dirname "$(readlink -f "$0")")"
{restore_lines(task)}if [ -s "$tests/test.patch" ]; then git apply --whitespace=nowarn "$tests/test.patch"; fi
mapfile -t ids < "$tests/test_ids.txt"
{command_of(task)} "${{ids[@]}}"
status=$?
mkdir -p /logs/verifier
if [ $status -eq 0 ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt
"""

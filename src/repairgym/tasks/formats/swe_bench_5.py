"""Task folders of SWE-bench 5 (its `swebench.task.repo`): one folder per instance, one file per kind of text.

``task.yaml`` holds the short fields, ``tests.json`` the test lists, the rest are texts: ``problem_statement.md``,
``hints.md`` (absent when empty), ``gold.patch``, ``test.patch``, ``eval.sh``, ``Dockerfile``.
"""

import json
import shlex
from collections.abc import Iterable

import yaml

from repairgym.tasks.formats.base import Fields, Format, RecordError, get_names, get_text, keep_filled, split_of
from repairgym.tasks.formats.folders import command_of, dockerfile, get_file, parse_file, restore_lines
from repairgym.tasks.unbuilt import UnbuiltTask

TASK_FILE, TESTS_FILE, REPO_FILE = "task.yaml", "tests.json", "sweb.yaml"
DATASET = "repairgym"
"""Name of the data set that folders written here belong to; publishing asks for a real one."""
LOG_PARSER = "parse_log_pytest"
_PATCH_END = "END_OF_TEST_PATCH"


class SweBench5(Format):
    """Task folders of SWE-bench 5."""

    name = "swe_bench_5"
    is_folder = True
    required = (TASK_FILE, TESTS_FILE)

    def _read(self, fields: Fields) -> UnbuiltTask:
        short, tests = parse_file(fields, TASK_FILE, yaml.safe_load), parse_file(fields, TESTS_FILE, json.loads)
        return UnbuiltTask(
            id=get_text(short, "instance_id", None),
            format=self.name,
            repository=get_text(short, "repo", None),
            base_commit=get_text(short, "base_commit", None),
            version=str(short.get("version", "")),
            issue=get_file(fields, "problem_statement.md", None),
            hints=get_file(fields, "hints.md"),
            gold_patch=get_file(fields, "gold.patch", None),
            test_patch=get_file(fields, "test.patch", None),
            fail_to_pass=get_names(tests, "FAIL_TO_PASS"),
            pass_to_pass=get_names(tests, "PASS_TO_PASS"),
            created_at=str(short.get("created_at", "")),
            image=get_text(short, "image"),
            split=split_of(get_text(short, "split")),
        )

    def _write(self, task: UnbuiltTask) -> Fields:
        short = {
            "instance_id": task.id,
            "repo": task.repository,
            "version": task.version,
            "base_commit": task.base_commit,
            "split": task.split or "test",
            "eval_type": "pass_and_fail",
            "log_parser": LOG_PARSER,
            "datasets": [DATASET],
            **keep_filled({"created_at": task.created_at, "image": task.image}),
        }
        tests = {"FAIL_TO_PASS": list(task.fail_to_pass), "PASS_TO_PASS": list(task.pass_to_pass)}
        container = {**dockerfile(task), "eval.sh": _eval_script(task)} if task.image else {}
        return {
            TASK_FILE: yaml.safe_dump(short, allow_unicode=True),
            TESTS_FILE: json.dumps(tests, indent=2, ensure_ascii=False) + "\n",
            "problem_statement.md": task.issue,
            "gold.patch": task.gold_patch,
            "test.patch": task.test_patch,
            **keep_filled({"hints.md": task.hints}),
            **container,
        }


def _eval_script(task: UnbuiltTask) -> str:
    ids = " ".join(map(shlex.quote, task.fail_to_pass + task.pass_to_pass))
    patch = (
        f"git apply --whitespace=nowarn - <<'{_PATCH_END}'\n{task.test_patch}{_PATCH_END}\n" if task.test_patch else ""
    )
    if _PATCH_END in task.test_patch:
        raise RecordError(f"the patch of tests has the line {_PATCH_END}, which ends it in eval.sh")
    return f"""#!/bin/bash
set -uxo pipefail
{restore_lines(task)}{patch}echo '>>>>> Start Test Output'
{command_of(task)} {ids}
status=$?
echo '>>>>> End Test Output'
exit $status
"""


def task_repo_file(splits: Iterable[str]) -> str:
    """Return ``sweb.yaml``, which makes a folder with ``tasks/`` a task repository."""
    return yaml.safe_dump({"datasets": [DATASET], "splits": sorted(set(splits))})

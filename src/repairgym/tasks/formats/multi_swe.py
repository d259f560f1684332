"""Multi-SWE-bench and Multi-SWE-RL records (arXiv:2504.02605): pull requests with the statuses of three stages.

Each test has a status without patches (``run``), with the patch of tests (``test``) and with both patches (``fix``).
The tests of the repair are ``fixed_tests``, or if that is empty the lists of the ways to pass.
Releases for `datasets` store the maps as columns: one list of names and one list per stage.
"""

import re
from typing import Any

from repairgym.tasks.formats.base import Fields, Format, RecordError, get_table, get_text, keep_filled
from repairgym.tasks.unbuilt import UnbuiltTask

_FIXED = ("f2p_tests", "s2p_tests", "n2p_tests")
_ID = re.compile(r".*-(\d+)")


class MultiSwe(Format):
    """Rows of Multi-SWE-bench: a pull request and its repair."""

    name = "multi_swe"
    required = ("org", "repo", "number", "fix_patch")

    def _read(self, fields: Fields) -> UnbuiltTask:
        number = fields.get("number")
        if isinstance(number, bool) or not isinstance(number, int):
            raise RecordError(f"the field 'number' is {number!r}, expected the number of a pull request")
        org, repo = get_text(fields, "org", None), get_text(fields, "repo", None)
        fixed = _test_names(fields, "fixed_tests") or [name for key in _FIXED for name in _test_names(fields, key)]
        return UnbuiltTask(
            id=f"{org}__{repo}-{number}",
            format=self.name,
            repository=f"{org}/{repo}",
            base_commit=get_text(get_table(fields, "base"), "sha", None),
            issue=_issue(fields),
            hints=get_text(fields, "hints"),
            gold_patch=get_text(fields, "fix_patch", None),
            test_patch=get_text(fields, "test_patch"),
            fail_to_pass=tuple(dict.fromkeys(fixed)),
            pass_to_pass=tuple(_test_names(fields, "p2p_tests")),
            language=get_text(fields, "lang"),
        )

    def _write(self, task: UnbuiltTask) -> Fields:
        org, _, repo = task.repository.rpartition("/")
        number = _ID.fullmatch(task.id)
        if not org or not number:
            raise RecordError(
                f"multi_swe needs an owner and the number of a pull request; got {task.repository!r} and {task.id!r}"
            )
        title, _, body = task.issue.partition("\n")
        fixed = {name: {"run": "NONE", "test": "FAIL", "fix": "PASS"} for name in task.fail_to_pass}
        always_passing = {name: {"run": "PASS", "test": "PASS", "fix": "PASS"} for name in task.pass_to_pass}
        return {
            "org": org,
            "repo": repo,
            "number": int(number[1]),
            "state": "closed",
            "title": title,
            "body": body,
            "base": {"label": "", "ref": "", "sha": task.base_commit},
            "resolved_issues": [],
            "fix_patch": task.gold_patch,
            "test_patch": task.test_patch,
            "fixed_tests": fixed,
            "p2p_tests": always_passing,
            "f2p_tests": fixed,
            "s2p_tests": {},
            "n2p_tests": {},
            "run_result": _stage(always_passing, {}),
            "test_patch_result": _stage(always_passing, fixed),
            "fix_patch_result": _stage(always_passing | fixed, {}),
            **keep_filled({"lang": task.language, "hints": task.hints}),
        }


def _issue(fields: Fields) -> str:
    """Return title and body of the resolved issues, or else of the pull request."""
    issues = fields.get("resolved_issues")
    texts = [issue for issue in issues if isinstance(issue, dict)] if isinstance(issues, list) else []
    parts = [f"{get_text(issue, 'title')}\n{get_text(issue, 'body')}" for issue in texts or [fields]]
    return "\n\n".join(parts)


def _test_names(fields: Fields, name: str) -> list[str]:
    table = get_table(fields, name)
    columns = table.get("name")
    if isinstance(columns, list) and all(isinstance(item, str) for item in columns):
        return columns
    # In a shared column, tests of other rows are null.
    return [test for test, statuses in table.items() if statuses is not None]


def _stage(passed: dict[str, Any], failed: dict[str, Any]) -> Fields:
    return {
        "passed_count": len(passed),
        "failed_count": len(failed),
        "skipped_count": 0,
        "passed_tests": list(passed),
        "failed_tests": list(failed),
        "skipped_tests": [],
    }

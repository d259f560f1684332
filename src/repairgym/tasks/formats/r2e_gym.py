"""R2E-Gym records (arXiv:2504.07164): commits instead of pull requests, statuses instead of test lists.

``parsed_commit_content`` is JSON in a text: the hashes before and after, and the diff of each file. The patch is
assembled from the files; test files form the patch of tests. ``expected_output_json`` names the tests that pass
after the repair; nothing names those that failed before.
"""

import re
from typing import Any

from repairgym.tasks.formats.base import Fields, Format, RecordError, get_table, get_text, text_or_empty
from repairgym.tasks.unbuilt import UnbuiltTask

_SIGNS = {"context": " ", "added": "+", "deleted": "-"}
_TEST_PATH = re.compile(r"(^|/)(tests?/|test_[^/]*\.py$|[^/]*_test\.py$|conftest\.py$)")


class R2eGym(Format):
    """Rows of R2E-Gym: a commit, an image and statuses."""

    name = "r2e_gym"
    required = ("repo_name", "commit_hash", "docker_image", "expected_output_json")

    def _read(self, fields: Fields) -> UnbuiltTask:
        repository, commit = get_text(fields, "repo_name", None), get_text(fields, "commit_hash", None)
        parsed = get_table(fields, "parsed_commit_content")
        files = [(path, text) for path, text in map(_file_patch, _items(parsed, "file_diffs")) if text]
        return UnbuiltTask(
            id=f"{repository}-{commit}",
            format=self.name,
            repository=repository,
            base_commit=text_or_empty(parsed.get("old_commit_hash")) or f"{commit}^",
            issue=get_text(fields, "problem_statement"),
            gold_patch="".join(text for path, text in files if not _TEST_PATH.search(path)),
            test_patch="".join(text for path, text in files if _TEST_PATH.search(path)),
            language="python",
            image=get_text(fields, "docker_image"),
        )

    def _write(self, task: UnbuiltTask) -> Fields:
        if task.format != self.name:
            raise RecordError(
                "r2e_gym needs the commit of the repair, its parsed diff and the status of every test, which only "
                f"R2E-Gym's own records have; this one is {task.format}"
            )
        return {
            "repo_name": task.repository,
            "docker_image": task.image,
            "commit_hash": task.id.removeprefix(f"{task.repository}-"),
            "problem_statement": task.issue,
        }


def _items(table: Fields, name: str) -> list[Fields]:
    value = table.get(name)
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _file_patch(diff: Fields) -> tuple[str, str]:
    """Return path and patch of one parsed file diff; the patch may be empty."""
    path = text_or_empty(get_table(get_table(diff, "header"), "file").get("path"))
    if not path:
        raise RecordError("a file of 'parsed_commit_content' has no path")
    hunks = _items(diff, "hunks")
    if diff.get("is_binary_file") or not hunks:
        return path, ""
    old = "/dev/null" if _is_absent(diff, "minus_file") else f"a/{path}"
    new = "/dev/null" if _is_absent(diff, "plus_file") else f"b/{path}"
    mode = (
        "new file mode 100644\n" if old == "/dev/null" else "deleted file mode 100644\n" if new == "/dev/null" else ""
    )
    head = f"diff --git a/{path} b/{path}\n{mode}--- {old}\n+++ {new}\n"
    return path, head + "".join(map(_hunk_text, hunks))


def _is_absent(diff: Fields, side: str) -> bool:
    return "/dev/null" in text_or_empty(get_table(diff, side).get("path"))


def _hunk_text(hunk: Fields) -> str:
    place = get_table(hunk, "descriptor")
    head = f"@@ -{_range(place, 'old_range')} +{_range(place, 'new_range')} @@"
    section = text_or_empty(place.get("section"))
    lines = _items(get_table(hunk, "line_group"), "all_lines")
    return f"{head}{f' {section}' if section else ''}\n" + "".join(map(_line_text, lines))


def _range(place: Fields, name: str) -> str:
    numbers = get_table(place, name)
    start, length = numbers.get("start"), numbers.get("length")
    if not isinstance(start, int):
        raise RecordError(f"a hunk of 'parsed_commit_content' has no {name}.start")
    return f"{start},{length}" if isinstance(length, int) else str(start)


def _line_text(line: dict[str, Any]) -> str:
    kind, content = line.get("type"), text_or_empty(line.get("content"))
    if kind == "note":
        return "\\ No newline at end of file\n"
    if kind not in _SIGNS:
        raise RecordError(f"a line of 'parsed_commit_content' is of the type {kind!r}, expected {', '.join(_SIGNS)}")
    return f"{_SIGNS[kind]}{content}\n"

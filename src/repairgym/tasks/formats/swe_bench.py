"""SWE-bench records (arXiv:2310.06770; Verified, Lite, Multilingual, Multimodal, and the columns of version 5).

Rows whose test lists are JSON in a text. Version 5 adds ``image``, ``eval_script``, ``log_parser``, ``eval_type``,
``split`` and ``datasets``; Verified adds ``difficulty``.
"""

from __future__ import annotations

from typing import Any

from repairgym.tasks.formats.base import Fields, as_json, get_names, get_text, has, keep_filled, text_or_empty
from repairgym.tasks.unbuilt import FormatName, UnbuiltTask


class SweBench:
    """Reads and writes rows of SWE-bench."""

    name: FormatName = "swe_bench"
    is_folder = False

    def matches(self, fields: Fields) -> bool:
        """SWE-bench writes its test lists as text."""
        return has(fields, "instance_id", "patch", "test_patch") and isinstance(fields.get("FAIL_TO_PASS"), str)

    def read(self, fields: Fields) -> UnbuiltTask:
        """See `Format.read`."""
        difficulty = text_or_empty(fields.get("difficulty"))
        return UnbuiltTask(
            format=self.name,
            image=get_text(fields, "image"),
            labels={"difficulty": difficulty} if difficulty else {},
            **read_core(fields),
        )

    def write(self, task: UnbuiltTask) -> Fields:
        """See `Format.write`."""
        optional = {"image": task.image, "difficulty": task.labels.get("difficulty", "")}
        return {
            **write_core(task),
            "FAIL_TO_PASS": as_json(task.fail_to_pass),
            "PASS_TO_PASS": as_json(task.pass_to_pass),
            "environment_setup_commit": task.base_commit,
            **keep_filled(optional),
        }


def read_core(fields: Fields) -> dict[str, Any]:
    """What every descendant of SWE-bench has, as fields of `UnbuiltTask`.

    Raises:
        RecordError: the id, a patch or a test list is missing or has the wrong type.
    """
    return {
        "id": get_text(fields, "instance_id", None),
        "repository": get_text(fields, "repo", None),
        "base_commit": get_text(fields, "base_commit", None),
        "version": get_text(fields, "version"),
        "issue": get_text(fields, "problem_statement"),
        "hints": get_text(fields, "hints_text"),
        "gold_patch": get_text(fields, "patch", None),
        "test_patch": get_text(fields, "test_patch"),
        "fail_to_pass": get_names(fields, "FAIL_TO_PASS"),
        "pass_to_pass": get_names(fields, "PASS_TO_PASS"),
        "created_at": get_text(fields, "created_at"),
    }


def write_core(task: UnbuiltTask) -> Fields:
    """The fields of `read_core`; test lists as lists."""
    return {
        "instance_id": task.id,
        "repo": task.repository,
        "base_commit": task.base_commit,
        "version": task.version,
        "problem_statement": task.issue,
        "hints_text": task.hints,
        "patch": task.gold_patch,
        "test_patch": task.test_patch,
        "FAIL_TO_PASS": list(task.fail_to_pass),
        "PASS_TO_PASS": list(task.pass_to_pass),
        "created_at": task.created_at,
    }

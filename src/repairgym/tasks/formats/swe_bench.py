"""Rows of SWE-bench (arXiv:2310.06770) and its descendants.

- SWE-bench (Verified, Lite, Multilingual, Multimodal, columns of version 5): test lists are JSON in a text. Version 5
  adds ``image``, ``eval_script``, ``log_parser``, ``eval_type``, ``split``, ``datasets``; Verified adds ``difficulty``.
- SWE-Gym (arXiv:2412.21139): test lists are lists; also SWE-bench-extra and others that differ by their lists only.
- SWE-rebench (arXiv:2505.20411): adds ``install_config``, ``requirements`` (`pip freeze`), and ``meta.llm_score`` with
  the scores of paper B's filter (section 4.1).
- SWE-rebench V2 (arXiv:2602.23866): twenty languages, times in milliseconds, lists of commands.
- SWE-smith (arXiv:2504.21798): the patch puts the bug *in*, the gold patch is its reverse. Repositories are mirrors
  ``swesmith/OWNER__NAME.COMMIT``, which give owner, name and the start of the commit.
"""

import json
import re
from datetime import UTC, datetime
from typing import Any

from repairgym.diffs.apply import reverse_patch
from repairgym.diffs.parse import PatchError
from repairgym.tasks.formats.base import (
    Fields,
    Format,
    RecordError,
    get_commands,
    get_names,
    get_scores,
    get_table,
    get_text,
    has,
    keep_filled,
    text_or_empty,
)
from repairgym.tasks.unbuilt import UnbuiltTask

_COLUMNS = {
    "id": "instance_id",
    "repository": "repo",
    "base_commit": "base_commit",
    "version": "version",
    "issue": "problem_statement",
    "hints": "hints_text",
    "gold_patch": "patch",
    "test_patch": "test_patch",
    "fail_to_pass": "FAIL_TO_PASS",
    "pass_to_pass": "PASS_TO_PASS",
    "created_at": "created_at",
}
"""Field of `UnbuiltTask` -> column of SWE-bench and its descendants."""
_TESTS = ("FAIL_TO_PASS", "PASS_TO_PASS")
_REQUIRED = ("instance_id", "repo", "base_commit", "patch")


def read_core(fields: Fields) -> dict[str, Any]:
    """Read the common columns as fields of `UnbuiltTask`."""
    return {
        name: get_names(fields, column)
        if column in _TESTS
        else get_text(fields, column, None if column in _REQUIRED else "")
        for name, column in _COLUMNS.items()
    }


def write_core(task: UnbuiltTask) -> Fields:
    """Write the common columns; test lists as lists."""
    values = {column: getattr(task, name) for name, column in _COLUMNS.items()}
    return values | {column: list(values[column]) for column in _TESTS}


def write_swe_bench(task: UnbuiltTask) -> Fields:
    """Write a row of SWE-bench."""
    core = write_core(task)
    return {
        **core,
        **{column: json.dumps(core[column]) for column in _TESTS},
        "environment_setup_commit": task.base_commit,
        **keep_filled({"image": task.image, "difficulty": task.labels.get("difficulty", "")}),
    }


class SweBench(Format):
    """Rows of SWE-bench: test lists are JSON in a text."""

    name = "swe_bench"
    required = ("instance_id", "patch", "test_patch")

    def matches(self, fields: Fields) -> bool:
        """See `Format.matches`."""
        return super().matches(fields) and isinstance(fields.get("FAIL_TO_PASS"), str)

    def _read(self, fields: Fields) -> UnbuiltTask:
        difficulty = text_or_empty(fields.get("difficulty"))
        return UnbuiltTask(
            format=self.name,
            image=get_text(fields, "image"),
            labels={"difficulty": difficulty} if difficulty else {},
            **read_core(fields),
        )

    def _write(self, task: UnbuiltTask) -> Fields:
        return write_swe_bench(task)


class SweGym(Format):
    """Rows of SWE-Gym: test lists are lists."""

    name = "swe_gym"
    required = ("instance_id", "base_commit", "patch", "test_patch")

    def matches(self, fields: Fields) -> bool:
        """See `Format.matches`."""
        return super().matches(fields) and isinstance(fields.get("FAIL_TO_PASS"), list)

    def _read(self, fields: Fields) -> UnbuiltTask:
        return UnbuiltTask(format=self.name, **read_core(fields))

    def _write(self, task: UnbuiltTask) -> Fields:
        return write_core(task)


class SweRebench(Format):
    """Rows of SWE-rebench: an installation as well."""

    name = "swe_rebench"
    required = ("instance_id", "base_commit", "patch", "test_patch", "install_config")

    def _read(self, fields: Fields) -> UnbuiltTask:
        install = get_table(fields, "install_config")
        return UnbuiltTask(
            format=self.name,
            language="python",
            license=get_text(fields, "license_name"),
            image=get_text(fields, "docker_image") or get_text(fields, "image_name"),
            python=text_or_empty(install.get("python")),
            lock=get_text(fields, "requirements"),
            build=get_commands(install, "install"),
            test_command=text_or_empty(install.get("test_cmd")),
            quality_scores=get_scores(get_table(get_table(fields, "meta"), "llm_score")),
            **read_core(fields),
        )

    def _write(self, task: UnbuiltTask) -> Fields:
        install = {"python": task.python, "install": "\n".join(task.build), "test_cmd": task.test_command}
        return {
            **write_core(task),
            "environment_setup_commit": task.base_commit,
            "license_name": task.license,
            "docker_image": task.image,
            "requirements": task.lock,
            "install_config": keep_filled(install),
            "meta": keep_filled({"llm_score": task.quality_scores}),
        }


class SweRebenchV2(Format):
    """Rows of SWE-rebench V2: an installation, and the language that version 1 lacks."""

    name = "swe_rebench_v2"
    required = ("instance_id", "base_commit", "patch", "install_config", "language")

    def _read(self, fields: Fields) -> UnbuiltTask:
        install = get_table(fields, "install_config")
        return UnbuiltTask(
            format=self.name,
            language=get_text(fields, "language"),
            image=get_text(fields, "image_name"),
            build=get_commands(install, "install"),
            test_command="\n".join(get_commands(install, "test_cmd")),
            **read_core({**fields, "created_at": _to_time(fields.get("created_at"))}),
        )

    def _write(self, task: UnbuiltTask) -> Fields:
        install = {"install": list(task.build), "test_cmd": task.test_command, "log_parser": ""}
        return {
            **write_core(task),
            "created_at": _to_milliseconds(task.created_at),
            "language": task.language or "python",
            "image_name": task.image,
            "install_config": keep_filled(install),
        }


def _to_time(milliseconds: Any) -> str:
    """Return a Unix time in milliseconds as RFC 3339; a text stays as it is."""
    if milliseconds is None:
        return ""
    if isinstance(milliseconds, str):
        return milliseconds
    if isinstance(milliseconds, bool) or not isinstance(milliseconds, int | float):
        raise RecordError(f"the field 'created_at' is {milliseconds!r}, expected a Unix time in milliseconds")
    try:
        return datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat(timespec="milliseconds")
    except (OverflowError, ValueError, OSError) as error:
        raise RecordError(f"the field 'created_at' is {milliseconds}, which is no time: {error}") from error


def _to_milliseconds(time: str) -> int | str:
    """Return a time, of UTC where it names no zone, as Unix time in milliseconds; other text stays as it is."""
    try:
        moment = datetime.fromisoformat(time)
        return round((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)
    except ValueError:
        return time


_MIRROR = re.compile(r"(?:[^/]+/)?(?P<owner>[^/]+?)__(?P<name>[^/]+)\.(?P<commit>[0-9a-f]{7,40})")
_COMMIT_CHARACTERS = 8


class SweSmith(Format):
    """Rows of SWE-smith: an image, a patch, and no patch of tests, which are in the repository."""

    name = "swe_smith"
    required = ("instance_id", "patch", "repo", "image_name")

    def matches(self, fields: Fields) -> bool:
        """See `Format.matches`."""
        return super().matches(fields) and not has(fields, "test_patch")

    def _read(self, fields: Fields) -> UnbuiltTask:
        bug = get_text(fields, "patch", None)
        repo = get_text(fields, "repo", None)
        mirror = _MIRROR.fullmatch(repo)
        try:
            gold = reverse_patch(bug)
        except PatchError as error:
            raise RecordError(f"the field 'patch' cannot be reversed: {error}") from error
        return UnbuiltTask(
            id=get_text(fields, "instance_id", None),
            format=self.name,
            repository=f"{mirror['owner']}/{mirror['name']}" if mirror else repo,
            base_commit=get_text(fields, "base_commit") or (mirror["commit"] if mirror else ""),
            issue=get_text(fields, "problem_statement"),
            gold_patch=gold,
            bug_patch=bug,
            fail_to_pass=get_names(fields, "FAIL_TO_PASS"),
            pass_to_pass=get_names(fields, "PASS_TO_PASS"),
            created_at=get_text(fields, "created_at"),
            image=get_text(fields, "image_name"),
        )

    def _write(self, task: UnbuiltTask) -> Fields:
        owner, _, name = task.repository.rpartition("/")
        commit = task.base_commit[:_COMMIT_CHARACTERS]
        mirror = f"swesmith/{owner}__{name}.{commit}" if owner and commit else task.repository
        try:
            bug = task.bug_patch or reverse_patch(task.gold_patch)
        except PatchError as error:
            raise RecordError(f"swe_smith needs the reverse of the gold patch: {error}") from error
        core = write_core(task) | {"patch": bug, "repo": mirror}
        columns = ("instance_id", "patch", *_TESTS, "repo", "problem_statement")
        return {column: core[column] for column in columns} | {"image_name": task.image}

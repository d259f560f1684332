"""SWE-rebench records, version 2 (arXiv:2602.23866): twenty languages, times in milliseconds, lists of commands."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from repairgym.tasks.formats.base import (
    Fields,
    RecordError,
    get_commands,
    get_table,
    get_text,
    has,
    keep_filled,
)
from repairgym.tasks.formats.swe_bench import read_core, write_core
from repairgym.tasks.unbuilt import FormatName, UnbuiltTask


class SweRebenchV2:
    """Reads and writes rows of SWE-rebench V2."""

    name: FormatName = "swe_rebench_v2"
    is_folder = False

    def matches(self, fields: Fields) -> bool:
        """How to install, and the language that version 1 has not."""
        return has(fields, "instance_id", "base_commit", "patch", "install_config", "language")

    def read(self, fields: Fields) -> UnbuiltTask:
        """See `Format.read`."""
        install = get_table(fields, "install_config")
        return UnbuiltTask(
            format=self.name,
            language=get_text(fields, "language"),
            image=get_text(fields, "image_name"),
            build=get_commands(install, "install"),
            test_command="\n".join(get_commands(install, "test_cmd")),
            **read_core({**fields, "created_at": _to_time(fields.get("created_at"))}),
        )

    def write(self, task: UnbuiltTask) -> Fields:
        """See `Format.write`."""
        install = {"install": list(task.build), "test_cmd": task.test_command, "log_parser": ""}
        return {
            **write_core(task),
            "created_at": _to_milliseconds(task.created_at),
            "language": task.language or "python",
            "image_name": task.image,
            "install_config": keep_filled(install),
        }


def _to_time(milliseconds: Any) -> str:
    """Unix time in milliseconds as RFC 3339; a text stays as it is.

    Raises:
        RecordError: neither, or a time outside the calendar.
    """
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
    """RFC 3339 as Unix time in milliseconds; what is no time stays a text."""
    try:
        return round(datetime.fromisoformat(time).timestamp() * 1000)
    except ValueError:
        return time

"""SWE-Gym records (arXiv:2412.21139): SWE-bench rows whose test lists are lists, without a set-up commit.

SWE-bench-extra and other descendants that differ from SWE-bench by their lists only are read as this, too.
"""

from __future__ import annotations

from repairgym.tasks.formats.base import Fields, has
from repairgym.tasks.formats.swe_bench import read_core, write_core
from repairgym.tasks.unbuilt import FormatName, UnbuiltTask


class SweGym:
    """Reads and writes rows of SWE-Gym."""

    name: FormatName = "swe_gym"
    is_folder = False

    def matches(self, fields: Fields) -> bool:
        """The common fields, with lists."""
        is_list = isinstance(fields.get("FAIL_TO_PASS"), list)
        return has(fields, "instance_id", "base_commit", "patch", "test_patch") and is_list

    def read(self, fields: Fields) -> UnbuiltTask:
        """See `Format.read`."""
        return UnbuiltTask(format=self.name, **read_core(fields))

    def write(self, task: UnbuiltTask) -> Fields:
        """See `Format.write`."""
        return write_core(task)

"""SWE-rebench records, version 1 (arXiv:2505.20411): SWE-bench rows with the environment and scores of a model.

``install_config`` says how to install and test, ``requirements`` is what `pip freeze` gave, ``meta.llm_score`` holds
the scores by which paper B (section 4.1) leaves tasks out.
"""

from __future__ import annotations

from repairgym.tasks.formats.base import (
    Fields,
    get_commands,
    get_scores,
    get_table,
    get_text,
    has,
    keep_filled,
    text_or_empty,
)
from repairgym.tasks.formats.swe_bench import read_core, write_core
from repairgym.tasks.unbuilt import FormatName, UnbuiltTask


class SweRebench:
    """Reads and writes rows of SWE-rebench."""

    name: FormatName = "swe_rebench"
    is_folder = False

    def matches(self, fields: Fields) -> bool:
        """The common fields and how to install."""
        return has(fields, "instance_id", "base_commit", "patch", "test_patch", "install_config")

    def read(self, fields: Fields) -> UnbuiltTask:
        """See `Format.read`."""
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

    def write(self, task: UnbuiltTask) -> Fields:
        """See `Format.write`."""
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

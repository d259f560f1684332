"""Paper A's simplified pipeline: one report, one place, one chance, no judge.

Reads a task; makes the first observation. The (task, report, place) tuple is cached in the task, so an episode starts
where the full pipeline would have arrived (paper A, section 3; numbers in `config/pipeline`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace

from mendwright.agent.conversation import Opening
from mendwright.agent.formats.base import Action
from mendwright.config.pipeline import PipelineConfig
from mendwright.pipelines.base import Pipeline
from mendwright.records import Task
from mendwright.tools.base import ToolContext
from mendwright.tools.window import open_window


class SimplifiedPipeline(Pipeline[PipelineConfig]):
    """One attempt, which starts at the cached place."""

    def open(self, context: ToolContext) -> Opening:
        """The report and, when the place is cached, a window on it."""
        opening = super().open(context)
        place = context.task.location
        text = context.workspace.read(place.path) if place else None
        if not self.config.is_place_opened or place is None or text is None:
            return opening
        context.window = open_window(place.path, text, place.first_line, place.last_line)
        return replace(opening, text=f"{opening.text}\n{context.window.render(text)}")

    def solve(self, task: Task) -> Iterator[Action]:
        """Whole-file writes; this pipeline has no tool that deletes."""
        for path, text in task.gold_files.items():
            if text is not None:
                yield Action("write", f"{path} {json.dumps(text)}")

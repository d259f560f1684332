"""The compact pipeline of small models: one report, one place, one line per action, one attempt.

Reads a task; makes the initial prompt. The (task, report, place) tuple is cached in the task, so an episode starts at
the place that the full pipeline would have found (paper A, section 3; numbers in `config/pipeline`).
"""

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from repairgym.agent.conversation import InitialPrompt
from repairgym.agent.formats.base import Action
from repairgym.agent.pipelines.base import Pipeline
from repairgym.agent.tools.base import ToolContext
from repairgym.agent.tools.window import open_window
from repairgym.config.pipeline import PipelineConfig
from repairgym.records import Task


class CompactPipeline(Pipeline[PipelineConfig]):
    """One attempt, which starts at the cached place."""

    def initial_prompt(self, context: ToolContext, **values: Any) -> InitialPrompt:
        """Return the report and, when the place is cached, a window on it."""
        prompt = super().initial_prompt(context, **values)
        return with_place(prompt, context) if self.config.is_place_opened else prompt

    def solve(self, task: Task) -> Iterator[Action]:
        """Yield whole-file writes; this pipeline has no tool that deletes."""
        for path, text in task.gold_files.items():
            if text is not None:
                yield Action("write", f"{path} {json.dumps(text)}")


def with_place(prompt: InitialPrompt, context: ToolContext) -> InitialPrompt:
    """Return ``prompt`` with a window on the task's cached place below it, when it has one."""
    place = context.task.location
    text = context.workspace.read(place.path) if place else None
    if place is None or text is None:
        return prompt
    context.window = open_window(place.path, text, place.first_line, place.last_line)
    return replace(prompt, text=f"{prompt.text}\n{context.window.render(text)}")

"""What the layers below pipelines know of one; :class:`repairgym.agent.pipelines.base.Pipeline` fulfils it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Protocol

from repairgym.agent.formats.base import Action, ActionFormat
from repairgym.agent.tools.base import Tool, ToolContext
from repairgym.config.pipeline import PipelineConfig
from repairgym.records import Task


class Scaffold(Protocol):
    """Tools, action format, wording, and what a perfect agent would do with them."""

    @property
    def config(self) -> PipelineConfig:
        """Limits and choices."""
        ...

    @property
    def tools(self) -> Mapping[str, Tool[Any]]:
        """By the names that the agent writes."""
        ...

    @property
    def format(self) -> ActionFormat:
        """How actions are written."""
        ...

    def finish(self, context: ToolContext, text: str) -> str:
        """What the agent reads when a tool or an error says ``text``."""
        ...

    def solve(self, task: Task) -> Iterator[Action]:
        """The repair by these tools, without the action that submits."""
        ...

    def submission(self) -> Action:
        """The action that hands in what there is."""
        ...

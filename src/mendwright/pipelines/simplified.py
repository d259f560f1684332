"""Paper A's simplified pipeline: one report, one place, one chance, no judge.

Reads a task; makes the tools and the first observation. The (task, report, place) tuple is cached in the task, so an
episode starts where the full pipeline would have arrived (paper A, section 3; numbers in `config/pipeline`).
"""

from __future__ import annotations

from mendwright.config.pipeline import PipelineConfig
from mendwright.errors import ConfigError
from mendwright.records import Task
from mendwright.sandbox.cache import ExecutionCache
from mendwright.tools.base import Tool, ToolContext
from mendwright.tools.edit import EditTool, LineTool, UndoTool
from mendwright.tools.run_tests import RunTestsTool
from mendwright.tools.search import SearchTool, ViewTool
from mendwright.tools.submit import SubmitTool
from mendwright.tools.window import open_window
from mendwright.tools.write import WriteTool


def make_tools(config: PipelineConfig, cache: ExecutionCache) -> dict[str, Tool]:
    """The tools that ``config`` names.

    Raises:
        ConfigError: a name that is no tool.
    """
    known: list[Tool] = [
        EditTool(),
        LineTool(),
        UndoTool(),
        RunTestsTool(cache),
        ViewTool(),
        SearchTool(),
        WriteTool(),
        SubmitTool(),
    ]
    by_name = {tool.name: tool for tool in known}
    unknown = [name for name in config.tools if name not in by_name]
    if unknown:
        raise ConfigError(f"pipeline.tools names {unknown}; tools are {sorted(by_name)}")
    return {name: by_name[name] for name in config.tools}


def open_episode(config: PipelineConfig, task: Task, context: ToolContext) -> str:
    """The first observation: the report and, when the place is cached, a window on it."""
    place = task.location
    text = context.workspace.read(place.path) if place else None
    if not config.is_place_opened or place is None or text is None:
        return task.issue
    context.window = open_window(place.path, text, place.first_line, place.last_line)
    return f"{task.issue}\n{context.window.render(text)}"

"""The tools by the names that a pipeline's configuration uses.

Adding a tool is one file and one line here (docs/howto/pipeline.md). A key is unique; the name that the agent writes
need not be, as long as no pipeline has two tools of one name.
"""

from __future__ import annotations

from typing import Any

from mendwright.errors import ConfigError
from mendwright.tools.base import Tool, ToolServices
from mendwright.tools.edit import EditTool, LineTool, UndoTool
from mendwright.tools.edit_range import CreateTool, EditRangeTool, ReplaceTool
from mendwright.tools.navigate import GotoTool, OpenTool, ScrollDownTool, ScrollUpTool
from mendwright.tools.run_tests import RunTestsTool
from mendwright.tools.search import SearchTool, ViewTool
from mendwright.tools.search_file import SearchFileTool
from mendwright.tools.shell import ShellTool
from mendwright.tools.submit import SubmitTool
from mendwright.tools.write import WriteTool

TOOLS: dict[str, type[Tool[Any]]] = {
    "create": CreateTool,
    "edit": EditTool,
    "edit_range": EditRangeTool,
    "goto": GotoTool,
    "line": LineTool,
    "open": OpenTool,
    "replace": ReplaceTool,
    "scroll_down": ScrollDownTool,
    "scroll_up": ScrollUpTool,
    "search": SearchTool,
    "search_file": SearchFileTool,
    "shell": ShellTool,
    "submit": SubmitTool,
    "test": RunTestsTool,
    "undo": UndoTool,
    "view": ViewTool,
    "write": WriteTool,
}


def make_tools(services: ToolServices) -> dict[str, Tool[Any]]:
    """The tools of ``services.config``, by the names that the agent writes.

    Raises:
        ConfigError: a key that is no tool, or two tools of one name.
    """
    keys = services.config.tools
    unknown = [key for key in keys if key not in TOOLS]
    if unknown:
        raise ConfigError(f"pipeline.tools names {unknown}; tools are {sorted(TOOLS)}")
    tools = [TOOLS[key].create(services) for key in keys]
    by_name = {tool.name: tool for tool in tools}
    if len(by_name) < len(tools):
        raise ConfigError(f"pipeline.tools names {list(keys)}, of which two are written alike by the agent; drop one")
    return by_name

"""The tools by the names that a pipeline's configuration uses.

A new tool is a class and one line here (docs/howto/pipeline.md). A key is unique; the name that the agent writes
need not be, as long as no pipeline has two tools of one name.
"""

from typing import Any

from repairgym.agent.tools.base import Tool, ToolServices
from repairgym.agent.tools.check import RunTestsTool, SubmitTool, ValidateAndBuildTool
from repairgym.agent.tools.dependencies import DependencyUpgradeTool, RemoveDependencyTool, UpgradeBuildToolTool
from repairgym.agent.tools.edit import DeleteTool, EditTool, InsertTool, LineTool, UndoTool, WriteFileTool, WriteTool
from repairgym.agent.tools.editor import (
    CreateTool,
    EditRangeTool,
    GotoTool,
    OpenTool,
    ReplaceTool,
    ScrollDownTool,
    ScrollUpTool,
    SearchFileTool,
)
from repairgym.agent.tools.knowledge import AskForHelpTool
from repairgym.agent.tools.read import FindFilesTool, FindFilesWithTextTool, ReadFileTool, SearchTool, ViewTool
from repairgym.agent.tools.shell import RunShTool, ShellTool
from repairgym.errors import ConfigError

TOOLS: dict[str, type[Tool[Any]]] = {
    "ask_for_help": AskForHelpTool,
    "create": CreateTool,
    "dependency_upgrade": DependencyUpgradeTool,
    "edit": EditTool,
    "edit_range": EditRangeTool,
    "find_files": FindFilesTool,
    "find_files_with_text": FindFilesWithTextTool,
    "goto": GotoTool,
    "line": LineTool,
    "insert": InsertTool,
    "delete": DeleteTool,
    "open": OpenTool,
    "read_file": ReadFileTool,
    "remove_dependency": RemoveDependencyTool,
    "replace": ReplaceTool,
    "run_sh": RunShTool,
    "scroll_down": ScrollDownTool,
    "scroll_up": ScrollUpTool,
    "search": SearchTool,
    "search_file": SearchFileTool,
    "shell": ShellTool,
    "submit": SubmitTool,
    "test": RunTestsTool,
    "undo": UndoTool,
    "upgrade_build_tool": UpgradeBuildToolTool,
    "validate_and_build": ValidateAndBuildTool,
    "view": ViewTool,
    "write": WriteTool,
    "write_file": WriteFileTool,
}


def make_tools(services: ToolServices) -> dict[str, Tool[Any]]:
    """Return the tools of a pipeline by the names that the agent writes; `ConfigError` if unknown or written alike."""
    keys = services.config.tools
    unknown = [key for key in keys if key not in TOOLS]
    if unknown:
        raise ConfigError(f"pipeline.tools names {unknown}; tools are {sorted(TOOLS)}")
    tools = [TOOLS[key](services) for key in keys]
    by_name = {tool.name: tool for tool in tools}
    if len(by_name) < len(tools):
        raise ConfigError(f"pipeline.tools names {list(keys)}, of which two are written alike by the agent; drop one")
    return by_name

"""The ``remove_dependency`` tool of paper A (appendix A.2): take a requirement out of a given configuration file."""

from __future__ import annotations

from packaging.utils import canonicalize_name
from pydantic import Field

from repairgym.agent.tools.base import Observation, Tool, ToolContext, tool_error
from repairgym.agent.tools.dependency_upgrade import not_declared
from repairgym.agent.tools.requirements import find_declared, without
from repairgym.records import Record


class RemoveDependencyArguments(Record):
    """What ``remove_dependency`` takes."""

    name: str
    path: str = Field(description="the settings file that declares it")


class RemoveDependencyTool(Tool[RemoveDependencyArguments]):
    """``remove_dependency``: delete a requirement."""

    name = "remove_dependency"
    usage = "remove_dependency NAME PATH - take dependency NAME out of the settings file PATH"
    arguments_type = RemoveDependencyArguments

    async def run(self, context: ToolContext, arguments: RemoveDependencyArguments) -> Observation:
        """Remove every requirement of that name from the file."""
        path = arguments.path.removeprefix("./")
        text = context.workspace.read(path)
        if text is None:
            return tool_error(f"{path} cannot be read; find_files lists the files")
        wanted = canonicalize_name(arguments.name)
        found = [one for one in find_declared(path, text) if one.name == wanted]
        if not found:
            return tool_error(not_declared(context.workspace, arguments.name, path))
        if any(one.is_hashed for one in found):
            return tool_error(f"{path} is a lock with hashes; only a resolver can change it")
        for one in reversed(found):
            text = without(text, one)
        await context.workspace.write(path, text)
        return Observation(
            text="\n".join(f"{path}: removed {one.text} from {one.place or 'the file'}" for one in found)
        )

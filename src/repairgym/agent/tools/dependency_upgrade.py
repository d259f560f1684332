"""The ``dependency_upgrade`` tool of paper A (appendix A.2): ask for a version of a dependency that there is.

Reads the settings files of the repository and the task's lock; changes requirements where they are declared. Invariant:
what it writes can be satisfied by the pinned environment, which is all that a build in the sandbox can have: automatic
updates are off (paper A, section on stability) and there is no network.
"""

from __future__ import annotations

from collections.abc import Mapping

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version
from pydantic import Field

from repairgym.agent.tools.base import Observation, Tool, ToolContext, tool_error
from repairgym.agent.tools.requirements import Declared, find_declared, is_settings_file, with_specifier
from repairgym.agent.tools.workspace import Workspace
from repairgym.records import Record
from repairgym.tasks.layers.requirement_pins import pinned_versions

MAX_NAMES = 30


class DependencyUpgradeArguments(Record):
    """What ``dependency_upgrade`` takes."""

    name: str
    version: str = Field(
        default="", description="a version (2.1) or a specifier (>=2,<3); empty: the version that is installed"
    )
    path: str = Field(default="", description="only in this file; empty: wherever it is declared")


class DependencyUpgradeTool(Tool[DependencyUpgradeArguments]):
    """``dependency_upgrade``: change the version that is asked for."""

    name = "dependency_upgrade"
    usage = (
        "dependency_upgrade NAME [VERSION] [PATH] - ask for VERSION (2.1 or '>=2,<3'; default: the one that is "
        "installed) of a declared dependency"
    )
    arguments_type = DependencyUpgradeArguments

    async def run(self, context: ToolContext, arguments: DependencyUpgradeArguments) -> Observation:
        """Write the new specifier over each requirement of that name."""
        name = canonicalize_name(arguments.name)
        found = [one for one in declared_requirements(context.workspace, arguments.path) if one.name == name]
        if not found:
            return tool_error(not_declared(context.workspace, arguments.name, arguments.path))
        specifier = available_specifier(context, name, arguments.version)
        if isinstance(specifier, Observation):
            return specifier
        if any(one.is_hashed for one in found):
            return tool_error(f"{found[0].path} is a lock with hashes; only a resolver with a network can change it")
        return await change_requirements(context, found, specifier)


def declared_requirements(workspace: Workspace, path: str = "") -> list[Declared]:
    """Requirements of ``path`` (default: of every settings file)."""
    paths = [path.removeprefix("./")] if path else [one for one in workspace.paths("*") if is_settings_file(one)]
    return [declared for one in paths for declared in find_declared(one, workspace.read(one) or "")]


def not_declared(workspace: Workspace, name: str, path: str) -> str:
    """What to answer to the name of something that no file declares."""
    names = sorted({one.name for one in declared_requirements(workspace, path)})
    told = ", ".join(names[:MAX_NAMES]) or "nothing"
    return f"{name} is not declared in {path or 'any settings file'}; declared: {told}"


def available_specifier(context: ToolContext, name: str, wanted: str) -> str | Observation:
    """The specifier to write for ``wanted``, or the error that nothing in the task's environment satisfies it."""
    pins = pinned_versions(context.task.environment.lock)
    if name not in pins:
        return tool_error(
            f"{name} is not in the task's wheelhouse, which is all that can be installed here: {_listed(pins)}"
        )
    try:
        specifier = f">={Version(wanted)}" if wanted and wanted[0].isdigit() else wanted or f">={pins[name]}"
        is_met = SpecifierSet(specifier).contains(pins[name], prereleases=True)
    except (InvalidVersion, InvalidSpecifier):
        return tool_error(f"got version {wanted!r}, expected a version (2.1) or a specifier ('>=2,<3')")
    if not is_met:
        return tool_error(f"{name} {wanted} is not in the task's wheelhouse; it has {name} {pins[name]} and no other")
    return specifier


def _listed(pins: Mapping[str, Version]) -> str:
    return ", ".join(f"{name} {version}" for name, version in sorted(pins.items()))


async def change_requirements(context: ToolContext, declared: list[Declared], specifier: str) -> Observation:
    """Write ``specifier`` over every one of ``declared``; says what changed, line by line."""
    told: list[str] = []
    for path in dict.fromkeys(one.path for one in declared):
        text = context.workspace.read(path) or ""
        for one in reversed([one for one in declared if one.path == path]):
            new = with_specifier(text, one, specifier)
            told.append(f"{path}: {one.place} {one.text} -> {new[one.start : one.end + len(new) - len(text)]}")
            text = new
        await context.workspace.write(path, text)
    return Observation(text="\n".join(told))

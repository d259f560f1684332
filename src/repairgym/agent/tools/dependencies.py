"""Tools that change declared dependencies: ``dependency_upgrade``, ``remove_dependency`` and ``upgrade_build_tool``.

Paper A (appendix A.2) has the first two and ``upgrade_gradle``, which is here for the build tools of any project:
``[build-system]`` of ``pyproject.toml`` and the wrappers of Gradle and Maven. Reads the settings files of the
repository and the task's lock; changes requirements where they are declared. Guarantee for Python: the pinned
environment satisfies every written requirement, because a build in the sandbox has nothing else: automatic updates are
off (paper A, section on stability) and there is no network. Files of other ecosystems are recognized by their names
(`manifests`); there a lock next to them has to follow offline. A wrapper's version is written as given, because nothing
says which there are; a checksum of the old distribution is an error.
"""

import re

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version
from pydantic import Field

from repairgym.agent.tools.base import Observation, Tool, ToolContext, tool_error
from repairgym.agent.tools.manifests.changes import entries_named, manifest_entries, remove_entries, upgrade_entries
from repairgym.agent.tools.requirements import (
    BUILD_REQUIREMENTS,
    Declared,
    find_declared,
    is_settings_file,
    with_added,
    with_specifier,
    without,
)
from repairgym.agent.tools.workspace import Workspace
from repairgym.records import Record
from repairgym.tasks.layers.requirement_pins import pinned_versions
from repairgym.tasks.mutation.settings_operators import parse_entries

MAX_NAMES = 30


class DependencyUpgradeArguments(Record):
    """Arguments of ``dependency_upgrade``."""

    name: str
    version: str = Field(
        default="", description="a version (2.1) or a specifier (>=2,<3); empty: the version that is installed"
    )
    path: str = Field(default="", description="only in this file; empty: wherever it is declared")


class DependencyUpgradeTool(Tool[DependencyUpgradeArguments]):
    """``dependency_upgrade``: change the required version."""

    name = "dependency_upgrade"
    usage = (
        "dependency_upgrade NAME [VERSION] [PATH] - ask for VERSION (2.1 or '>=2,<3'; default: the one that is "
        "installed) of a declared dependency"
    )

    async def run(self, context: ToolContext, arguments: DependencyUpgradeArguments) -> Observation:
        """Write the new specifier over each requirement of that name."""
        name = canonicalize_name(arguments.name)
        declared = [entry for entry in declared_requirements(context.workspace, arguments.path) if entry.name == name]
        if not declared:
            entries, errors = entries_named(context.workspace, arguments.name, arguments.path)
            if entries:
                return await upgrade_entries(context, entries, arguments.version)
            return tool_error("; ".join(errors) or not_declared(context.workspace, arguments.name, arguments.path))
        specifier = available_specifier(context, name, arguments.version)
        if isinstance(specifier, Observation):
            return specifier
        if any(entry.is_hashed for entry in declared):
            return tool_error(f"{declared[0].path} is a lock with hashes; only a resolver with a network can change it")
        return await change_requirements(context, declared, specifier)


def declared_requirements(workspace: Workspace, path: str = "") -> list[Declared]:
    """Return the requirements of ``path`` (default: of every settings file)."""
    paths = [path.removeprefix("./")] if path else list(filter(is_settings_file, workspace.paths("*")))
    return [declared for name in paths for declared in find_declared(name, workspace.read(name) or "")]


def not_declared(workspace: Workspace, name: str, path: str) -> str:
    """Return the error for a name that no file declares."""
    others, _ = manifest_entries(workspace, path)
    names = sorted({e.name for e in declared_requirements(workspace, path)} | {e.name for e in others})
    shown = ", ".join(names[:MAX_NAMES]) or "nothing"
    return f"{name} is not declared in {path or 'any settings file'}; declared: {shown}"


def available_specifier(context: ToolContext, name: str, wanted: str) -> str | Observation:
    """Return the specifier for ``wanted``, or the error that nothing in the task's environment satisfies it."""
    pins = pinned_versions(context.task.environment.lock)
    if name not in pins:
        listed = ", ".join(f"{pin} {version}" for pin, version in sorted(pins.items()))
        return tool_error(f"{name} is not in the task's wheelhouse, which is all that can be installed here: {listed}")
    try:
        specifier = f">={Version(wanted)}" if wanted and wanted[0].isdigit() else wanted or f">={pins[name]}"
        is_met = SpecifierSet(specifier).contains(pins[name], prereleases=True)
    except (InvalidVersion, InvalidSpecifier):
        return tool_error(f"got version {wanted!r}, expected a version (2.1) or a specifier ('>=2,<3')")
    if not is_met:
        return tool_error(f"{name} {wanted} is not in the task's wheelhouse; it has {name} {pins[name]} and no other")
    return specifier


async def change_requirements(context: ToolContext, declared: list[Declared], specifier: str) -> Observation:
    """Write ``specifier`` over every entry of ``declared``; list the changes, line by line."""
    lines: list[str] = []
    for path in dict.fromkeys(entry.path for entry in declared):
        text = context.workspace.read(path) or ""
        for entry in reversed([entry for entry in declared if entry.path == path]):
            new = with_specifier(text, entry, specifier)
            written = new[entry.start : entry.end + len(new) - len(text)]
            lines.append(f"{path}: {entry.place} {entry.text} -> {written}")
            text = new
        await context.workspace.write(path, text)
    return Observation(text="\n".join(lines))


class RemoveDependencyArguments(Record):
    """Arguments of ``remove_dependency``."""

    name: str
    path: str = Field(description="the settings file that declares it")


class RemoveDependencyTool(Tool[RemoveDependencyArguments]):
    """``remove_dependency``: delete a requirement."""

    name = "remove_dependency"
    usage = "remove_dependency NAME PATH - take dependency NAME out of the settings file PATH"

    async def run(self, context: ToolContext, arguments: RemoveDependencyArguments) -> Observation:
        """Remove every requirement of that name from the file."""
        path = arguments.path.removeprefix("./")
        text = context.workspace.read(path)
        if text is None:
            return tool_error(f"{path} cannot be read; find_files lists the files")
        wanted = canonicalize_name(arguments.name)
        declared = [entry for entry in find_declared(path, text) if entry.name == wanted]
        if not declared:
            entries, errors = entries_named(context.workspace, arguments.name, path)
            if entries:
                return await remove_entries(context, entries)
            return tool_error("; ".join(errors) or not_declared(context.workspace, arguments.name, path))
        if any(entry.is_hashed for entry in declared):
            return tool_error(f"{path} is a lock with hashes; only a resolver can change it")
        for entry in reversed(declared):
            text = without(text, entry)
        await context.workspace.write(path, text)
        return Observation(
            text="\n".join(f"{path}: removed {entry.text} from {entry.place or 'the file'}" for entry in declared)
        )


SETTINGS = "pyproject.toml"
BACKENDS = {
    "setuptools": ("setuptools.build_meta", "setuptools.build_meta:__legacy__"),
    "hatchling": ("hatchling.build",),
    "flit-core": ("flit_core.buildapi",),
    "poetry-core": ("poetry.core.masonry.api",),
    "pdm-backend": ("pdm.backend",),
}
"""Build requirement -> import names of its back end, as its documentation gives them; the first is written."""
_WRAPPERS = {
    "gradle": (
        "gradle/wrapper/gradle-wrapper.properties",
        re.compile(r"distributionUrl=.*/gradle-([\w.-]+?)-(?:bin|all)\."),
    ),
    "maven": (
        ".mvn/wrapper/maven-wrapper.properties",
        re.compile(r"distributionUrl=.*/(?:apache-maven|maven-mvnd)-([\w.-]+?)(?:-bin|-src|-linux\S*)?\.(?:zip|tar)"),
    ),
}
_VERSION = {
    "gradle": re.compile(r"\d+\.\d+(\.\d+)?(-rc-\d+|-milestone-\d+)?"),
    "maven": re.compile(r"\d+\.\d+\.\d+(-\w+-\d+)?"),
}
"""Forms of released versions; a distribution of another name does not exist."""
_FIRST_FOR_JAVA = ((8, "2.0"), (11, "5.0"), (17, "7.3"), (21, "8.5"), (25, "9.1"))
"""First Gradle that runs on a Java with long support, from Gradle's compatibility matrix."""


class UpgradeBuildToolArguments(Record):
    """Arguments of ``upgrade_build_tool``."""

    name: str = Field(description="setuptools, hatchling, any other build requirement; gradle, maven")
    version: str = Field(default="", description="empty: the version that is installed")


class UpgradeBuildToolTool(Tool[UpgradeBuildToolArguments]):
    """``upgrade_build_tool``: change the build tool of the project to an available version."""

    name = "upgrade_build_tool"
    usage = (
        "upgrade_build_tool NAME [VERSION] - build with NAME (setuptools, hatchling, gradle ...) in VERSION; adds a "
        "build requirement that is missing and corrects the build back end"
    )

    async def run(self, context: ToolContext, arguments: UpgradeBuildToolArguments) -> Observation:
        """Change the build requirement, or the version of a wrapper."""
        if arguments.name in _WRAPPERS:
            return await _upgrade_wrapper(context, arguments.name, arguments.version)
        name = canonicalize_name(arguments.name)
        text = context.workspace.read(SETTINGS)
        if text is None:
            return tool_error(f"there is no {SETTINGS} that could declare a build tool; write_file makes one")
        specifier = available_specifier(context, name, arguments.version)
        if isinstance(specifier, Observation):
            return specifier
        entries = [entry for entry in find_declared(SETTINGS, text) if entry.name == name]
        declared = [entry for entry in entries if entry.place == BUILD_REQUIREMENTS]
        if declared:
            change = (await change_requirements(context, declared, specifier)).text
        else:
            added = with_added(text, "build-system", "requires", name + specifier)
            if added is None:
                return tool_error(f"{SETTINGS} has no list `requires` under [build-system]; write_file makes one")
            await context.workspace.write(SETTINGS, added)
            change = f"{SETTINGS}: {BUILD_REQUIREMENTS} + {name}{specifier}"
        return Observation(text="\n".join(filter(None, [change, await _correct_backend(context, name)])))


async def _correct_backend(context: ToolContext, name: str) -> str:
    """Make ``build-backend`` one of ``name``'s when ``name`` is a back end and the key is there; return the change."""
    text = context.workspace.read(SETTINGS) or ""
    wanted = BACKENDS.get(name, ())
    entries = [
        entry for entry in parse_entries(text) if (entry.section, entry.key) == ("build-system", "build-backend")
    ]
    if not wanted or not entries:
        return ""
    lines = text.splitlines(keepends=True)
    old = entries[0].value.strip()
    if old.strip("\"'") in wanted:
        return ""
    lines[entries[0].first : entries[0].end] = [f'build-backend = "{wanted[0]}"\n']
    await context.workspace.write(SETTINGS, "".join(lines))
    return f'{SETTINGS}: build-backend {old} -> "{wanted[0]}"'


async def _upgrade_wrapper(context: ToolContext, name: str, version: str) -> Observation:
    path, pattern = _WRAPPERS[name]
    text = context.workspace.read(path)
    match = pattern.search(text or "")
    if text is None or match is None:
        return tool_error(f"no {name} wrapper declares a version: {path} has no distributionUrl of one")
    if not version:
        return Observation(text=f"{_needs(name, match[1])}{path}: {name} {match[1]}")
    if not _VERSION[name].fullmatch(version):
        return tool_error(f"got version {version!r}, expected one such as {'8.5' if name == 'gradle' else '3.9.6'}")
    if "distributionSha256Sum" in text and version != match[1]:
        return tool_error(
            f"{path} has the distributionSha256Sum of {name} {match[1]}, and that of {version} is not known here; "
            "take the line out with an edit first, or keep the version"
        )
    # The version is in the folder of Maven's address, too.
    address = match.group().replace(match[1], version)
    await context.workspace.write(path, text[: match.start()] + address + text[match.end() :])
    return Observation(text=f"{_needs(name, version)}{path}: {name} {match[1]} -> {version}")


def _needs(name: str, version: str) -> str:
    """Return a line with the newest Java with long support that runs a version of Gradle."""
    if name != "gradle" or not version[0].isdigit():
        return ""
    runs = [java for java, first in _FIRST_FOR_JAVA if Version(first) <= Version(re.split("-", version)[0])]
    return f"gradle {version} runs on Java {max(runs)} and older\n" if runs else ""

"""The ``upgrade_build_tool`` tool: paper A's ``upgrade_gradle`` (appendix A.2) for the build tools of any project.

Reads and changes where a project declares what builds it: ``[build-system]`` of ``pyproject.toml`` and the wrappers of
Gradle and Maven. Invariants: a Python build requirement is one that the pinned environment has; a wrapper's version is
written as it is given, because no wheelhouse says what there is.
"""

from __future__ import annotations

import re

from packaging.utils import canonicalize_name
from pydantic import Field

from repairgym.agent.tools.base import Observation, Tool, ToolContext, tool_error
from repairgym.agent.tools.dependency_upgrade import available_specifier, change_requirements
from repairgym.agent.tools.requirements import BUILD_REQUIREMENTS, find_declared, with_added
from repairgym.records import Record
from repairgym.tasks.mutation.settings_operators import parse_entries

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
    "gradle": ("gradle/wrapper/gradle-wrapper.properties", re.compile(r"(distributionUrl=.*/gradle-)([\d.]+)(-)")),
    "maven": (".mvn/wrapper/maven-wrapper.properties", re.compile(r"(distributionUrl=.*/apache-maven-)([\d.]+)(-)")),
}


class UpgradeBuildToolArguments(Record):
    """What ``upgrade_build_tool`` takes."""

    name: str = Field(description="setuptools, hatchling, any other build requirement; gradle, maven")
    version: str = Field(default="", description="empty: the version that is installed")


class UpgradeBuildToolTool(Tool[UpgradeBuildToolArguments]):
    """``upgrade_build_tool``: what builds the project, in a version that there is."""

    name = "upgrade_build_tool"
    usage = (
        "upgrade_build_tool NAME [VERSION] - build with NAME (setuptools, hatchling, gradle ...) in VERSION; adds a "
        "build requirement that is missing and corrects the build back end"
    )
    arguments_type = UpgradeBuildToolArguments

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
        found = [one for one in find_declared(SETTINGS, text) if one.name == name and one.place == BUILD_REQUIREMENTS]
        if found:
            told = (await change_requirements(context, found, specifier)).text
        else:
            added = with_added(text, "build-system", "requires", name + specifier)
            if added is None:
                return tool_error(f"{SETTINGS} has no list `requires` under [build-system]; write_file makes one")
            await context.workspace.write(SETTINGS, added)
            told = f"{SETTINGS}: {BUILD_REQUIREMENTS} + {name}{specifier}"
        return Observation(text="\n".join(filter(None, [told, await _correct_backend(context, name)])))


async def _correct_backend(context: ToolContext, name: str) -> str:
    """Make ``build-backend`` one of ``name``'s when ``name`` is a back end and the key is there; says what changed."""
    text = context.workspace.read(SETTINGS) or ""
    wanted = BACKENDS.get(name, ())
    entries = [one for one in parse_entries(text) if (one.section, one.key) == ("build-system", "build-backend")]
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
    if not re.fullmatch(r"\d+(\.\d+)*", version):
        return tool_error(f"got version {version!r}, expected one such as 8.5")
    await context.workspace.write(path, f"{text[: match.start(2)]}{version}{text[match.end(2) :]}")
    return Observation(text=f"{path}: {name} {match[2]} -> {version}")

"""dependency_upgrade, remove_dependency, upgrade_build_tool: within the task's pins, and clear about what they lack."""

import tomllib

import pytest

from repairgym.agent.tools.base import ToolContext, ToolServices
from repairgym.agent.tools.dependencies import DependencyUpgradeTool, RemoveDependencyTool, UpgradeBuildToolTool
from repairgym.agent.tools.workspace import Workspace
from repairgym.config.pipeline import PipelineConfig
from repairgym.errors import SandboxError
from repairgym.sandbox.cache import ExecutionCache

SERVICES = ToolServices(PipelineConfig(), ExecutionCache())
LOCK = "hatchling==1.33.0 \\\n    --hash=sha256:aa\nsetuptools==84.2.1\ncolorama==0.4 ; sys_platform == 'win32' \\\n"
PYPROJECT = """\
[build-system]
requires = ["setuptools>=999"]
build-backend = "setuptools.build_meat"
[project]
name = "x"
dependencies = ["Hatchling<1", "other"]
"""
GRADLE = "gradle/wrapper/gradle-wrapper.properties"


async def no_sandbox(files):
    raise SandboxError("no sandbox in this test")


@pytest.fixture
def context(task, tmp_path):
    (tmp_path / "pyproject.toml").write_text(PYPROJECT)
    (tmp_path / "requirements.txt").write_text("hatchling==1.0\nlocked==2 \\\n   --hash=sha256:aa\n")
    (tmp_path / "gradle" / "wrapper").mkdir(parents=True)
    (tmp_path / GRADLE).write_text("distributionUrl=https\\://services.gradle.org/distributions/gradle-6.9-bin.zip\n")
    pinned = task.model_copy(update={"environment": task.environment.model_copy(update={"lock": LOCK})})
    return ToolContext(task=pinned, workspace=Workspace(tmp_path, pinned.base_files, no_sandbox))


async def call(tool, context, **values):
    return await tool.run(context, tool.check(values))


def settings(context):
    return tomllib.loads(context.workspace.read("pyproject.toml"))


@pytest.mark.asyncio
async def test_an_upgrade_goes_wherever_it_is_declared(context):
    seen = await call(DependencyUpgradeTool(SERVICES), context, name="hatchling")
    assert seen.error == ""
    assert settings(context)["project"]["dependencies"] == ["Hatchling>=1.33.0", "other"]
    assert context.workspace.read("requirements.txt").startswith("hatchling>=1.33.0\n")
    assert "pyproject.toml: [project] dependencies Hatchling<1 -> Hatchling>=1.33.0" in seen.text


@pytest.mark.asyncio
async def test_an_upgrade_of_one_file_to_a_given_specifier(context):
    await call(DependencyUpgradeTool(SERVICES), context, name="hatchling", version="==1.33.0", path="requirements.txt")
    assert list(context.workspace.changes) == ["requirements.txt"]


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("values", "told"),
    [
        (
            {"name": "hatchling", "version": "2.0"},
            "hatchling 2.0 is not in the task's wheelhouse; it has hatchling 1.33.0",
        ),
        ({"name": "other"}, "other is not in the task's wheelhouse"),
        (
            {"name": "absent"},
            "absent is not declared in any settings file; declared: hatchling, locked, other, setuptools",
        ),
        ({"name": "hatchling", "version": "new"}, "got version 'new', expected a version"),
        ({"name": "hatchling", "path": "m.py"}, "is not declared in m.py; declared: nothing"),
    ],
)
async def test_an_unavailable_version_is_a_clear_error(context, values, told):
    seen = await call(DependencyUpgradeTool(SERVICES), context, **values)
    assert seen.error == "tool"
    assert told in seen.text
    assert context.workspace.changes == {}


@pytest.mark.asyncio
async def test_a_lock_with_hashes_is_left_alone(context):
    context.task = context.task.model_copy(
        update={"environment": context.task.environment.model_copy(update={"lock": "locked==2"})}
    )
    for tool, values in (
        (DependencyUpgradeTool(SERVICES), {}),
        (RemoveDependencyTool(SERVICES), {"path": "requirements.txt"}),
    ):
        seen = await call(tool, context, name="locked", **values)
        assert "lock with hashes" in seen.text


@pytest.mark.asyncio
async def test_a_dependency_is_removed_from_the_given_file_only(context):
    seen = await call(RemoveDependencyTool(SERVICES), context, name="HATCHLING", path="pyproject.toml")
    assert settings(context)["project"]["dependencies"] == ["other"]
    assert list(context.workspace.changes) == ["pyproject.toml"]
    assert seen.text == "pyproject.toml: removed Hatchling<1 from [project] dependencies"
    again = await call(RemoveDependencyTool(SERVICES), context, name="hatchling", path="pyproject.toml")
    assert again.error == "tool"
    missing = await call(RemoveDependencyTool(SERVICES), context, name="hatchling", path="setup.cfg")
    assert missing.error == "tool"


@pytest.mark.asyncio
async def test_the_build_tool_is_available_and_its_back_end_is_corrected(context):
    seen = await call(UpgradeBuildToolTool(SERVICES), context, name="setuptools")
    assert settings(context)["build-system"] == {
        "requires": ["setuptools>=84.2.1"],
        "build-backend": "setuptools.build_meta",
    }
    assert len(seen.text.splitlines()) == 2
    await call(UpgradeBuildToolTool(SERVICES), context, name="hatchling")
    assert settings(context)["build-system"] == {
        "requires": ["hatchling>=1.33.0", "setuptools>=84.2.1"],
        "build-backend": "hatchling.build",
    }
    assert (await call(UpgradeBuildToolTool(SERVICES), context, name="flit-core")).error == "tool"


@pytest.mark.asyncio
async def test_a_gradle_wrapper_is_upgraded(context):
    seen = await call(UpgradeBuildToolTool(SERVICES), context, name="gradle", version="8.5")
    assert seen.text.endswith("gradle 6.9 -> 8.5")
    assert "gradle-8.5-bin.zip" in context.workspace.read(GRADLE)
    assert (await call(UpgradeBuildToolTool(SERVICES), context, name="gradle", version="newest")).error == "tool"
    assert (await call(UpgradeBuildToolTool(SERVICES), context, name="maven", version="3.9")).error == "tool"

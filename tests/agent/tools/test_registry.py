"""Paper A's tools that look, write, run and build: what agents read, and what they get for mistakes."""

import asyncio
import json

import pytest

from repairgym.agent.tools.base import ToolContext, ToolServices, UsageError
from repairgym.agent.tools.check import RunTestsTool, ValidateAndBuildTool
from repairgym.agent.tools.edit import WriteFileTool
from repairgym.agent.tools.knowledge import AskForHelpTool, KnowledgeBase, described_fixes, make_fix
from repairgym.agent.tools.read import MAX_FILES, FindFilesTool, FindFilesWithTextTool, ReadFileTool
from repairgym.agent.tools.registry import make_tools
from repairgym.agent.tools.shell import RunShTool
from repairgym.agent.tools.workspace import Workspace
from repairgym.config.pipeline import KnowledgeConfig, PipelineConfig, SimplifiedConfig
from repairgym.errors import ConfigError, SandboxError, TaskError
from repairgym.records import BuildStep, MainError
from repairgym.sandbox.base import SandboxSpec
from repairgym.sandbox.cache import ExecutionCache
from repairgym.sandbox.lease import LeasedBackend
from repairgym.testing.scripted import ScriptedBackend, ScriptedSandbox, scripted_answer


def services(**values) -> ToolServices:
    return ToolServices(PipelineConfig(**values), ExecutionCache())


SERVICES = services()
FIXED = "def f(a, b):\n    return a <= b\n"


@pytest.fixture
def backend():
    return ScriptedBackend(scripted_answer("assert 3 == 4"))


@pytest.fixture
def context(task, tmp_path, backend):
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "a.md").write_text("one\ntwo words\n")
    (tmp_path / "pyproject.toml").write_text("[project]\nname = 'two'\n")
    (tmp_path / "logo.png").write_bytes(b"\xff\x00two")

    async def create(files):
        return await backend.create(SandboxSpec(environment=tmp_path, tree=tmp_path, files=files))

    return ToolContext(task=task, workspace=Workspace(tmp_path, task.base_files, create))


async def call(tool, context, **values):
    return await tool.run(context, tool.check(values))


@pytest.mark.asyncio
async def test_files_are_found_by_name_and_by_text(context):
    assert (await call(FindFilesTool(SERVICES), context, pattern="*.md")).text == "found 1\ndocs/a.md"
    assert (await call(FindFilesTool(SERVICES), context, pattern="*", folder="docs/")).text == "found 1\ndocs/a.md"
    assert (await call(FindFilesTool(SERVICES), context, pattern="docs/*")).text == "found 1\ndocs/a.md"
    found = (await call(FindFilesWithTextTool(SERVICES), context, text="two")).text
    assert found.splitlines() == ["found 2", "docs/a.md:2 two words", "pyproject.toml:2 name = 'two'"]
    assert (await call(FindFilesWithTextTool(SERVICES), context, text="two", pattern="*.md")).text.startswith(
        "found 1\n"
    )
    assert (await call(FindFilesWithTextTool(SERVICES), context, text="")).error == "tool"


@pytest.mark.asyncio
async def test_long_lists_are_cut_with_a_note(context):
    for number in range(MAX_FILES + 5):
        await context.workspace.write(f"new/{number}.txt", "x\n")
    text = (await call(FindFilesTool(SERVICES), context, pattern="*.txt")).text
    assert text.startswith(f"found {MAX_FILES + 5}\n")
    assert text.endswith("\n... and 5 more")


@pytest.mark.asyncio
async def test_files_are_read_as_they_are_and_written_files_are_read_back(context):
    assert (await call(ReadFileTool(SERVICES), context, path="./docs/a.md")).text == "one\ntwo words\n"
    assert (
        await call(ReadFileTool(SERVICES), context, path="docs/a.md", first_line=2, last_line=9)
    ).text == "two words\n"
    for values in ({"path": "absent"}, {"path": "docs/a.md", "first_line": 9}, {"path": "logo.png"}, {"path": "../x"}):
        assert (await call(ReadFileTool(SERVICES), context, **values)).error == "tool"
    seen = await call(WriteFileTool(SERVICES), context, path="docs/a.md", content="new\n")
    assert seen.text == "wrote 1 lines to docs/a.md"
    assert context.workspace.changes == {"docs/a.md": "new\n"}
    with pytest.raises(PermissionError):
        await call(WriteFileTool(SERVICES), context, path="../x", content="")


def test_text_formats_give_the_content_as_a_json_string():
    tool = WriteFileTool(SERVICES)
    assert tool.read('m.py "a\\nb"').content == "a\nb"
    for text in ("m.py a b", "m.py", 'm.py ["a"]'):
        with pytest.raises(UsageError):
            tool.read(text)


@pytest.mark.asyncio
async def test_a_command_has_an_exit_status(context):
    tool = RunShTool(SERVICES)
    assert (await call(tool, context, command="true")).text == "exit status 0"
    assert (await call(tool, context, command="false")).text == "exit status 1"


@pytest.mark.asyncio
async def test_the_build_names_its_main_error_and_a_pass_ends_the_attempt(context, backend):
    tool = ValidateAndBuildTool(services())
    failed = await call(tool, context)
    assert failed.text.splitlines() == [
        "build passed (nothing to build), tests failed 1 of 1",
        "main error: test error: test_m.py::test_f: assert 3 == 4",
    ]
    assert not failed.is_final
    await call(tool, context)
    assert len(backend.sandboxes) == 1, "equal states share one run"
    await context.workspace.write("m.py", FIXED)
    passed = await call(tool, context)
    assert (passed.text, passed.is_final) == ("build passed (nothing to build), tests passed 1", True)
    assert all(sandbox.is_closed for sandbox in backend.sandboxes)


@pytest.mark.asyncio
@pytest.mark.parametrize("tool_type", [RunTestsTool, ValidateAndBuildTool])
async def test_an_episode_that_waits_for_a_place_holds_up_none_that_has_one(task, tmp_path, tool_type):
    backend, tool = LeasedBackend(ScriptedBackend(scripted_answer()), 1), tool_type(services())
    has_place = asyncio.Event()

    async def play(is_first: bool) -> str:
        async def create(files):
            return await backend.create(SandboxSpec(environment=tmp_path, tree=tmp_path, files=files))

        workspace = Workspace(tmp_path, task.base_files, create)
        with backend.sharing():
            if is_first:
                await workspace.sandbox()
                has_place.set()
                await asyncio.sleep(0.01)  # the other one has called the tool
            else:
                await has_place.wait()
            seen = await call(tool, ToolContext(task=task, workspace=workspace))
            await workspace.close()
        return seen.text

    async with asyncio.timeout(20.0):
        first, second = await asyncio.gather(play(True), play(False))
    assert first == second


@pytest.mark.asyncio
async def test_a_build_that_passes_before_any_change_ends_nothing(context):
    tool = ValidateAndBuildTool(services())
    context.workspace = Workspace(context.workspace._tree, {"m.py": FIXED}, context.workspace._create_sandbox)
    seen = await call(tool, context)
    assert (seen.text.startswith("build passed"), seen.is_final) == (True, False)


@pytest.mark.asyncio
async def test_the_step_that_fails_is_named(context):
    step = BuildStep(kind="install", command=("false", "ERROR: No matching distribution found for x>=999"))
    context.task = context.task.model_copy(update={"build": (step,)})
    seen = await call(ValidateAndBuildTool(services()), context)
    assert seen.text.splitlines()[:2] == [
        "build failed at install",
        "main error: dependency error: No matching distribution found for x>=999",
    ]


@pytest.mark.asyncio
@pytest.mark.parametrize("is_start_slow", [False, True])
async def test_a_build_that_takes_too_long_is_a_tooltimeout_and_a_slow_start_is_none(task, tmp_path, is_start_slow):
    class SlowSandbox(ScriptedSandbox):
        async def run_tests(self, request):
            await asyncio.sleep(0.0 if is_start_slow else 60.0)
            return await super().run_tests(request)

    async def create(files):
        await asyncio.sleep(0.5 if is_start_slow else 0.0)
        return SlowSandbox(files, scripted_answer())

    context = ToolContext(task=task, workspace=Workspace(tmp_path, task.base_files, create))
    seen = await call(ValidateAndBuildTool(services(command_timeout_s=0.2)), context)
    assert seen.error == ("" if is_start_slow else "tool")
    assert seen.text.startswith("error: tooltimeout: ") is not is_start_slow
    assert (context.workspace.wait_s >= 0.5) is is_start_slow


@pytest.mark.asyncio
async def test_a_failed_shared_run_leaves_no_episode_waiting_for_a_place(task, tmp_path):
    """Two places, four episodes: who waits for a result without a place is not waited for by those that have one."""
    failures = []

    class LosingSandbox(ScriptedSandbox):
        async def run_tests(self, request):
            await asyncio.sleep(0.05)
            if self.files["m.py"] == "shared" and not failures:
                failures.append(request)
                raise SandboxError("lost")
            return await super().run_tests(request)

    class LosingBackend(ScriptedBackend):
        async def create(self, spec, *, snapshot=None):
            return LosingSandbox(spec.files, scripted_answer())

    backend, tool = LeasedBackend(LosingBackend(scripted_answer()), 2, 0.0), RunTestsTool(services())

    async def play(delay_s: float, *texts: str) -> str:
        async def create(files):
            return await backend.create(SandboxSpec(environment=tmp_path, tree=tmp_path, files=files))

        await asyncio.sleep(delay_s)
        workspace = Workspace(tmp_path, task.base_files, create)
        with backend.sharing():
            try:
                for text in texts:
                    await workspace.write("m.py", text)
                    await call(tool, ToolContext(task=task, workspace=workspace))
            except SandboxError:
                return "failed"
            finally:
                await workspace.close()
        return "ended"

    plays = [play(0.0, "own", "shared"), play(0.02, "shared"), play(0.04, "shared"), play(0.03, "other", "shared")]
    async with asyncio.timeout(20.0):
        assert sorted(await asyncio.gather(*plays)) == ["ended", "ended", "ended", "failed"]


@pytest.mark.asyncio
async def test_help_is_past_fixes_and_never_the_answer(context, task, tmp_path):
    other = task.model_copy(update={"id": "other"})
    error = MainError(error_class="test", message="assert clamp(7) == 5")
    with KnowledgeBase.create(tmp_path / "fixes.db") as knowledge:
        fix, own = make_fix(other, error, "--- a/m.py\n+x"), make_fix(task, error, "+answer")
        knowledge.add(fix, other)
        knowledge.add(own, task)
    config = SimplifiedConfig(knowledge=KnowledgeConfig(path=str(tmp_path / "fixes.db")))
    tool = AskForHelpTool(ToolServices(config, ExecutionCache()))
    seen = await call(tool, context, question="clamp is wrong")
    assert described_fixes(seen.text) == (fix.id,)
    assert "answer" not in seen.text
    assert (await call(tool, context, question="zebra")).text == "no past fix has these words"
    assert (await call(tool, context, question=" ")).error == "tool"
    context.task = task.model_copy(update={"id": "held-out", "split": "test"})
    with pytest.raises(TaskError, match="offered answers"):
        await call(tool, context, question="clamp")


def test_help_needs_a_pipeline_that_has_a_knowledge_base():
    with pytest.raises(ConfigError, match="of type full or simplified"):
        make_tools(services(tools=("ask_for_help",)))


def test_the_ten_tools_of_the_paper_exist():
    tools = make_tools(ToolServices(SimplifiedConfig(), ExecutionCache()))
    assert list(tools) == [
        "ask_for_help",
        "dependency_upgrade",
        "find_files",
        "find_files_with_text",
        "remove_dependency",
        "run_sh",
        "upgrade_build_tool",
        "validate_and_build",
        "read_file",
        "write_file",
    ]
    assert all(json.dumps(tool.arguments_type.model_json_schema()) for tool in tools.values())

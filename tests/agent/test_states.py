"""State digests: equal where files, open place and knowledge are equal, whatever led there."""

from __future__ import annotations

from pathlib import Path

import pytest

from repairgym.agent.pipelines.base import EpisodeRunner
from repairgym.agent.pipelines.registry import make_pipeline
from repairgym.agent.states import state_digest
from repairgym.agent.tools.base import ToolContext
from repairgym.agent.tools.window import FileView
from repairgym.agent.tools.workspace import Workspace
from repairgym.config.pipeline import PipelineConfig
from repairgym.records import Task, TestRun
from repairgym.sandbox.base import ExecResult
from repairgym.sandbox.cache import ExecutionCache
from repairgym.testing.scripted import ScriptedSandbox, ScriptedSession


class TouchingShell(ScriptedSession):
    """Writes an empty file of the command's name."""

    def __init__(self, sandbox: ScriptedSandbox) -> None:
        super().__init__("main")
        self.sandbox = sandbox

    async def run(self, command: str, *, timeout_s: float, stdin: bytes = b"") -> ExecResult:
        self.sandbox.files[command] = ""
        return ExecResult(exit_status=0)


class TouchingSandbox(ScriptedSandbox):
    """Has such a shell."""

    def __init__(self, files: dict[str, str | None]) -> None:
        super().__init__(files, lambda _, request: TestRun(results={}, exit_status=0))

    async def open_session(self, name: str = "main", env: object = None) -> TouchingShell:
        return TouchingShell(self)


def context_of(task: Task, tree: Path) -> ToolContext:
    async def create(files: dict[str, str | None]) -> TouchingSandbox:
        return TouchingSandbox(files)

    return ToolContext(task=task, workspace=Workspace(tree, task.base_files, create))


async def states_of(task: Task, tree: Path, speaker) -> list[str]:
    pipeline = make_pipeline(PipelineConfig(max_turns=8, max_len_tokens=600), ExecutionCache())
    episode = await EpisodeRunner(pipeline, speaker, speaker.renderer).run("s", context_of(task, tree), 0)
    return [turn.state for turn in episode.turns]


@pytest.mark.asyncio
async def test_turns_record_the_state_that_they_start_in(task, tmp_path, make_speaker):
    first = make_speaker("edit > => <= @2", "edit < => > @2", "undo", "edit < => <= @2", "test", "submit")
    start, after_error, other, undone, repaired, tested = await states_of(task, tmp_path, first)
    assert start == after_error == undone
    assert len({start, other, repaired, tested}) == 4
    assert {len(state) for state in (start, other, repaired, tested)} == {16}
    second = make_speaker("edit < => <= @2", "test", "undo", "submit")
    assert await states_of(task, tmp_path, second) == [start, repaired, tested, start]


@pytest.mark.asyncio
async def test_changes_of_commands_are_part_of_the_state(task, tmp_path):
    one, other = context_of(task, tmp_path), context_of(task, tmp_path)
    start = await state_digest(one, "look")
    for context, commands in ((one, ("a.txt", "b.txt")), (other, ("b.txt", "a.txt"))):
        for command in commands:
            await context.workspace.run_command(command, timeout_s=1)
    assert await state_digest(one, "look") == await state_digest(other, "look") != start


@pytest.mark.asyncio
async def test_folder_open_file_and_prompt_are_part_of_the_state(task, tmp_path):
    context = context_of(task, tmp_path)
    seen = [await state_digest(context, "look"), await state_digest(context, "look again")]
    context.view = FileView("m.py", 3)
    seen.append(await state_digest(context, "look"))
    context.workspace.cwd = "/testbed/folder"
    seen.append(await state_digest(context, "look"))
    assert len(set(seen)) == 4

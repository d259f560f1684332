"""The ``test`` tool: which episodes share a run."""

import pytest

from repairgym.agent.tools.base import NoArguments, ToolContext, ToolServices
from repairgym.agent.tools.check import RunTestsTool
from repairgym.agent.tools.workspace import Workspace
from repairgym.config.pipeline import PipelineConfig
from repairgym.records import TestOutcome, TestResult, TestRun
from repairgym.sandbox.base import ExecResult
from repairgym.sandbox.cache import ExecutionCache
from repairgym.testing.scripted import ScriptedSandbox, ScriptedSession

BINARY = "write data.bin \0"


class Shell(ScriptedSession):
    """Runs ``write PATH TEXT``; anything else prints its number of calls, as a clock would."""

    def __init__(self, box):
        super().__init__("main")
        self.box = box

    async def run(self, command, *, timeout_s, stdin=b""):
        name, *values = command.split(" ", 2)
        if name != "write":
            self.box.ticks.append(command)
            return ExecResult(exit_status=0, stdout=str(len(self.box.ticks)).encode())
        self.box.files[values[0]] = values[1]
        return ExecResult(exit_status=0)


class Box(ScriptedSandbox):
    """Its shell changes its files."""

    def __init__(self, files, answer, ticks):
        super().__init__(files, answer)
        self.ticks = ticks

    async def open_session(self, name="main", env=None):
        return Shell(self)


@pytest.fixture
def episode(task, tmp_path):
    """Makes the context of one more episode; ``episode.runs`` counts the executed test runs."""
    ticks = []

    def answer(files, request):
        episode.runs += 1
        outcome = TestOutcome.PASSED if "data.bin" in files else TestOutcome.FAILED
        return TestRun(results={id_: TestResult(outcome=outcome) for id_ in request.test_ids}, exit_status=0)

    async def create(files):
        return Box(files, answer, ticks)

    def episode():
        return ToolContext(task=task, workspace=Workspace(tmp_path, task.base_files, create))

    episode.runs = 0
    return episode


@pytest.fixture
def see():
    """Runs commands and then the ``test`` tool of one set of services."""
    tool = RunTestsTool(ToolServices(PipelineConfig(), ExecutionCache()))

    async def see(context, *commands):
        for command in commands:
            await context.workspace.run_command(command, timeout_s=1)
        await context.workspace.refresh()
        return (await tool.run(context, NoArguments())).text.split()[0]

    return see


@pytest.mark.asyncio
async def test_no_episode_is_told_what_the_binary_file_of_another_did(episode, see):
    assert await see(episode(), BINARY) == "passed"
    assert await see(episode()) == "failed"


@pytest.mark.asyncio
async def test_equal_commands_with_equal_results_share_a_run(episode, see):
    for _ in range(2):
        await see(episode(), BINARY)
        await see(episode())
    assert episode.runs == 2
    for _ in range(2):
        await see(episode(), "date")
    assert episode.runs == 4


@pytest.mark.asyncio
async def test_a_restored_state_keeps_its_commands_and_a_reverted_one_has_none(episode, see):
    first, second = episode(), episode()
    await see(first, BINARY)
    state = await first.workspace.freeze()
    second.workspace.restore(state)
    assert second.workspace.execution_digest() == first.workspace.execution_digest()
    await first.workspace.revert({})
    assert first.workspace.execution_digest() == episode().workspace.execution_digest()

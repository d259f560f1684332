"""The agent behind the official SDK's client: turns while it runs, the patch only where it is allowed, and refusals."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from repairgym.bridges.clients.acp import AcpAgent, prompt_text
from repairgym.config.commands import AcpConfig
from repairgym.config.loading import load_config
from repairgym.errors import ConfigError, TaskError
from repairgym.inference.base import Generation
from repairgym.inference.renderer import ChatRenderer
from repairgym.rollout.jobs import make_group
from repairgym.rollout.runner import Runner
from repairgym.tasks.build.validation import TaskLayers
from repairgym.testing.scripted import ScriptedBackend, scripted_answer, scripted_task

WRONG = "def f(a, b):\n    return a < b\n"
RIGHT = "def f(a, b):\n    return a <= b\n"
REPAIR = ["edit < => <= @2", "test", "submit"]


class Actions:
    """A policy that writes given actions, the last one again and again."""

    id = "actions"

    def __init__(self, actions: list[str], renderer: ChatRenderer) -> None:
        self.waiting, self.renderer = list(actions), renderer

    async def generate(self, session_id, prompt_ids, sampling):
        ids = self.renderer.action_ids(self.waiting.pop(0) if len(self.waiting) > 1 else self.waiting[0])
        return Generation(token_ids=tuple(ids), log_probs=(0.0,) * len(ids), is_stopped=True, policy_version=0)

    async def end_session(self, session_id):
        pass


class Repairs:
    """Episodes of a scripted policy in scripted sandboxes."""

    def __init__(self, layers: Path, renderer: ChatRenderer, actions: list[str]) -> None:
        self.actions, self.renderer, self.layers = actions, renderer, layers
        self.issues: list[str] = []

    async def pin(self, folder, issue):
        if "nothing" in issue:
            raise TaskError("nothing fails here")
        self.issues.append(issue)
        return scripted_task("tiny-1")

    async def run(self, task, number, watcher):
        config = AcpConfig().rollout
        backend = ScriptedBackend(scripted_answer("no"))
        find = lambda _: TaskLayers(self.layers, self.layers)  # noqa: E731
        runner = Runner(config, backend, find, self.renderer, watcher=watcher)
        (job,) = make_group("acp", 0, task.id, 1, 0, number)
        return await runner.run_job(job, task, Actions(self.actions, self.renderer), 1.0)

    def original(self, task, path):
        text = task.base_files.get(path)
        return None if text is None else text.encode()


class Editor:
    """An ACP client over the folder of a user."""

    def __init__(self, answer: str) -> None:
        self.answer, self.said, self.titles, self.shown = answer, "", [], []

    def on_connect(self, conn):
        pass

    async def session_update(self, session_id, update, **_):
        if update.session_update == "agent_message_chunk":
            self.said += update.content.text
        else:
            self.titles.append((update.title, update.kind, update.status))

    async def request_permission(self, session_id, tool_call, options, **_):
        from acp.schema import AllowedOutcome, DeniedOutcome, RequestPermissionResponse

        self.shown = [(Path(shown.path).name, shown.old_text, shown.new_text) for shown in tool_call.content]
        outcome = (
            AllowedOutcome(option_id=self.answer, outcome="selected")
            if self.answer
            else DeniedOutcome(outcome="cancelled")
        )
        return RequestPermissionResponse(outcome=outcome)

    async def read_text_file(self, session_id, path, **_):
        from acp.schema import ReadTextFileResponse

        return ReadTextFileResponse(content=Path(path).read_text())

    async def write_text_file(self, session_id, path, content, **_):
        Path(path).write_text(content)


@asynccontextmanager
async def connected(repairs: Repairs, editor: Editor, *, has_files: bool = True):
    """The client's side of a connection over sockets of this process."""
    from acp import AgentSideConnection, connect_to_agent
    from acp.schema import ClientCapabilities, FileSystemCapabilities

    agents = []

    def serve(reader, writer):
        agents.append(AgentSideConnection(AcpAgent(repairs), writer, reader))

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    client = connect_to_agent(editor, writer, reader)
    files = FileSystemCapabilities(read_text_file=has_files, write_text_file=has_files)
    await client.initialize(protocol_version=1, client_capabilities=ClientCapabilities(fs=files))
    try:
        yield client
    finally:
        await client.close()
        for agent in agents:
            await agent.close()
        server.close()


async def ask(folder: Path, editor: Editor, repairs: Repairs, text: str = "f is wrong", *, has_files: bool = True):
    from acp import text_block

    async with connected(repairs, editor, has_files=has_files) as client:
        session = await client.new_session(cwd=str(folder), mcp_servers=[])
        return await client.prompt(session_id=session.session_id, prompt=[text_block(text)])


@pytest.fixture
def folder(tmp_path):
    place = tmp_path / "shop"
    place.mkdir()
    (place / "m.py").write_text(WRONG)
    return place


@pytest.fixture
def repairs(tmp_path, renderer):
    return Repairs(tmp_path, renderer, REPAIR)


@pytest.mark.mcp
@pytest.mark.asyncio
@pytest.mark.parametrize("has_files", [True, False])
async def test_an_allowed_patch_is_written(folder, repairs, has_files):
    editor = Editor("apply")
    answer = await ask(folder, editor, repairs, has_files=has_files)
    assert (answer.stop_reason, repairs.issues) == ("end_turn", ["f is wrong"])
    assert editor.titles == [
        ("edit < => <= @2", "edit", "completed"),
        ("test", "execute", "completed"),
        ("submit", "other", "completed"),
    ]
    assert editor.shown == [("m.py", WRONG, RIGHT)]
    assert (folder / "m.py").read_text() == RIGHT
    assert "The tests pass with this patch" in editor.said


@pytest.mark.mcp
@pytest.mark.asyncio
@pytest.mark.parametrize("answer", ["discard", ""])
async def test_another_patch_is_not(folder, repairs, answer):
    editor = Editor(answer)
    await ask(folder, editor, repairs)
    assert (folder / "m.py").read_text() == WRONG
    assert "was not applied" in editor.said


@pytest.mark.mcp
@pytest.mark.asyncio
async def test_a_file_that_was_changed_meanwhile_stays(folder, repairs):
    (folder / "m.py").write_text("mine\n")
    editor = Editor("apply")
    await ask(folder, editor, repairs)
    assert (folder / "m.py").read_text() == "mine\n"
    assert "0 files were written; changed meanwhile or outside, so not written: m.py" in editor.said


@pytest.mark.mcp
@pytest.mark.asyncio
@pytest.mark.parametrize("mine", [b"\xff\xfe", None])
async def test_what_is_no_text_or_no_file_counts_as_changed(folder, repairs, mine):
    place = folder / "m.py"
    place.unlink()
    place.write_bytes(mine) if mine else place.mkdir()
    repairs.original = lambda task, path: None  # the patch makes the file
    editor = Editor("apply")
    await ask(folder, editor, repairs)
    assert place.read_bytes() == mine if mine else place.is_dir()
    assert "0 files were written; changed meanwhile or outside, so not written: m.py" in editor.said


@pytest.mark.mcp
@pytest.mark.asyncio
async def test_a_client_that_cancels_while_files_are_written_gets_all_of_them(folder, repairs):
    from acp import text_block

    editor, begun, may_end = Editor("apply"), asyncio.Event(), asyncio.Event()

    async def write_slowly(session_id, path, content, **_):
        begun.set()
        await may_end.wait()
        Path(path).write_text(content)

    editor.write_text_file = write_slowly
    async with connected(repairs, editor) as client:
        session = await client.new_session(cwd=str(folder), mcp_servers=[])
        asked = asyncio.ensure_future(client.prompt(session_id=session.session_id, prompt=[text_block("f is wrong")]))
        await begun.wait()
        await client.cancel(session_id=session.session_id)
        may_end.set()
        assert (await asked).stop_reason == "cancelled"
    assert (folder / "m.py").read_text() == RIGHT
    assert "1 files were written" in editor.said


@pytest.mark.mcp
@pytest.mark.asyncio
async def test_limits_and_failing_patches_are_named(folder, tmp_path, renderer):
    editor = Editor("apply")
    wrong = Repairs(tmp_path, renderer, ["edit < => > @2", "submit"])
    assert (await ask(folder, editor, wrong)).stop_reason == "end_turn"
    assert "The tests fail with this patch" in editor.said
    idle = Repairs(tmp_path, renderer, ["test"] * 99)
    assert (await ask(folder, editor, idle)).stop_reason == "max_turn_requests"
    assert "No patch: nothing was changed (turn_limit)" in editor.said


@pytest.mark.mcp
@pytest.mark.asyncio
async def test_errors_are_answers_of_the_protocol(folder, repairs, tmp_path):
    from acp import RequestError

    editor = Editor("apply")
    with pytest.raises(RequestError, match="nothing fails here"):
        await ask(folder, editor, repairs, "nothing")
    with pytest.raises(RequestError):
        await ask(tmp_path / "absent", editor, repairs)


@pytest.mark.mcp
@pytest.mark.asyncio
async def test_a_cancelled_prompt_leaves_the_folder(folder, repairs):
    from acp import text_block

    begun = asyncio.Event()

    async def never(task, number, watcher):
        begun.set()
        await asyncio.Event().wait()

    repairs.run = never
    async with connected(repairs, Editor("apply")) as client:
        session = await client.new_session(cwd=str(folder), mcp_servers=[])
        asked = asyncio.ensure_future(client.prompt(session_id=session.session_id, prompt=[text_block("f")]))
        await begun.wait()
        await client.cancel(session_id=session.session_id)
        assert (await asked).stop_reason == "cancelled"
    assert (folder / "m.py").read_text() == WRONG


def test_prompts_quote_what_is_embedded():
    resource = SimpleNamespace(uri="file:///a.py", text="x = 1")
    blocks = [SimpleNamespace(text="f fails"), SimpleNamespace(resource=resource), SimpleNamespace(uri="file:///b.py")]
    assert prompt_text(blocks) == "f fails\n\nfile:///a.py:\nx = 1\n\nfile:///b.py"


@pytest.mark.parametrize("setting", ["rollout.grading.is_replayed=true", "rollout.grading.is_differential=true"])
def test_settings_that_need_a_known_repair_are_rejected(setting):
    with pytest.raises(ConfigError, match="known repair"):
        load_config(AcpConfig, [], [setting])

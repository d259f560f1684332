"""Servers of the Model Context Protocol give a pipeline tools: in the sandbox, with errors of a known kind."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from repairgym.agent.formats import describe_schemas
from repairgym.config.mcp import McpServerConfig
from repairgym.config.pipeline import GradingConfig, PipelineConfig
from repairgym.config.rollout import RolloutConfig
from repairgym.errors import InputError
from repairgym.inference.loading import load_tokenizer, shipped_base
from repairgym.inference.renderer import ChatRenderer
from repairgym.records import VerdictKind
from repairgym.rollout.external.clients import ClientEpisode
from repairgym.rollout.jobs import make_group
from repairgym.rollout.runner import Runner
from repairgym.sandbox.backends.namespace import NamespaceBackend
from repairgym.tasks.build.validation import TaskLayers
from repairgym.testing.scripted import scripted_task

SERVER = """
import json, os, socket, sys, time
SCHEMA = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
for line in sys.stdin:
    message = json.loads(line)
    method, params = message["method"], message.get("params", {})
    if method == "initialize":
        result = {"protocolVersion": params["protocolVersion"], "capabilities": {"tools": {}}, "serverInfo": {}}
    elif method == "tools/list":
        tool = "note" if params.get("cursor") else "repair"
        result = {"tools": [{"name": tool, "description": tool + " it", "inputSchema": SCHEMA}]}
        result.update({} if params.get("cursor") else {"nextCursor": "2"})
    elif method == "tools/call":
        text, is_error = params["arguments"]["text"], False
        if text == "crash":
            sys.exit("no such thing")
        if text == "sleep":
            time.sleep(60)
        if text == "reach":
            try:
                socket.create_connection(("1.1.1.1", 80), 2)
            except OSError as error:
                text, is_error = "not reached", True
        if params["name"] == "repair":
            open("m.py", "w").write("def f(a, b):\\n    return a <= b\\n")
        result = {"content": [{"type": "text", "text": os.getcwd() + " " + text}], "isError": is_error}
    if "id" in message:
        print("a log line that is no message" if method == "tools/list" else "", flush=True)
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}), flush=True)
"""
STDIO = McpServerConfig(name="helper", command=("python", "-c", SERVER), timeout_s=8.0, max_chars=200)


@pytest.fixture
def open_episode(tmp_path, small_environment) -> Callable[..., object]:
    (tmp_path / "m.py").write_text("def f(a, b):\n    return a < b\n")
    (tmp_path / "test_m.py").write_text("from m import f\ndef test_f():\n    assert f(1, 1)\n")

    @asynccontextmanager
    async def opened(*servers: McpServerConfig, **changes: object) -> AsyncIterator[tuple[Runner, ClientEpisode]]:
        renderer = ChatRenderer(load_tokenizer(shipped_base()))
        pipeline = PipelineConfig(tools=("view", "submit"), action_format="native", mcp=servers, max_len_tokens=9000)
        grading = GradingConfig(is_replayed=False, num_canaries=0)
        config = RolloutConfig(pipeline=pipeline, grading=grading, max_attempts=1)
        backend, task = NamespaceBackend(), scripted_task(**changes)
        runner = Runner(config, backend, lambda task: TaskLayers(small_environment, tmp_path), renderer)
        (job,) = make_group("phase", 0, task.id, 1, seed=1)
        try:
            async with ClientEpisode(runner, renderer, task, job, "test") as episode:
                yield runner, episode
        finally:
            await backend.close()

    return opened


@pytest.mark.asyncio
async def test_the_tools_of_a_program_work_in_the_sandbox(open_episode):
    async with open_episode(STDIO) as (runner, episode):
        await episode.open()
        functions = {
            schema["function"]["name"]: schema["function"] for schema in describe_schemas(runner.pipeline.tools)
        }
        assert sorted(functions) == ["helper_note", "helper_repair", "submit", "view"]
        assert functions["helper_note"]["description"] == "note it"
        assert functions["helper_note"]["parameters"]["required"] == ["text"]
        noted = await episode.call("helper_note", {"text": "x" * 500})
        assert (noted.text[:10], len(noted.text), noted.error) == ("/testbed x", 200, "")
        reached = await episode.call("helper_note", {"text": "reach"})
        assert (reached.error, "not reached" in reached.text) == ("tool", True)
        assert (await episode.call("helper_note", {})).error == "tool"
        late = await episode.call("helper_note", {"text": "sleep"})
        assert (late.error, "within 8 s" in late.text) == ("tool", True)
        await episode.call("helper_repair", {"text": "now"})
        ended = await episode.call("submit", {})
        assert ended.trajectory is not None
        assert ended.trajectory.verdict.kind is VerdictKind.PASSED


@pytest.mark.asyncio
async def test_a_server_that_ends_makes_the_episode_invalid(open_episode):
    async with open_episode(STDIO) as (_, episode):
        await episode.open()
        ended = await episode.call("helper_note", {"text": "crash"})
        assert ended.error == "infrastructure"
        assert "no such thing" not in ended.text or "gave no answer" in ended.text
    absent = STDIO.model_copy(update={"command": ("no-such-program",)})
    async with open_episode(absent) as (_, episode):
        opened = await episode.open()
        assert (opened.error, "'helper' gave no answer" in opened.text) == ("infrastructure", True)
        with pytest.raises(InputError):
            await episode.call("submit", {})


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"command": ("x",), "url": "http://localhost"}, "either a command or a url"),
        ({"url": "http://localhost", "requirements": ("a==1",)}, "are for a command"),
        ({"command": ("x",), "token_variable": "KEY"}, "token_variable is for a url"),
        ({"command": ("x",), "npm": ("server@latest",)}, "is not pinned"),
    ],
)
def test_settings_that_cannot_be_honoured_are_errors(settings, problem):
    with pytest.raises(ValueError, match=problem):
        McpServerConfig(name="helper", **settings)


@pytest.mark.slow
@pytest.mark.network
@pytest.mark.asyncio
async def test_a_released_server_works_in_the_sandbox(open_episode):
    server = McpServerConfig(
        name="files",
        npm=("@modelcontextprotocol/server-filesystem@2026.8.31",),
        command=("mcp-server-filesystem", "/testbed"),
        tools=("read_text_file", "edit_file"),
    )
    async with open_episode(server) as (runner, episode):
        await episode.open()
        assert {"files_read_text_file", "files_edit_file"} < set(runner.pipeline.tools)
        assert "a < b" in (await episode.call("files_read_text_file", {"path": "/testbed/m.py"})).text
        assert (await episode.call("files_read_text_file", {"path": "/etc/hostname"})).error == "tool"
        edits = [{"oldText": "a < b", "newText": "a <= b"}]
        assert (await episode.call("files_edit_file", {"path": "/testbed/m.py", "edits": edits})).error == ""
        ended = await episode.call("submit", {})
        assert ended.trajectory is not None
        assert ended.trajectory.verdict.kind is VerdictKind.PASSED


HTTP_SERVER = """
import sys
from mcp.server import MCPServer
server = MCPServer("adder")

@server.tool()
def add(first: int, second: int) -> int:
    "Add two numbers."
    return first + second

server.run("streamable-http", port=int(sys.argv[1]))
"""


@pytest.mark.mcp
@pytest.mark.asyncio
async def test_the_tools_of_a_server_behind_a_url(open_episode):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    process = _start_server(port)
    try:
        _until_listening(port)
        server = McpServerConfig(name="adder", url=f"http://127.0.0.1:{port}/mcp", timeout_s=20.0)
        async with open_episode(server) as (_, episode):
            await episode.open()
            assert (await episode.call("adder_add", {"first": 2, "second": 3})).text == "5"
            assert (await episode.call("adder_add", {"first": "two", "second": 3})).error == "tool"
            process.kill()
            process.wait()
            assert (await episode.call("adder_add", {"first": 2, "second": 3})).error == "infrastructure"
    finally:
        process.kill()


def _start_server(port: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", HTTP_SERVER, str(port)])


def _until_listening(port: int) -> None:
    for _ in range(300):
        with socket.socket() as client:
            if client.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.2)
    raise TimeoutError(f"nothing listens on {port}")

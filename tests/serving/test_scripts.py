"""Scripts behind the server: selected by the issue text, played from the conversation alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import venv
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from repairgym.agent.pipelines.registry import make_pipeline
from repairgym.config.agent import ShellScriptConfig
from repairgym.config.pipeline import PipelineConfig
from repairgym.errors import ConfigError
from repairgym.inference.chat_template import Message
from repairgym.inference.renderer import ChatRenderer
from repairgym.records import Task
from repairgym.sandbox.cache import ExecutionCache
from repairgym.serving.models import ScriptModel
from repairgym.serving.records import RequestError
from repairgym.serving.scripts import find_task, make_script

Connect = Callable[..., AbstractAsyncContextManager[httpx2.AsyncClient]]
BASH = {"type": "function", "function": {"name": "bash", "parameters": {"required": ["command"]}}}


@pytest.fixture
def scaffold() -> Any:
    return make_pipeline(PipelineConfig(), ExecutionCache())


def test_the_task_follows_from_the_report(task: Task) -> None:
    other = task.model_copy(update={"id": "tiny-2", "issue": "f in m.py"})
    twin = task.model_copy(update={"id": "tiny-3"})
    told = [Message("system", "Repair."), Message("user", f"Solve: {task.issue}\nat once")]
    assert find_task(told, [other, task]) is task
    before = [Message("system", "Be brief."), Message("system", "No network."), Message("user", "<cwd>/testbed</cwd>")]
    assert find_task([*before, *told], [other, task]) is task  # Codex says much before the prompt
    with pytest.raises(RequestError, match="of 0 of 1 tasks"):
        find_task([Message("user", "hello"), Message("assistant", "hello"), *told], [task])
    with pytest.raises(RequestError, match=r"of 2 of 2 tasks \(tiny-1, tiny-3\)"):
        find_task(told, [task, twin])
    with pytest.raises(RequestError, match="of 0 of 1 tasks"):
        find_task([Message("user", "hello")], [task])


def test_scripted_policies_answer_from_the_conversation(task: Task, scaffold: Any) -> None:
    answer = make_script("oracle", [task], scaffold, ShellScriptConfig())
    told = [Message("user", task.issue)]
    first = answer(told, ())
    assert first.startswith("write m.py ")
    again = [*told, Message("assistant", first), Message("user", "written")]
    assert (answer(told, ()), answer(again, ()), answer(again, ())) == (first, "submit", "submit")
    with pytest.raises(ConfigError, match="shell-oracle"):
        make_script("wizard", [task], scaffold, ShellScriptConfig())


@pytest.mark.parametrize("gold", ["def f():\n    return 1\n", "no newline at the end", "", "EOF\nEOF_\n", None])
def test_shell_commands_write_the_repair(task: Task, scaffold: Any, tmp_path: Path, gold: str | None) -> None:
    changed = task.model_copy(update={"gold_files": {"m.py": gold, "new/n.py": "x = 1\n"}})
    (tmp_path / "m.py").write_text("old")
    answer = make_script("shell-oracle", [changed], scaffold, ShellScriptConfig())
    conversation = [Message("user", task.issue)]
    for _ in range(10):
        text = answer(conversation, [BASH])
        call = json.loads(text.removeprefix("<tool_call>\n").removesuffix("\n</tool_call>"))
        assert call["name"] == "bash"
        command = call["arguments"]["command"]
        if command.startswith("echo COMPLETE"):
            break
        subprocess.run(("/bin/sh", "-c", command), cwd=tmp_path, check=True)
        conversation += [Message("assistant", text), Message("user", "")]
    assert (tmp_path / "new" / "n.py").read_text() == "x = 1\n"
    written = tmp_path / "m.py"
    assert (written.read_text() if written.exists() else None) == gold
    assert answer(conversation, []).startswith("```mswea_bash_command\necho COMPLETE")


@pytest.mark.asyncio
async def test_rollouts_go_through_the_protocol(
    task: Task, scaffold: Any, tmp_path: Path, renderer: ChatRenderer, connect: Connect
) -> None:
    """An oracle behind the server answers what the oracle of the rollout says, tool by tool."""
    model = ScriptModel(make_script("oracle", [task], scaffold, ShellScriptConfig()), renderer)
    async with connect(model) as client:
        asked = {"messages": [{"role": "user", "content": task.issue}], "return_token_ids": True}
        chat = (await client.post("/v1/chat/completions", json=asked)).json()
        body = {"prompt": renderer.open_ids(task.issue), "return_token_ids": True, "logprobs": 0}
        tokens = (await client.post("/v1/completions", json=body)).json()
        unknown = await client.post("/v1/chat/completions", json={"messages": [{"role": "user", "content": "hi"}]})
    assert chat["choices"][0]["token_ids"] == tokens["choices"][0]["token_ids"]
    assert chat["policy_version"] == -1
    assert unknown.json()["error"]["code"] == "unknown_task"


ROOT = Path(__file__).resolve().parents[3]
REPAIRGYM = [sys.executable, "-c", "import sys; from repairgym.cli.main import main; main(sys.argv[1:])"]


def run(*command: str | Path) -> str:
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.network
@pytest.mark.slow
def test_it_repairs_our_tasks_and_is_graded(tmp_path: Path) -> None:
    tasks, out = tmp_path / "tasks", tmp_path / "out"
    build = ('packages=["inflection"]', 'sources=["mutations"]', "mutations.num_per_package=2", "num_workers=1")
    run(*REPAIRGYM, "tasks", "build", tasks, *build)
    venv.create(tmp_path / "mini", with_pip=True)
    run(tmp_path / "mini" / "bin" / "pip", "install", "-q", "mini-swe-agent", "mcp")
    serve = [*REPAIRGYM, "serve", "--policy", "shell-oracle", "--tasks", str(tasks), "port=0"]
    with subprocess.Popen(serve, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            url = server.stdout.readline().split()[3]
            mini = tmp_path / "mini" / "bin" / "mini"
            script = [sys.executable, ROOT / "examples" / "mini_swe_agent.py", tasks, out, "--mini", mini]
            run(*script, "--base-url", url, "--model", "shell-oracle", "--num-tasks", "1")
        finally:
            server.terminate()
    said = run(*REPAIRGYM, "grade", tasks, out / "preds.json")
    assert said.startswith("1 resolved, 0 failed")
    imported = run(
        *REPAIRGYM, "trajectories", "import", tmp_path / "run", out, "--tasks", tasks, "--graded", out / "preds-graded"
    )
    assert imported.startswith("1 trajectories stored (1 passed)")

"""Paper B's scaffold in a real sandbox: shell and editor see one tree; what is there at the end is submitted."""

from __future__ import annotations

import pytest

from repairgym.agent.pipelines.base import EpisodeRunner
from repairgym.agent.pipelines.registry import make_pipeline
from repairgym.agent.scripted import ScriptedPolicy
from repairgym.agent.tools.base import ToolContext
from repairgym.agent.tools.workspace import Workspace
from repairgym.config.pipeline import PaperBConfig
from repairgym.config.sandbox import SandboxConfig
from repairgym.inference.base import Generation
from repairgym.inference.renderer import ChatRenderer
from repairgym.inference.tokenizer import train_tokenizer
from repairgym.records import StopReason
from repairgym.sandbox.base import SandboxSpec
from repairgym.sandbox.cache import ExecutionCache
from repairgym.sandbox.conformance import make_environment
from repairgym.sandbox.probe import create_backend


class Agent:
    """Says each of ``commands`` in a block, and ``texts`` as they are."""

    id = "agent"

    def __init__(self, renderer, commands):
        self.renderer = renderer
        self.commands = iter(commands)
        self.prompts = []

    async def generate(self, session_id, prompt_ids, sampling):
        self.prompts.append(self.renderer.decode(prompt_ids))
        command = next(self.commands)
        text = command if "```" in command or not command else f"So.\n```command\n{command}\n```"
        ids = self.renderer.action_ids(text)
        return Generation(token_ids=ids, log_probs=[0.0] * len(ids), is_stopped=True, policy_version=0)

    async def end_session(self, session_id):
        pass


@pytest.fixture(scope="module")
def renderer():
    return ChatRenderer(train_tokenizer(["user assistant ```command edit submit (Current directory: )"] * 9, 400, 40))


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("place")
    (folder / "tree").mkdir()
    (folder / "tree" / "keep.txt").write_text("kept\n")
    (folder / "tree" / "old.txt").write_text("old\n")
    return make_environment(folder / "bare"), folder / "tree"


async def play(task, place, policy, renderer, **settings):
    environment, tree = place
    backend = create_backend(SandboxConfig())
    pipeline = make_pipeline(PaperBConfig(**settings), ExecutionCache())

    async def create(files):
        return await backend.create(SandboxSpec(environment=environment, tree=tree, files=files))

    workspace = Workspace(tree, task.base_files, create, pipeline.prepare)
    if isinstance(policy, ScriptedPolicy):
        policy.begin_session("s", task, 0, pipeline)
    try:
        context = ToolContext(task=task, workspace=workspace)
        return await EpisodeRunner(pipeline, policy, renderer).run("s", context, 0)
    finally:
        await workspace.close()
        await backend.close()


@pytest.mark.asyncio
async def test_a_session(task, place, renderer):
    commands = [
        "no block at all ```",
        "```command\nls\n```\n```command\npwd\n```",
        "open m.py",
        "mkdir sub && cd sub && echo 'x = 1' > new.py; echo to stderr >&2; false",
        "open new.py",
        "edit 1:1 << 'EOF'\nx = 2\nEOF",
        "cat new.py; rm ../old.txt; printf '\\377' > blob; git status --short; git log --oneline | wc -l",
        "edit --file ../m.py 2:2 '    return a <= b'",
        "cat ../m.py; git diff --stat | tail -1; cd ..; edit 1:1 x",
        "sed -i 's/<=/==/' m.py",
        "open m.py",
        "submit",
    ]
    policy = Agent(renderer, commands)
    episode = await play(task, place, policy, renderer)
    said = [turn.observation for turn in episode.turns]
    state = "(Current directory: /testbed, current file: n/a) bash-$"
    assert "UNDER NO CIRCUMSTANCES" in policy.prompts[0]
    assert f"{task.issue}" in policy.prompts[0]
    assert state in policy.prompts[0]
    assert [turn.error for turn in episode.turns[:2]] == ["format", "format"]
    assert said[0].startswith("error: no command")
    assert said[0].endswith(state)
    assert "has 2 commands" in said[1]
    assert said[3] == "to stderr\n(Current directory: /testbed/sub, current file: /testbed/m.py) bash-$"
    assert "1:x = 1" in said[4]
    assert said[6].startswith("x = 2\n D old.txt\n?? ./\n1\n") or said[6].startswith("x = 2\n D ../old.txt\n?? ./\n1\n")
    assert "return a <= b\n" in said[8]
    assert "2 files changed" in said[8]
    assert "edit: command not found" in said[8]
    assert "2:    return a == b" in said[10]
    assert episode.stop_reason is StopReason.SUBMITTED
    changed = {"m.py": "def f(a, b):\n    return a == b\n", "sub/new.py": "x = 2\n", "old.txt": None}
    assert episode.files == changed


@pytest.mark.asyncio
async def test_a_command_that_takes_too_long_is_stopped_and_long_output_cut(task, place, renderer):
    policy = Agent(renderer, ["sleep 30", "seq 100000", "submit"])
    episode = await play(task, place, policy, renderer, command_timeout_s=0.5, max_observation_chars=400)
    assert "did not end within 0.5 s" in episode.turns[0].observation
    assert episode.turns[0].error == "tool"
    assert "characters left out" in episode.turns[1].observation
    assert len(episode.turns[1].observation) < 600


@pytest.mark.asyncio
async def test_the_oracle_repairs_by_edits(task, place, renderer):
    gold = {"m.py": "def f(a, b):\n    return a <= b\n", "extra/new.py": "EOF\n", "old.txt": None}
    larger = task.model_copy(
        update={"gold_files": gold, "base_files": {**task.base_files, "extra/new.py": None, "old.txt": "old\n"}}
    )
    episode = await play(larger, place, ScriptedPolicy("oracle", renderer), renderer)
    assert [turn.tool for turn in episode.turns] == ["open", "edit", "create", "edit", "shell", "submit"]
    assert episode.files == gold
    assert not any(turn.error for turn in episode.turns)
    nothing = await play(larger, place, ScriptedPolicy("submit-at-once", renderer), renderer)
    assert (nothing.files, [turn.tool for turn in nothing.turns]) == ({}, ["submit"])

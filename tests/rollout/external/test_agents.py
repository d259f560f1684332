"""A black-box agent in a sandbox: it learns of nothing but the gateway, and its episode is an ordinary record."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import numpy as np
import pytest

from repairgym.config.agent import ExternalAgentConfig, ShellScriptConfig
from repairgym.config.commands import RolloutCommandConfig
from repairgym.config.loading import load_config
from repairgym.config.pipeline import GradingConfig, PipelineConfig
from repairgym.config.rollout import RolloutConfig
from repairgym.config.sandbox import LayersConfig
from repairgym.errors import IndexUnavailableError, ServerDownError
from repairgym.inference.base import Generation
from repairgym.inference.loading import load_tokenizer, shipped_base
from repairgym.inference.renderer import ChatRenderer
from repairgym.records import StopReason, VerdictKind
from repairgym.rollout.external.agents import ExternalAgent
from repairgym.rollout.jobs import make_group
from repairgym.rollout.rows import pack_document, unpack_document
from repairgym.rollout.runner import Runner
from repairgym.sandbox.backends.namespace import NamespaceBackend
from repairgym.sandbox.base import SandboxSpec
from repairgym.serving.scripts import ShellPolicy
from repairgym.tasks.build.validation import TaskLayers
from repairgym.tasks.layers.agents import layer_digest
from repairgym.tasks.layers.store import LayerStore
from repairgym.testing.scripted import ScriptedBackend, scripted_answer, scripted_task

AGENTS = Path(__file__).parents[3] / "examples" / "agents"
AGENT = """
import json, os, subprocess, sys, urllib.request
shell = {"name": "bash", "parameters": {"properties": {"command": {"type": "string"}}, "required": ["command"]}}
messages = [{"role": "user", "content": sys.argv[1]}]

def ask(messages):
    body = {"model": "any", "temperature": 0, "messages": messages, "tools": [{"type": "function", "function": shell}]}
    request = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", json.dumps(body).encode())
    return json.load(urllib.request.urlopen(request))["choices"][0]["message"]
"""
LOOP = """
while (answer := ask(messages)).get("tool_calls"):
    messages.append(answer)
    for call in answer["tool_calls"]:
        command = json.loads(call["function"]["arguments"])["command"]
        done = subprocess.run(command, shell=True, capture_output=True, text=True)
        messages.append({"role": "tool", "tool_call_id": call["id"], "content": done.stdout})
"""
COMPACTING = """
for number in range(5):
    messages += [ask(messages), {"role": "user", "content": f"result {number}"}]
    if number == 2:
        messages = [{"role": "user", "content": "summary"}, *messages[3:]]
    if number == 3:
        messages[0]["content"] = "edited"
"""


class Sampler:
    """Samples ids that no tokenizer would give for their text, and keeps a log as a server would."""

    id = "sampler"

    def __init__(self, stop_id):
        self.stop_id, self.log, self.error, self.queue_s = stop_id, [], None, 0.0

    async def generate(self, session_id, prompt_ids, sampling):
        assert sampling.temperature == 1.0
        if self.error:
            raise self.error
        ids = (*np.random.default_rng(len(self.log)).integers(60, 300, 5).tolist(), self.stop_id)
        self.log.append((list(prompt_ids), list(ids)))
        return Generation(
            token_ids=ids,
            log_probs=(-1.0,) * len(ids),
            is_stopped=True,
            policy_version=4,
            queue_s=self.queue_s,
        )

    async def end_session(self, session_id):
        pass


@pytest.fixture(scope="module")
def renderer():
    return ChatRenderer(load_tokenizer(shipped_base()))


@pytest.fixture
def play(tmp_path, small_environment, renderer):
    (tmp_path / "m.py").write_text("def f(a, b):\n    return a <= b\n")
    (tmp_path / "test_m.py").write_text("from m import f\ndef test_f():\n    assert f(1, 1)\n")

    async def run(program, policy=None, **limits):
        shell = ShellScriptConfig(submit_command="")
        external = ExternalAgentConfig(command=("python", "-c", AGENT + program, "{issue}"), shell=shell)
        pipeline = PipelineConfig(**{"max_len_tokens": 5000, "max_action_tokens": 500, "time_limit_s": 60.0} | limits)
        return await play_config(RolloutConfig(agent=external, pipeline=pipeline), policy)

    async def play_config(config, policy=None, **changes):
        grading = GradingConfig(is_replayed=False, num_canaries=0)
        config = config.model_copy(update={"grading": grading})
        task, backend = scripted_task(**changes), NamespaceBackend()
        runner = Runner(config, backend, lambda task: TaskLayers(small_environment, tmp_path), renderer)
        try:
            (job,) = make_group("phase", 0, task.id, 1, seed=1)
            asked = policy or ShellPolicy("shell-oracle", renderer, config.agent.shell)
            return await runner.run_job(job, task, asked, 1.0)
        finally:
            await backend.close()

    run.config = play_config
    return run


@pytest.mark.asyncio
async def test_an_agent_repairs_a_task_and_is_graded(play):
    trajectory = await play(LOOP)
    assert (trajectory.verdict.kind, trajectory.stop_reason) == (VerdictKind.PASSED, StopReason.SUBMITTED)
    assert trajectory.pipeline == "external"
    assert list(trajectory.final_files) == ["m.py"]
    assert [turn.tool for turn in trajectory.turns] == ["bash", "bash", None]
    assert "2 m.py" in trajectory.turns[0].observation
    document = unpack_document(pack_document(trajectory))
    assert document.agent_run == trajectory.agent_run
    assert trajectory.agent_run is not None
    assert trajectory.agent_run.exit_status == 0


@pytest.mark.asyncio
async def test_the_ledger_agrees_with_the_log_of_the_policy(play, renderer):
    policy = Sampler(renderer.stop_token_ids[0])
    trajectory = await play(COMPACTING, policy)
    ledger, run = trajectory.ledger, trajectory.agent_run
    found = []
    for turn in trajectory.turns:
        start, end = turn.action_span
        assert ledger.is_action[start:end].all()
        branch = next(branch for branch in reversed(ledger.histories) if branch.start <= start)
        positions = np.concatenate([np.arange(*span) for span in branch.spans])
        ids = ledger.token_id[positions].tolist()
        place = positions.tolist().index(start)
        found.append((ids[:place], ids[place : place + end - start]))
    assert found == policy.log
    assert run is not None
    assert (run.num_answers, run.num_forks, run.num_foreign_answers) == (5, 2, 0)
    assert run.num_spliced_answers > 0
    assert ledger.is_action.sum() == 5 * 6
    assert set(ledger.policy_version[ledger.is_action].tolist()) == {4}


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("program", "limits", "kind", "stop_reason"),
    [
        ("ask(messages); sys.exit('crash')", {}, VerdictKind.FAILED, StopReason.AGENT_FAILED),
        ("sys.exit('no such option')", {}, VerdictKind.INVALID, StopReason.INFRASTRUCTURE),
        ("ask(messages); ask(messages)", {"max_turns": 1}, VerdictKind.FAILED, StopReason.TURN_LIMIT),
        ("ask([{'role': 'user', 'content': 'long ' * 9000}])", {}, VerdictKind.INVALID, StopReason.INFRASTRUCTURE),
    ],
)
async def test_ends(play, renderer, program, limits, kind, stop_reason):
    trajectory = await play(program, Sampler(renderer.stop_token_ids[0]), **limits)
    assert (trajectory.verdict.kind, trajectory.stop_reason) == (kind, stop_reason)


@pytest.mark.asyncio
async def test_the_time_limit_fails_a_slow_agent_and_not_a_slow_model(play, renderer):
    policies = [Sampler(renderer.stop_token_ids[0]) for _ in range(2)]
    policies[1].queue_s = 2.0
    program = "ask(messages); import time; time.sleep(60)"
    slow, queued = await asyncio.gather(*(play(program, policy, time_limit_s=8.0) for policy in policies))
    assert (slow.verdict.kind, slow.stop_reason) == (VerdictKind.FAILED, StopReason.TIME_LIMIT)
    assert (queued.verdict.kind, queued.stop_reason) == (VerdictKind.INVALID, StopReason.INFRASTRUCTURE)
    assert "after 2.0 s of waits for its model" in queued.verdict.reason


@pytest.mark.asyncio
async def test_a_failure_of_the_policy_is_never_the_agents(play, renderer):
    policy = Sampler(renderer.stop_token_ids[0])
    policy.error = ServerDownError("the server is gone")
    trajectory = await play("ask(messages)", policy)
    assert trajectory.verdict.kind is VerdictKind.INVALID
    assert "the server is gone" in trajectory.verdict.reason


@pytest.mark.asyncio
async def test_the_sandbox_reaches_the_gateway_and_nothing_else(play, renderer):
    program = (
        "ask(messages); import socket\n"
        "for address in (('1.1.1.1', 80), ('127.0.0.1', 22), ('10.0.0.1', 80)):\n"
        "    try:\n        socket.create_connection(address, 2); print('reached', address)\n"
        "    except OSError as error:\n        print('not', address)\n"
    )
    trajectory = await play(program, Sampler(renderer.stop_token_ids[0]))
    assert trajectory.agent_run is not None
    assert trajectory.agent_run.stdout_tail.count("not") == 3


@pytest.mark.asyncio
async def test_files_of_an_agent_say_the_limits_that_hold(play, renderer):
    program = AGENT + "ask(messages); print(open('{home}/agent/limits.json').read())"
    agent = ExternalAgentConfig(
        command=("python", "-c", program, "{issue}"),
        files={"agent/limits.json": '{"context": {max_len_tokens}, "output": {max_action_tokens}}'},
    )
    config = RolloutConfig(agent=agent, pipeline=PipelineConfig(max_len_tokens=5000, max_action_tokens=500))
    trajectory = await play.config(config, Sampler(renderer.stop_token_ids[0]))
    assert trajectory.agent_run is not None
    assert json.loads(trajectory.agent_run.stdout_tail) == {"context": 5000, "output": 500}


@pytest.mark.slow
@pytest.mark.network
@pytest.mark.asyncio
@pytest.mark.parametrize("name", sorted(path.stem for path in AGENTS.glob("*.toml")))
async def test_a_released_agent_repairs_a_task(play, name):
    trajectory = await play.config(load_config(RolloutCommandConfig, AGENTS / f"{name}.toml", []).rollout)
    assert (trajectory.verdict.kind, trajectory.stop_reason) == (VerdictKind.PASSED, StopReason.SUBMITTED)
    assert trajectory.agent_run is not None
    assert trajectory.agent_run.num_foreign_answers == 0
    assert len(trajectory.turns) >= 3


@pytest.mark.slow
@pytest.mark.network
@pytest.mark.asyncio
async def test_claude_code_decodes_escapes_in_calls(play):
    config = load_config(RolloutCommandConfig, AGENTS / "claude_code.toml", []).rollout
    repaired = "SIGN = '\\u00c0'\ndef f(a, b):\n    return a <= b\n"
    trajectory = await play.config(config, gold_files={"m.py": repaired})
    assert trajectory.verdict.kind is VerdictKind.PASSED
    assert trajectory.final_files["m.py"] == repaired.encode().decode("unicode_escape")
    run = trajectory.agent_run
    assert run is not None
    assert (run.num_foreign_answers, run.num_forks) == (1, 1)
    (edit,) = run.edits
    assert "'\\\\u00c0'" in edit.partition(" came back as ")[0]
    assert "'À'" in edit.partition(" came back as ")[2]


@pytest.mark.asyncio
async def test_a_failed_installation_is_tried_again(tmp_path, renderer):
    """The index does not answer the first episode; the second one finds the agent."""
    store = LayerStore(tmp_path, config=LayersConfig(is_index_allowed=False))
    agent = ExternalAgent(ExternalAgentConfig(command=("agent",), requirements=("agent==1",)), renderer, store)
    task, backend = scripted_task(), ScriptedBackend(scripted_answer())

    async def sandbox():
        make = SandboxSpec(environment=tmp_path, tree=tmp_path)
        workspace = await agent.workspace(task, tmp_path, lambda files: make, backend.create)
        return await workspace.sandbox()

    for _ in range(2):
        with pytest.raises(IndexUnavailableError):
            await sandbox()
    (tmp_path / "agents" / layer_digest(("agent==1",), ())).mkdir(parents=True)
    await sandbox()
    assert len(backend.sandboxes) == 1


def test_settings_without_effect_and_loose_packages_are_rejected():
    with pytest.raises(ValueError, match=r"pipeline\.tools has no effect"):
        RolloutConfig(agent=ExternalAgentConfig(command=("x",)), pipeline=PipelineConfig(tools=("submit",)))
    for loose in ({"requirements": ("mini-swe-agent",)}, {"npm": ("opencode-ai@latest",)}):
        with pytest.raises(ValueError, match="is not pinned"):
            ExternalAgentConfig(command=("x",), **loose)


ACP_AGENT = """
import json, sys
def send(**message): print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)
def receive(): return json.loads(sys.stdin.readline())
def ask_client(method, **params):
    send(id=method, method=method, params=params)
    return receive()["result"]
while True:
    message = receive()
    method, params, result = message["method"], message["params"], {}
    if method == "initialize":
        result = {"protocolVersion": VERSION, "agentCapabilities": {}}
    elif method == "session/new":
        result = {"sessionId": "s"}
    elif method == "session/prompt":
        options = [{"optionId": "no", "kind": "reject_once"}, {"optionId": "yes", "kind": "allow_once"}]
        allowed = ask_client("session/request_permission", sessionId="s", toolCall={}, options=options)
        text = ask_client("fs/read_text_file", sessionId="s", path="/testbed/m.py", line=2, limit=1)["content"]
        messages[0]["content"] = params["prompt"][0]["text"]
        ask(messages)
        if allowed["outcome"].get("optionId") == "yes" and text == "    return a < b\\n":
            repaired = "def f(a, b):\\n    return a <= b\\n"
            ask_client("fs/write_text_file", sessionId="s", path="/testbed/m.py", content=repaired)
        chunk = {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": "repaired it"}}
        send(method="session/update", params={"sessionId": "s", "update": chunk})
        result = {"stopReason": STOP}
    send(id=message["id"], result=result)
"""


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("version", "stop", "kind", "said"),
    [
        (1, "end_turn", VerdictKind.PASSED, "repaired it\n[stop reason: end_turn]"),
        (1, "refusal", VerdictKind.FAILED, "[stop reason: refusal]"),
        (9, "end_turn", VerdictKind.INVALID, "the agent speaks version 9 of ACP"),
    ],
)
async def test_an_agent_of_the_agent_client_protocol(play, renderer, version, stop, kind, said):
    program = AGENT.replace("sys.argv[1]", "''") + f"VERSION, STOP = {version}, {stop!r}\n" + ACP_AGENT
    agent = ExternalAgentConfig(command=("python", "-c", program), protocol="acp")
    config = RolloutConfig(agent=agent, pipeline=PipelineConfig(max_len_tokens=5000, max_action_tokens=500))
    trajectory = await play.config(config, Sampler(renderer.stop_token_ids[0]))
    assert trajectory.verdict.kind is kind
    run = trajectory.agent_run
    assert run is None or said in run.stdout_tail + run.stderr_tail
    assert run is not None or said in trajectory.verdict.reason


def test_dropped_thoughts_and_prompts_of_commands_are_rejected():
    with pytest.raises(ValueError, match="thinking='dropped' has no effect"):
        RolloutConfig(agent=ExternalAgentConfig(command=("x",)), pipeline=PipelineConfig(thinking="dropped"))
    with pytest.raises(ValueError, match=r"prompt is for protocol='acp'"):
        ExternalAgentConfig(command=("x",), prompt="do {issue}")

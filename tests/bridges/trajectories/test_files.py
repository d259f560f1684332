"""Export and import of our trajectories, files of other agents, and the use of imports."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow
import pytest
import torch
from pyarrow import parquet

from repairgym.agent.scripted import ScriptedPolicy
from repairgym.bridges.trajectories.base import ExchangeTrajectory, Step, ToolCall, from_trajectory
from repairgym.bridges.trajectories.files import (
    BadDocument,
    import_trajectories,
    read_trajectories,
    to_trajectory,
    write_trajectories,
)
from repairgym.bridges.trajectories.formats import FORMATS, detect_format
from repairgym.config.pipeline import PipelineConfig
from repairgym.config.rollout import RolloutConfig
from repairgym.errors import ConfigError, InputError
from repairgym.inference.chat_template import Message
from repairgym.inference.renderer import ChatRenderer
from repairgym.learning.samples import policy_sample, supervised_sample
from repairgym.records import StopReason, Task, Trajectory, VerdictKind
from repairgym.rollout.jobs import make_group
from repairgym.rollout.runner import Runner
from repairgym.rollout.store import RunStore
from repairgym.tasks.build.validation import TaskLayers
from repairgym.testing.scripted import ScriptedBackend, scripted_answer

CALLING = ExchangeTrajectory(
    id="e-1",
    instance_id="tiny-1",
    opening=(Message("system", "Repair."), Message("user", "f is wrong")),
    steps=(
        Step(text="I look.", calls=(ToolCall(name="bash", arguments={"command": "ls"}),), observation="m.py"),
        Step(text="Done.", calls=(ToolCall(name="bash", arguments={"command": "submit"}),), observation="bye"),
    ),
    exit_status="submitted",
    patch="--- a/m.py\n",
    model="tiny",
    is_resolved=True,
)


@pytest.fixture
def own(task: Task, tmp_path: Path, renderer: ChatRenderer) -> Trajectory:
    config = RolloutConfig(pipeline=PipelineConfig(max_turns=6))
    runner = Runner(config, ScriptedBackend(scripted_answer()), lambda _: TaskLayers(tmp_path, tmp_path), renderer)
    (job,) = make_group("teacher", 0, task.id, 1, seed=1)
    return asyncio.run(runner.run_job(job, task, ScriptedPolicy("teacher", renderer), 1.0))


@pytest.mark.parametrize("name", [name for name, form in FORMATS.items() if form.write])
def test_a_patch_that_is_no_utf_8_survives_a_format(name: str, tmp_path: Path) -> None:
    patch = b"--- a/m.py\n+\xe9\n".decode("utf-8", "surrogateescape")
    out = tmp_path / ("out.jsonl" if name == "chat" else "out")
    assert write_trajectories([CALLING.model_copy(update={"patch": patch})], FORMATS[name], out) == 1
    (read,) = read_trajectories(out)
    assert isinstance(read, ExchangeTrajectory)
    assert read.patch == patch


@pytest.mark.parametrize("name", [name for name, form in FORMATS.items() if form.write])
def test_our_trajectories_survive_a_format(own: Trajectory, name: str, tmp_path: Path, renderer: ChatRenderer) -> None:
    trajectory = own
    written = from_trajectory(trajectory, renderer)
    form = FORMATS[name]
    out = tmp_path / ("out.jsonl" if name == "chat" else "out")
    assert write_trajectories([written], form, out) == 1
    (read,) = read_trajectories(out)
    assert isinstance(read, ExchangeTrajectory)
    document = json.loads(next(p for p in [out, *out.rglob("*")] if p.is_file()).read_text())
    assert detect_format(document) is form
    assert [step.text for step in read.steps] == [turn.action for turn in trajectory.turns]
    kept = len(read.steps) if name != "chat" else len(read.steps) - 1  # what follows the last answer teaches nothing
    assert [step.observation for step in read.steps][:kept] == [turn.observation for turn in trajectory.turns][:kept]
    assert read.opening == written.opening
    assert read.opening[0].text.startswith("f in m.py is wrong")
    assert read.patch == trajectory.final_patch


@pytest.mark.parametrize("name", ["mini_swe_agent", "atif", "swe_agent"])
def test_calls_stay_separate_from_the_text(name: str) -> None:
    read = FORMATS[name].read(json.loads(json.dumps(FORMATS[name].write(CALLING))), "x")
    assert read.steps == CALLING.steps
    assert (read.instance_id, read.exit_status, read.patch) == ("tiny-1", "submitted", "--- a/m.py\n")


def mini_document(**changes: Any) -> dict[str, Any]:
    """As mini-swe-agent 2.4 writes it, cut down."""
    call = {"id": "c1", "type": "function", "function": {"name": "bash", "arguments": '{"command": "ls"}'}}
    return {
        "info": {
            "model_stats": {"instance_cost": 0.0, "api_calls": 1},
            "config": {"model": {"model_name": "openai/tiny"}},
            "exit_status": "Submitted",
            "submission": "--- a/m.py\n+++ b/m.py\n",
        },
        "messages": [
            {"role": "system", "content": "You are a helpful assistant."},
            {"role": "user", "content": "Please solve this issue"},
            {"role": "assistant", "content": None, "tool_calls": [call], "extra": {"actions": [{"command": "ls"}]}},
            {"role": "tool", "tool_call_id": "c1", "content": '{"returncode": 0}', "extra": {}},
            {"role": "exit", "content": "bye", "extra": {"exit_status": "Submitted"}},
        ],
        "trajectory_format": "mini-swe-agent-1.1",
        **changes,
    }


SWE_AGENT = {
    "trajectory": [
        {"action": "ls", "observation": "m.py", "response": "I look.\n```\nls\n```", "thought": "I look.", "state": {}},
        {"action": "", "observation": "", "response": "", "thought": "Exit due to cost"},
    ],
    "history": [
        {"role": "system", "content": "You are.", "message_type": "system_prompt"},
        {"role": "user", "content": "a demonstration", "is_demo": True},
        {"role": "user", "content": [{"type": "text", "text": "f is wrong"}], "message_type": "observation"},
        {"role": "assistant", "content": "I look."},
    ],
    "info": {"exit_status": "submitted (exit_cost)", "submission": None},
}


def test_files_of_other_agents(tmp_path: Path) -> None:
    (tmp_path / "tiny-1").mkdir()
    (tmp_path / "tiny-1" / "tiny-1.traj.json").write_text(json.dumps(mini_document()))
    (tmp_path / "tiny-2.traj").write_text(json.dumps(SWE_AGENT))
    (tmp_path / "rows.jsonl").write_text('{"messages": [{"role": "user", "content": "x"}]}\n[1]\n')
    (tmp_path / "notes.md").write_text("nothing to do with it")
    documents = list(read_trajectories(tmp_path))
    bad = [document for document in documents if isinstance(document, BadDocument)]
    mini, swe = (document for document in documents if isinstance(document, ExchangeTrajectory))
    assert [document.reason for document in bad] == ["no instance_id", "not a JSON object"]
    assert bad[1].place.endswith("rows.jsonl, line 2")
    assert (mini.instance_id, mini.model, mini.exit_status) == ("tiny-1", "openai/tiny", "Submitted")
    assert mini.steps[0].calls == (ToolCall(name="bash", arguments={"command": "ls"}),)
    assert mini.steps[0].observation == '{"returncode": 0}'
    assert (swe.instance_id, len(swe.steps)) == ("tiny-2", 1)
    assert [message.text for message in swe.opening] == ["You are.", "f is wrong"]


INSPECT = {
    "eval": {"model": "mockllm/model"},
    "samples": [
        {
            "id": "tiny-1",
            "epoch": 2,
            "messages": [
                {"role": "system", "content": "Repair."},
                {"role": "user", "content": "f is wrong"},
                {
                    "role": "assistant",
                    "content": [{"type": "text", "text": "I look."}],
                    "tool_calls": [{"id": "c1", "function": "bash", "arguments": {"cmd": "ls"}}],
                },
                {"role": "tool", "content": "m.py", "function": "bash"},
            ],
            "scores": {},
            "output": {"model": "mockllm/model"},
            "metadata": {"patch": "--- a/m.py"},
        }
    ],
}


def test_dumps_of_trainers_and_logs_of_inspect_are_read(tmp_path: Path) -> None:
    log = tmp_path / "log.json"
    log.write_text(json.dumps(INSPECT))
    (sample,) = read_trajectories(log)
    assert isinstance(sample, ExchangeTrajectory)
    assert sample.id.startswith("tiny-1#2-")
    assert (sample.instance_id, sample.agent, sample.patch) == ("tiny-1", "inspect", "--- a/m.py")
    assert sample.steps == (
        Step(text="I look.", calls=(ToolCall(name="bash", arguments={"cmd": "ls"}),), observation="m.py"),
    )
    dump = {"input": "user\nf is wrong", "output": "edit\nuser\npassed", "gts": None, "score": 1.0, "step": 12}
    (tmp_path / "12.jsonl").write_text(json.dumps(dump) + "\n")
    prompt = [{"role": "user", "content": "f is wrong"}]
    rows = [{"step": 3, "prompt": prompt, "completion": [{"role": "assistant", "content": "edit"}], "advantage": 0.5}]
    parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "completions_00003.parquet")
    verl, trl = (each for each in read_trajectories(tmp_path) if isinstance(each, ExchangeTrajectory))
    assert (verl.agent, verl.instance_id, verl.steps[0].text) == ("verl", "12.jsonl-1", "edit\nuser\npassed")
    assert (trl.agent, trl.opening[0].text, trl.steps[0].text) == ("trl", "f is wrong", "edit")
    with pytest.raises(ConfigError, match="only read"):
        write_trajectories([verl], FORMATS["verl"], tmp_path / "out.jsonl")
    (tmp_path / "log.eval").write_bytes(b"PK")
    with pytest.raises(InputError, match="inspect log convert"):
        list(read_trajectories(tmp_path / "log.eval"))


def test_without_tasks_everything_is_stored_to_be_read_and_nothing_else(tmp_path: Path, renderer: ChatRenderer) -> None:
    with RunStore.create(tmp_path / "run.db") as store:
        done = import_trajectories([CALLING], store, None, renderer)
        (stored,) = store.trajectories(phase="import/unknown")
    assert (done.num_stored, stored.task_id, stored.verdict.kind) == (1, "tiny-1", VerdictKind.INVALID)
    with pytest.raises(ValueError, match="policy"):
        policy_sample(stored, 1.0)


@pytest.mark.parametrize(
    "document",
    [
        mini_document(messages="none"),
        mini_document(messages=[]),
        mini_document(messages=[{"content": "x"}]),
        mini_document(messages=[{"role": "assistant", "content": 3}]),
        mini_document(messages=[{"role": "assistant", "tool_calls": [{"function": 1}]}]),
        mini_document(info=[]),
        SWE_AGENT | {"trajectory": [3]},
        SWE_AGENT | {"history": [3]},
        {"schema_version": "ATIF-v1.7", "agent": {"name": "a"}, "steps": [{"source": "agent", "tool_calls": [{}]}]},
        {"schema_version": "ATIF-v1.7", "agent": {"name": "a"}, "steps": []},
        {"something": "else"},
    ],
)
def test_malformed_documents_are_named(document: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "x.traj"
    path.write_text(json.dumps(document))
    (document,) = read_trajectories(path)
    assert isinstance(document, BadDocument)
    assert document.reason
    with pytest.raises(InputError, match="holds no trajectory"):
        list(read_trajectories(tmp_path / "nowhere"))


def test_imports_can_only_be_imitated(store: RunStore, task: Task, renderer: ChatRenderer) -> None:
    other = CALLING.model_copy(update={"id": "e-2", "instance_id": "nobody-knows"})
    held_out = CALLING.model_copy(update={"id": "e-3", "instance_id": "tiny-test"})
    tasks = {"tiny-1": task, "tiny-test": task.model_copy(update={"id": "tiny-test", "split": "test"})}
    done = import_trajectories([CALLING, other, held_out], store, tasks, renderer)
    again = import_trajectories([CALLING], store, tasks, renderer)
    assert (done.num_stored, done.verdicts, len(done.bad)) == (2, {"invalid": 2}, 1)
    assert (again.num_stored, again.num_known) == (0, 1)
    (stored,) = store.trajectories(phase="import")
    assert stored.verdict.kind is VerdictKind.INVALID
    assert stored.stop_reason is StopReason.SUBMITTED
    messages = renderer.messages(stored.ledger.token_id.tolist())
    assert [message.role for message in messages] == ["system", "user", "assistant", "user", "assistant"]
    assert messages[2].text == 'I look.\n<tool_call>\n{"name": "bash", "arguments": {"command": "ls"}}\n</tool_call>'
    sample = supervised_sample(stored)
    learned = renderer.text(stored.ledger.token_id[sample.weight > 0].tolist())
    assert learned.startswith("I look.")
    assert "m.py" not in learned
    with pytest.raises(ValueError, match="policy-gradient samples must come from a policy that returns them"):
        policy_sample(stored, 1.0)


def test_atif_keeps_sampled_tokens(trajectory_maker: Callable[..., Trajectory], renderer: ChatRenderer) -> None:
    trajectory = trajectory_maker()
    exchanged = from_trajectory(trajectory, renderer)
    steps = [step for step in FORMATS["atif"].write(exchanged)["steps"] if step["source"] == "agent"]
    for step, turn in zip(steps, trajectory.turns, strict=True):
        start, end = turn.action_span
        assert step["metrics"]["completion_token_ids"] == trajectory.ledger.token_id[start:end].tolist()
        assert step["metrics"]["prompt_tokens"] == start
        assert len(step["metrics"]["logprobs"]) == end - start


def _prime_rl_trace(renderer: ChatRenderer) -> dict[str, object]:
    parts = [("user", "f is wrong", False), ("assistant", "edit it", True), ("user", "passed", False)]
    parts.append(("assistant", "submit", True))
    nodes = []
    for number, (role, text, sampled) in enumerate(parts):
        ids = renderer.action_ids(text)
        log_probs = [-0.5] * len(ids) if sampled else []
        node = {"parent": number - 1 if number else None, "sampled": sampled, "token_ids": ids, "logprobs": log_probs}
        nodes.append({**node, "mask": [sampled] * len(ids), "message": {"role": role, "content": text}})
    abandoned = {**nodes[1], "message": {"role": "assistant", "content": "another branch"}}
    data = {"instance_id": "tiny-1"}
    return {
        "id": "trace",
        "task": {"data": data},
        "rewards": {},
        "nodes": [*nodes[:1], abandoned, *_shifted(nodes[1:])],
    }


def _shifted(nodes: list[dict[str, object]]) -> list[dict[str, object]]:
    return [{**node, "parent": 0 if number == 0 else number + 1} for number, node in enumerate(nodes)]


def test_tokens_and_masks_of_trainers_are_kept_where_the_tokenizer_gives_their_text(
    tmp_path: Path, renderer: ChatRenderer
) -> None:
    (tmp_path / "train_rollouts.jsonl").write_text(json.dumps(_prime_rl_trace(renderer)) + "\n")
    context, action = renderer.action_ids("f is wrong"), renderer.action_ids("edit it")
    sample = {"prompt": "f is wrong", "response": "edit it", "tokens": context + action, "response_length": len(action)}
    logged = {"rollout_log_probs": [-0.25] * len(action), "loss_mask": None, "metadata": {"instance_id": "tiny-2"}}
    torch.save({"rollout_id": 1, "samples": [{**sample, **logged}, {**sample, "loss_mask": [1]}]}, tmp_path / "1.pt")
    (traced,) = read_trajectories(tmp_path)
    sampled, bad = read_trajectories(tmp_path / "1.pt")
    assert isinstance(traced, ExchangeTrajectory)
    assert isinstance(sampled, ExchangeTrajectory)
    assert isinstance(bad, BadDocument)
    assert [step.text for step in traced.steps] == ["edit it", "submit"]
    assert (traced.instance_id, sampled.instance_id) == ("tiny-1", "tiny-2")
    one, two = (to_trajectory(each, None, renderer) for each in (traced, sampled))
    assert one.ledger.token_id.tolist() == list(traced.dump.token_ids if traced.dump else ())
    assert [turn.observation.strip().startswith("passed") for turn in one.turns] == [True, False]
    assert two.ledger.is_action.tolist() == [False] * len(context) + [True] * len(action)
    assert set(two.ledger.log_prob[two.ledger.is_action].tolist()) == {-0.25}
    # A file whose ids mean something else here is read as text.
    assert sampled.dump is not None
    foreign = sampled.dump.model_copy(update={"token_ids": tuple(reversed(sampled.dump.token_ids))})
    encoded = to_trajectory(sampled.model_copy(update={"dump": foreign}), None, renderer)
    assert encoded.turns[0].action == "edit it"
    assert encoded.ledger.token_id.tolist() != list(foreign.token_ids)
    torch.save({"samples": [Path("x")]}, tmp_path / "code.pt")
    with pytest.raises(InputError, match="without running code"):
        list(read_trajectories(tmp_path / "code.pt"))

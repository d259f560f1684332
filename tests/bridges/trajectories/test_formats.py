"""Documents of other agents: what their answers say and call, and the ids that keep episodes apart."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from repairgym.bridges.trajectories.base import ExchangeTrajectory, FormatError, Step, ToolCall
from repairgym.bridges.trajectories.files import BadDocument, read_trajectories, write_trajectories
from repairgym.bridges.trajectories.formats import FORMATS
from repairgym.inference.chat_template import Message


def called(name: str, **arguments: Any) -> dict[str, Any]:
    return {"id": "c", "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}


def calling_document() -> dict[str, Any]:
    """As SWE-agent writes it with function calling, its default, cut down."""
    answers = [("", [called("bash", command="ls")], "m.py"), ("Let me look.", [called("view", path="m.py")], "f = 1")]
    history: list[dict[str, Any]] = [
        {"role": "system", "content": "You are."},
        {"role": "user", "content": "a demonstration", "is_demo": True},
        {"role": "assistant", "content": "as this", "is_demo": True},
        {"role": "user", "content": "f is wrong"},
    ]
    steps = []
    for text, calls, observation in answers:
        history.append({"role": "assistant", "content": text, "tool_calls": calls, "thought": text})
        history.append({"role": "tool", "content": observation, "tool_call_ids": ["c"]})
        steps.append({"action": "as a command line", "response": text, "observation": observation, "thought": text})
    history.append({"role": "assistant", "content": "", "tool_calls": None, "thought": "Exit due to cost"})
    history.append({"role": "user", "content": "no output"})
    steps.append({"action": "submit", "response": "", "observation": "", "thought": "Exit due to cost"})
    return {"trajectory": steps, "history": history, "info": {"exit_status": "submitted (exit_cost)"}}


def test_calls_of_swe_agent_are_kept() -> None:
    read = FORMATS["swe_agent"].read(calling_document(), "tiny-1")
    assert read.steps == (
        Step(text="", calls=(ToolCall(name="bash", arguments={"command": "ls"}),), observation="m.py"),
        Step(text="Let me look.", calls=(ToolCall(name="view", arguments={"path": "m.py"}),), observation="f = 1"),
    )
    assert [message.text for message in read.opening] == ["You are.", "f is wrong"]


def test_a_step_with_an_action_alone_is_an_answer() -> None:
    document = calling_document() | {"history": []}
    document["trajectory"] = [{"action": "ls", "response": "", "observation": "m.py"}]
    assert FORMATS["swe_agent"].read(document, "x").steps == (Step(text="ls", observation="m.py"),)


def test_parts_of_anthropic_are_calls_and_results() -> None:
    use = {"type": "tool_use", "id": "t", "name": "bash", "input": {"command": "ls"}}
    result = {"type": "tool_result", "tool_use_id": "t", "content": [{"type": "text", "text": "m.py"}]}
    thought = {"type": "thinking", "thinking": "secret"}
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": "f is wrong"},
        {"role": "assistant", "content": [thought, {"type": "text", "text": "hm"}, use]},
        {"role": "user", "content": [result, result, {"type": "text", "text": "go "}, {"type": "text", "text": "on"}]},
    ]
    read = FORMATS["chat"].read({"messages": messages, "instance_id": "tiny-1"}, "x")
    (call,) = read.steps[0].calls
    assert (call.name, call.arguments) == ("bash", {"command": "ls"})
    assert (read.steps[0].text, read.steps[0].observation) == ("hm", "m.py\nm.py\ngo on")
    messages[0]["content"] = [{"type": "image_url", "image_url": {"url": "data:"}}]
    with pytest.raises(FormatError, match="image_url"):
        FORMATS["chat"].read({"messages": messages, "instance_id": "tiny-1"}, "x")


@pytest.mark.parametrize("name", ["atif", "chat", "inspect", "mini_swe_agent", "swe_agent", "verl"])
def test_two_attempts_at_one_instance_have_two_ids(name: str) -> None:
    def read(answer: str) -> ExchangeTrajectory:
        messages = [{"role": "user", "content": "f is wrong"}, {"role": "assistant", "content": answer}]
        documents: dict[str, dict[str, Any]] = {
            "atif": {"agent": {"name": "a"}, "steps": [{"source": "agent", "message": answer}]},
            "chat": {"messages": messages, "instance_id": "tiny-1"},
            "inspect": {"id": "tiny-1", "epoch": 1, "messages": messages},
            "mini_swe_agent": {"messages": messages, "info": {}},
            "swe_agent": {"trajectory": [{"response": answer}], "info": {}},
            "verl": {"input": "f is wrong", "output": answer, "instance_id": "tiny-1"},
        }
        return FORMATS[name].read(documents[name], "tiny-1")

    first, again, other = read("edit"), read("edit"), read("undo")
    assert {each.instance_id for each in (first, again, other)} == {"tiny-1"}
    assert first.id == again.id != other.id


def test_separators_of_unicode_end_no_line(tmp_path: Path) -> None:
    text = "a\u2028b\u2029c\x85d\x0ce"
    steps = (Step(text="look", observation=text), Step(text=text))
    written = ExchangeTrajectory(
        id="e", instance_id="t", opening=(Message("user", text),), steps=steps, exit_status="", patch="", agent=""
    )
    write_trajectories([written, written], FORMATS["chat"], tmp_path / "out.jsonl")
    assert list(read_trajectories(tmp_path / "out.jsonl")) == [written, written]


def test_unusable_documents_and_files_hide_no_other(tmp_path: Path) -> None:
    messages = [{"role": "assistant", "content": "edit"}]
    sample = {"id": "tiny-1", "epoch": 1, "messages": messages, "scores": {}}
    log = tmp_path / "log.json"
    log.write_text(json.dumps({"eval": {}, "samples": [{"epoch": 1}, 3, sample]}))
    no_id, no_object, found = read_trajectories(log)
    assert isinstance(found, ExchangeTrajectory)
    assert [each.place for each in (no_id, no_object) if isinstance(each, BadDocument)] == [
        f"{log}, sample number 1",
        f"{log}, sample number 2",
    ]
    (tmp_path / "damaged.parquet").write_bytes(b"PAR1 and no more")
    (tmp_path / "rows.jsonl").write_text(json.dumps({"messages": messages, "instance_id": "tiny-1"}))
    damaged, row = read_trajectories(tmp_path)
    assert isinstance(damaged, BadDocument)
    assert damaged.place.endswith("damaged.parquet")
    assert isinstance(row, ExchangeTrajectory)

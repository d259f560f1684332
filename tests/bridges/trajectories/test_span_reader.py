"""Spans of other programs as trajectories.

The files in ``fixtures`` were written by instrumentations of others around the openai client (openinference 0.1.66,
OpenLLMetry 0.62.4): a call that asks for a tool, and the call with the tool's answer.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from repairgym.bridges.trajectories.base import FormatError
from repairgym.bridges.trajectories.files import BadDocument, import_trajectories, read_trajectories
from repairgym.bridges.trajectories.span_reader import add_spans, read_trace
from repairgym.bridges.trajectories.spans import write_spans
from repairgym.rollout.store import RunStore

FIXTURES = Path(__file__).parent / "fixtures"


@pytest.mark.parametrize("name", ["openinference", "openllmetry"])
def test_traces_of_other_instrumentations_are_read(name):
    (found,) = read_trajectories(FIXTURES / f"{name}.json")
    assert [(role, text) for role, text, _ in found.opening] == [
        ("system", "You repair code."),
        ("user", "add() returns 3."),
    ]
    first, last = found.steps
    assert (first.text, first.observation) == ("I look first.", "def add(a, b): return 3")
    assert [(call.name, call.arguments) for call in first.calls] == [("bash", {"command": "cat m.py"})]
    assert (last.text, last.calls, last.observation) == ("Fixed.", (), "")
    assert (found.instance_id, found.model, found.agent) == ("pkg-1.0-fix-1", "tiny", "their-agent")
    assert first.duration_s > 0


def test_a_trace_in_several_lines_is_one_trajectory(tmp_path):
    (resource,) = json.loads((FIXTURES / "openllmetry.json").read_text())["resourceSpans"]
    parts = [(scope["scope"], span) for scope in resource["scopeSpans"] for span in scope["spans"]]
    lines = [
        json.dumps({"resourceSpans": [{**resource, "scopeSpans": [{"scope": scope, "spans": [span]}]}]})
        for scope, span in reversed(parts)
    ]
    (tmp_path / "spans.jsonl").write_text("\n".join(lines))
    assert [*read_trajectories(tmp_path / "spans.jsonl")] == [*read_trajectories(FIXTURES / "openllmetry.json")]


def test_our_own_spans_come_back(tmp_path, trajectory_maker, renderer):
    one = trajectory_maker(steps=(("edit", "@1", "changed", ""), ("submit", "", "", "")))
    assert write_spans([(one, "2026-11-23T12:00:00.250+00:00")], tmp_path / "spans.jsonl") == 1
    (found,) = read_trajectories(tmp_path / "spans.jsonl")
    assert [(step.text, step.observation) for step in found.steps] == [
        (turn.action, turn.observation) for turn in one.turns
    ]
    assert (found.instance_id, found.patch) == (one.task_id, one.final_patch)
    assert found.exit_status == one.stop_reason.value
    with RunStore.create(tmp_path / "run.db") as store:
        done = import_trajectories([found], store, None, renderer)
        assert (done.num_stored, done.bad) == (1, [])


def test_spans_without_messages_are_reported(tmp_path):
    document = json.loads((FIXTURES / "openllmetry.json").read_text())
    for scope in document["resourceSpans"][0]["scopeSpans"]:
        for span in scope["spans"]:
            span["attributes"] = [each for each in span["attributes"] if "messages" not in each["key"]]
    traces: dict[str, dict[str, Any]] = {}
    add_spans(traces, document)
    (trace,) = traces.values()
    with pytest.raises(FormatError, match="no call of a model with its messages"):
        read_trace(trace, "x")
    (tmp_path / "spans.json").write_text(json.dumps(document))
    (bad,) = read_trajectories(tmp_path / "spans.json")
    assert isinstance(bad, BadDocument)
    assert "no call of a model" in bad.reason


def test_a_malformed_message_hides_no_other(tmp_path):
    good = json.loads((FIXTURES / "openllmetry.json").read_text())
    bad = json.loads(json.dumps(good))
    bad["resourceSpans"][0]["scopeSpans"][0]["spans"][-1].pop("traceId")
    (tmp_path / "spans.jsonl").write_text(f"{json.dumps(bad)}\n{json.dumps(good)}\n")
    reported, found = read_trajectories(tmp_path / "spans.jsonl")
    assert isinstance(reported, BadDocument)
    assert reported.place.endswith("line 1")
    assert found == next(iter(read_trajectories(FIXTURES / "openllmetry.json")))

"""Trajectories as spans: one trace each, parts that follow each other, the convention's names."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest

from repairgym.bridges.trajectories.spans import traces_data, write_spans
from repairgym.records import Trajectory, VerdictKind

STORED_AT = "2026-11-23T12:00:00.250+00:00"
SECOND = 1_000_000_000


def spans_of(trajectory: Trajectory) -> list[dict[str, Any]]:
    (resource,) = traces_data(trajectory, STORED_AT)["resourceSpans"]
    (scope,) = resource["scopeSpans"]
    spans: list[dict[str, Any]] = scope["spans"]
    return spans


def values_of(span: dict[str, Any]) -> dict[str, Any]:
    return {each["key"]: next(iter(each["value"].values())) for each in span["attributes"]}


def times(span: dict[str, Any]) -> tuple[int, int]:
    return int(span["startTimeUnixNano"]), int(span["endTimeUnixNano"])


@pytest.fixture
def trajectory(trajectory_maker) -> Trajectory:
    durations_s = {"queue": 0.53, "generate": 0.03, "tool": 0.06, "other": 1.0, "grade": 2.0}
    found = trajectory_maker(
        steps=(("edit", "@1", "changed", ""), ("", "", "error: unreadable", "format"), ("submit", "", "ok", ""))
    )
    return Trajectory(**{**found.__dict__, "durations_s": durations_s})


def test_an_episode_is_one_trace_whose_parts_follow_each_other(trajectory):
    episode, *parts = spans_of(trajectory)
    assert [part["name"] for part in parts] == [
        "queue",
        "chat tiny",
        "execute_tool edit",
        "chat tiny",
        "execute_tool (unreadable action)",
        "chat tiny",
        "execute_tool submit",
        "environment",
        "grade",
    ]
    assert {span["traceId"] for span in (episode, *parts)} == {episode["traceId"]}
    assert all(part["parentSpanId"] == episode["spanId"] for part in parts)
    assert (len(episode["traceId"]), {len(part["spanId"]) for part in parts}) == (32, {16})
    assert len({part["spanId"] for part in parts}) == len(parts)
    start, end = times(episode)
    assert end == int(datetime(2026, 11, 23, 12, tzinfo=UTC).timestamp()) * SECOND + SECOND // 4
    assert end - start == round(3.59 * SECOND)
    for part in parts:
        assert times(part)[0] == start
        start = times(part)[1]
    assert start == end


def test_attributes_have_the_names_of_the_convention(trajectory):
    episode, *parts = spans_of(trajectory)
    assert values_of(episode)["gen_ai.operation.name"] == "invoke_agent"
    assert values_of(episode)["repairgym.reward"] == 1.0
    chat = values_of(parts[1])
    assert (chat["gen_ai.operation.name"], chat["gen_ai.request.model"]) == ("chat", "tiny")
    first, last = trajectory.turns[0].action_span
    assert (chat["gen_ai.usage.input_tokens"], chat["gen_ai.usage.output_tokens"]) == (str(first), str(last - first))
    (message,) = json.loads(chat["gen_ai.output.messages"])
    assert message["parts"][0]["content"] == trajectory.turns[0].action
    tool = values_of(parts[2])
    assert (tool["gen_ai.operation.name"], tool["gen_ai.tool.name"]) == ("execute_tool", "edit")
    assert tool["gen_ai.tool.call.result"] == "changed"
    unreadable = parts[4]
    assert (values_of(unreadable)["error.type"], unreadable["status"]) == ("format", {"code": 2})


def test_an_episode_without_a_verdict_is_an_error_without_a_reward(trajectory_maker):
    episode, *_ = spans_of(trajectory_maker(kind=VerdictKind.INVALID))
    assert episode["status"]["code"] == 2
    assert "repairgym.reward" not in values_of(episode)


def test_a_file_has_one_trace_per_line_and_equal_ids_each_time(trajectory_maker, tmp_path):
    stored = [(trajectory_maker(f"t-{number}"), STORED_AT) for number in (1, 2)]
    assert write_spans(stored, tmp_path / "a.jsonl") == 2
    write_spans(stored, tmp_path / "b.jsonl")
    text = (tmp_path / "a.jsonl").read_text()
    assert text == (tmp_path / "b.jsonl").read_text()
    ids = [json.loads(line)["resourceSpans"][0]["scopeSpans"][0]["spans"][0]["traceId"] for line in text.splitlines()]
    assert len(set(ids)) == 2

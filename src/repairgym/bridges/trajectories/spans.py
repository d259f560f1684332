"""Stored trajectories as OpenTelemetry spans (`gen_ai.*`), in OTLP's JSON form, without an SDK.

Reads trajectories and the times when they were stored; makes one trace each: ``invoke_agent`` over the whole episode,
below it its parts in their order: the wait for a place, ``chat`` and ``execute_tool`` of each turn, the other work of
the environment, grading. Guarantees: equal trajectories give equal ids, so a second export adds nothing; the parts
follow each other without overlap and end when the episode was stored; what a part took is the recorded duration.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

from repairgym import __version__
from repairgym.bridges.trajectories.base import prompt_length
from repairgym.records import Trajectory, Turn, VerdictKind
from repairgym.tasks.layers.atomic_write import written_whole

_INTERNAL, _CLIENT = 1, 3
_OK, _ERROR = 1, 2
_SYSTEM = "repairgym"
_NS = 1_000_000_000


def write_spans(trajectories: Iterable[tuple[Trajectory, str]], out: Path) -> int:
    """Write one trace per line, as the OpenTelemetry collector's file receiver reads them; returns their number.

    Each trajectory comes with the time when it was stored, in ISO 8601.
    """
    count = 0
    with written_whole(out) as stream:
        for trajectory, stored_at in trajectories:
            stream.write(json.dumps(traces_data(trajectory, stored_at)).encode() + b"\n")
            count += 1
    return count


def traces_data(trajectory: Trajectory, stored_at: str) -> dict[str, Any]:
    """Return the spans of one trajectory as a message ``TracesData``."""
    resource = {"attributes": _attributes({"service.name": _SYSTEM, "service.version": __version__})}
    scope = {"name": "repairgym.trajectories", "version": __version__}
    spans = list(make_spans(trajectory, stored_at))
    return {"resourceSpans": [{"resource": resource, "scopeSpans": [{"scope": scope, "spans": spans}]}]}


def make_spans(trajectory: Trajectory, stored_at: str) -> Iterator[dict[str, Any]]:
    """Yield the spans of one trajectory, that of the episode first."""
    parts = list(_parts(trajectory))
    end = _nanoseconds(stored_at)
    clock = end - sum(duration_ns for _, _, duration_ns, _, _ in parts)
    trace_id = _id(trajectory.id, 16)
    root_id = _id(f"{trajectory.id}/episode", 8)
    is_error = trajectory.verdict.kind is VerdictKind.INVALID
    yield _span(trace_id, root_id, "", f"invoke_agent {trajectory.pipeline}", _INTERNAL, clock, end) | {
        "attributes": _attributes(_episode_attributes(trajectory)),
        "status": {"code": _ERROR, "message": trajectory.verdict.reason} if is_error else {"code": _OK},
    }
    for number, (name, kind, duration_ns, values, is_failed) in enumerate(parts):
        span_id = _id(f"{trajectory.id}/{number}", 8)
        yield _span(trace_id, span_id, root_id, name, kind, clock, clock + duration_ns) | {
            "attributes": _attributes(values),
            "status": {"code": _ERROR} if is_failed else {},
        }
        clock += duration_ns


Part = tuple[str, int, int, dict[str, Any], bool]
"""Name, kind, nanoseconds, attributes, True after a mistake of the agent."""


def _parts(trajectory: Trajectory) -> Iterator[Part]:
    durations, turns = trajectory.durations_s, trajectory.turns
    # `queue` also counts the wait for the engine, which is a part of `generate`.
    engine_s = durations.get("generate", 0.0) - durations.get("prefill", 0.0) - durations.get("decode", 0.0)
    if queue_ns := _ns(max(0.0, durations.get("queue", 0.0) - max(0.0, engine_s))):
        yield "queue", _INTERNAL, queue_ns, {}, False
    for number, turn in enumerate(turns):
        yield _chat(trajectory, number)
        if turn.tool or turn.tool_s:
            yield _tool(trajectory.id, number, turn)
    rest_s = sum(durations.get(stage, 0.0) for stage in ("generate", "tool", "other"))
    rest_s -= sum(turn.generate_s + turn.tool_s for turn in turns)
    if rest_ns := _ns(max(0.0, rest_s)):
        yield "environment", _INTERNAL, rest_ns, {}, False
    if "grade" in durations:
        verdict = {"repairgym.verdict": trajectory.verdict.kind.value}
        yield "grade", _INTERNAL, _ns(durations["grade"]), verdict, False


def _chat(trajectory: Trajectory, number: int) -> Part:
    turn = trajectory.turns[number]
    start, end = turn.action_span
    output = [{"role": "assistant", "parts": [{"type": "text", "content": turn.action}], "finish_reason": "stop"}]
    values = {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": _SYSTEM,
        "gen_ai.request.model": trajectory.policy_id,
        "gen_ai.conversation.id": trajectory.id,
        "gen_ai.usage.input_tokens": prompt_length(trajectory.ledger, start),
        "gen_ai.usage.output_tokens": end - start,
        "gen_ai.output.messages": json.dumps(output),
    }
    return f"chat {trajectory.policy_id}", _CLIENT, _ns(turn.generate_s), values, False


def _tool(trajectory_id: str, number: int, turn: Turn) -> Part:
    name = turn.tool or "(unreadable action)"
    values = {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": name,
        "gen_ai.tool.type": "function",
        "gen_ai.tool.call.id": f"{trajectory_id}/{number}",
        "gen_ai.tool.call.arguments": json.dumps(turn.arguments),
        "gen_ai.tool.call.result": turn.observation,
    }
    if turn.error:
        values["error.type"] = turn.error
    return f"execute_tool {name}", _INTERNAL, _ns(turn.tool_s), values, bool(turn.error)


def _episode_attributes(trajectory: Trajectory) -> dict[str, Any]:
    verdict = trajectory.verdict
    values = {
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.provider.name": _SYSTEM,
        "gen_ai.agent.name": trajectory.pipeline,
        "gen_ai.request.model": trajectory.policy_id,
        "gen_ai.conversation.id": trajectory.id,
        "gen_ai.usage.output_tokens": int(trajectory.ledger.is_action.sum()),
        "repairgym.task_id": trajectory.task_id,
        "repairgym.group_id": trajectory.group_id,
        "repairgym.stop_reason": trajectory.stop_reason.value,
        "repairgym.verdict": verdict.kind.value,
        "repairgym.patch": trajectory.final_patch,
    }
    return values | ({"repairgym.reward": verdict.reward} if verdict.is_valid else {"error.type": "infrastructure"})


def _span(trace_id: str, span_id: str, parent: str, name: str, kind: int, start: int, end: int) -> dict[str, Any]:
    times = {"startTimeUnixNano": str(start), "endTimeUnixNano": str(end)}
    above = {"parentSpanId": parent} if parent else {}
    return {"traceId": trace_id, "spanId": span_id, **above, "name": name, "kind": kind, **times}


def _attributes(values: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"key": key, "value": _value(value)} for key, value in values.items()]


def _value(value: str | int | float) -> dict[str, Any]:
    if isinstance(value, str):
        return {"stringValue": value}
    return {"intValue": str(value)} if isinstance(value, int) else {"doubleValue": value}


def _id(text: str, num_bytes: int) -> str:
    return hashlib.sha256(text.encode()).digest()[:num_bytes].hex()


def _ns(seconds: float) -> int:
    return round(seconds * _NS)


def _nanoseconds(time: str) -> int:
    moment = datetime.fromisoformat(time)
    return int(moment.timestamp()) * _NS + moment.microsecond * 1000

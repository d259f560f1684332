"""Traces of other agents, in OTLP's JSON form, as trajectories: the way back of `spans`.

Reads what the collector's file exporter writes, with messages by the convention of OpenTelemetry
(``gen_ai.output.messages``) or OpenInference (``llm.output_messages.0.message.content``). Guarantees: a trace whose
spans are spread over several lines is one document; calls of the model are the turns, by their time; the observation
of a turn is what the tools returned until the next call, or else what the next call was told.
"""

import json
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any

from repairgym.bridges.trajectories.base import Document, ExchangeTrajectory, FormatError, Step, ToolCall
from repairgym.inference.chat_template import Message

_CALLS, _TOOLS = ("chat", "text_completion", "generate_content", "LLM"), ("execute_tool", "TOOL")
_LAYOUTS = (("gen_ai.input.messages", "gen_ai.output.messages"), ("llm.input_messages", "llm.output_messages"))
"""Attributes of the messages before an answer and of the answer, by convention."""


def is_spans(document: Document | None) -> bool:
    """Return True for a message ``TracesData``."""
    return document is not None and "resourceSpans" in document


def is_trace(document: Document) -> bool:
    """Return True for a trace that `add_spans` made."""
    return {"trace_id", "spans"} <= set(document)


def add_spans(traces: dict[str, dict[str, Any]], document: Document) -> None:
    """Add the spans of a message to ``traces``, by id; all of them, or none of a malformed message.

    Spans have their attributes as plain values.
    """
    added = []
    for resource in document["resourceSpans"]:
        service = _values((resource.get("resource") or {}).get("attributes")).get("service.name", "")
        for span in (span for scope in resource.get("scopeSpans") or () for span in scope.get("spans") or ()):
            values = {
                "start_ns": int(span["startTimeUnixNano"]),
                "end_ns": int(span.get("endTimeUnixNano") or span["startTimeUnixNano"]),
                "values": _values(span.get("attributes")),
            }
            added.append((str(span["traceId"]), service, values))
    for trace_id, service, values in added:
        traces.setdefault(trace_id, {"trace_id": trace_id, "service": service, "spans": []})["spans"].append(values)


def read_trace(document: Document, name: str) -> ExchangeTrajectory:
    """Read one trace; its text only, as tokens are in no convention."""
    spans = sorted(document["spans"], key=lambda span: span["start_ns"])
    calls = [span for span in spans if _kind(span) in _CALLS and _messages(span["values"], 1)]
    if not calls:
        raise FormatError("no call of a model with its messages; the program has to record them, too")
    tools = [span for span in spans if _kind(span) in _TOOLS]
    known = {key: value for span in reversed(spans) for key, value in span["values"].items()}
    steps = []
    for call, after in pairwise((*calls, None)):
        end_ns = after["start_ns"] if after else spans[-1]["end_ns"] + 1
        ran = [tool for tool in tools if call["start_ns"] <= tool["start_ns"] < end_ns]
        steps.append(_step(call, after, ran))
    return ExchangeTrajectory(
        id=str(document["trace_id"]),
        instance_id=str(known.get("repairgym.task_id") or known.get("instance_id") or name),
        opening=tuple(_opening(calls[0]["values"])),
        steps=tuple(steps),
        exit_status=str(known.get("repairgym.stop_reason") or ""),
        patch=str(known.get("repairgym.patch") or ""),
        model=str(known.get("gen_ai.request.model") or known.get("llm.model_name") or ""),
        agent=str(known.get("gen_ai.agent.name") or document.get("service") or "otel"),
    )


def _kind(span: Mapping[str, Any]) -> Any:
    return span["values"].get("gen_ai.operation.name") or span["values"].get("openinference.span.kind")


def _step(call: Mapping[str, Any], after: Mapping[str, Any] | None, tools: list[Mapping[str, Any]]) -> Step:
    texts, calls = zip(*map(_parts, _messages(call["values"], 1)), strict=True)
    results = [_result(tool["values"]) for tool in tools]
    told = _messages(after["values"], 0) if after else []
    last = max((place for place, message in enumerate(told) if message.get("role") == "assistant"), default=None)
    if not any(results) and last is not None:
        results = [_parts(message)[0] for message in told[last + 1 :]]
    return Step(
        text="\n".join(filter(None, texts)),
        calls=tuple(made for each in calls for made in each),
        observation="\n".join(filter(None, results)),
        duration_s=sum(span["end_ns"] - span["start_ns"] for span in (call, *tools)) / 1e9,
    )


def _opening(values: Mapping[str, Any]) -> Iterator[Message]:
    if instructions := values.get("gen_ai.system_instructions"):
        yield Message("system", _parts({"parts": _parsed(instructions)})[0])
    for message in _messages(values, 0):
        if message.get("role") == "assistant":
            return
        yield Message("system" if message.get("role") == "system" else "user", _parts(message)[0])


def _messages(values: Mapping[str, Any], side: int) -> list[Mapping[str, Any]]:
    """Return the messages before a call (``side`` 0) or of its answer (1), in the convention that the span follows."""
    for layout in _LAYOUTS:
        messages = _parsed(values.get(layout[side])) or _listed(values, f"{layout[side]}.")
        if messages:
            return [each.get("message", each) for each in messages if isinstance(each, Mapping)]
    return []


def _listed(values: Mapping[str, Any], prefix: str) -> list[Any]:
    """Return what flat names such as ``PREFIX0.message.content`` spell out."""
    tree: dict[str, Any] = {}
    for name, value in values.items():
        if name.startswith(prefix):
            *path, last = name.removeprefix(prefix).split(".")
            node = tree
            for part in path:
                node = node.setdefault(part, {})
            node[last] = value
    return [tree[number] for number in sorted(tree, key=int)]


def _parts(message: Mapping[str, Any]) -> tuple[str, list[ToolCall]]:
    """Return the text of a message and its calls."""
    texts, calls = [], []
    for part in message.get("parts") or ():
        if part.get("type") == "tool_call":
            calls.append(_call(part))
        else:
            texts.append(_as_text(part.get("content", part.get("response"))))
    for _, each in sorted((message.get("tool_calls") or {}).items()):
        calls.append(_call(each["tool_call"]["function"]))
    texts += [_as_text(message["content"])] if "content" in message else []
    return "\n".join(filter(None, texts)), calls


def _call(values: Mapping[str, Any]) -> ToolCall:
    arguments = _parsed(values.get("arguments"))
    given = arguments if isinstance(arguments, dict) else {"arguments": values.get("arguments")}
    return ToolCall(name=str(values.get("name") or ""), arguments=given)


def _result(values: Mapping[str, Any]) -> str:
    return _as_text(values.get("gen_ai.tool.call.result", values.get("output.value")))


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else "" if value is None else json.dumps(value, ensure_ascii=False)


def _parsed(value: Any) -> Any:
    """Return a structure that may be written as JSON; None where it is no structure."""
    try:
        value = json.loads(value) if isinstance(value, str) else value
    except ValueError:
        return None
    return value if isinstance(value, list | dict) else None


def _values(attributes: Any) -> dict[str, Any]:
    return {str(each["key"]): _value(each.get("value") or {}) for each in attributes or ()}


def _value(value: Mapping[str, Any]) -> Any:
    kind: str
    content: Any
    kind, content = next(iter(value.items()), ("", None))
    if kind == "arrayValue":
        return [_value(each) for each in content.get("values") or ()]
    if kind == "kvlistValue":
        return _values(content.get("values"))
    return int(content) if kind == "intValue" else content

"""Formats of trajectories, as functions from documents to `ExchangeTrajectory` and back.

ATIF is Harbor's trajectory format (versions 1.0 to 1.8)::

    {"schema_version": "ATIF-v1.6", "session_id": ..., "agent": {...}, "steps": [...]}

SWE-agent's ``.traj`` has steps, the messages sent, and the result: ``{"trajectory": [...], "history": [...],
"info": {...}}``. mini-swe-agent's ``.traj.json`` (1 and 1.1) and chat messages for SFT (SWE-smith's rows and others)
hold one message list: ``{"messages": [...], ...}``. Only read: samples of Inspect's logs, verl's dumps of rollouts,
TRL's logs of completions (the last two are one text each, whatever turns it has), slime's and prime-rl's (`dumps`),
and OpenTelemetry's spans (`span_reader`).
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from repairgym import __version__
from repairgym.bridges.trajectories.base import (
    Document,
    ExchangeTrajectory,
    FormatError,
    Step,
    ToolCall,
    TrajectoryFormat,
    id_of_text,
)
from repairgym.bridges.trajectories.contents import calls_of, text_of
from repairgym.bridges.trajectories.dumps import is_prime_rl, is_slime, read_prime_rl, read_slime
from repairgym.bridges.trajectories.span_reader import is_trace, read_trace
from repairgym.inference.chat_template import Message

_ATIF_VERSION = "ATIF-v1.6"
"""The oldest version with every field that is written here, for older readers."""
_MINI_VERSION = "mini-swe-agent-1"


# --- ATIF ---


def _is_atif(document: Document) -> bool:
    return str(document.get("schema_version", "")).startswith("ATIF-v1.")


def _write_atif(trajectory: ExchangeTrajectory) -> dict[str, Any]:
    """Write tokens and log-probabilities, too, where they are known."""
    steps: list[dict[str, Any]] = [{"source": role, "message": text} for role, text, _ in trajectory.opening]
    steps += [_atif_step(step) for step in trajectory.steps]
    sampled = [step.tokens for step in trajectory.steps if step.tokens]
    metrics: dict[str, Any] = {"total_steps": len(steps)}
    if len(sampled) == len(trajectory.steps):
        metrics["total_prompt_tokens"] = sum(tokens.prompt_length for tokens in sampled)
        metrics["total_completion_tokens"] = sum(len(tokens.token_ids) for tokens in sampled)
    return {
        "schema_version": _ATIF_VERSION,
        "session_id": trajectory.id,
        "agent": {"name": trajectory.agent, "version": __version__, "model_name": trajectory.model},
        "steps": [{"step_id": number, **step} for number, step in enumerate(steps, 1)],
        "final_metrics": metrics,
        "extra": {
            "instance_id": trajectory.instance_id,
            "exit_status": trajectory.exit_status,
            "patch": trajectory.patch,
            "is_resolved": trajectory.is_resolved,
        },
    }


def _atif_step(step: Step) -> dict[str, Any]:
    written: dict[str, Any] = {
        "source": "agent",
        "message": step.text,
        "observation": {"results": [{"content": step.observation}]},
    }
    if step.calls:
        written["tool_calls"] = [
            {"tool_call_id": f"call_{number}", "function_name": call.name, "arguments": call.arguments}
            for number, call in enumerate(step.calls)
        ]
    if step.tokens:
        written["metrics"] = {
            "prompt_tokens": step.tokens.prompt_length,
            "completion_tokens": len(step.tokens.token_ids),
            "completion_token_ids": list(step.tokens.token_ids),
            "logprobs": list(step.tokens.log_probs),
        }
    return written


def _read_atif(document: Document, name: str) -> ExchangeTrajectory:
    """Read the text only: the tokens of ATIF belong to an unknown tokenizer."""
    steps, agent = _list_and_object(document, "steps", "agent")
    extra = document.get("extra") or {}
    instance_id = str(extra.get("instance_id") or name)
    content = _opening_and_steps(map(_read_atif_step, steps))
    return ExchangeTrajectory(
        id=str(document.get("session_id") or id_of_text(instance_id, **content)),
        instance_id=instance_id,
        **content,
        exit_status=str(extra.get("exit_status") or ""),
        patch=str(extra.get("patch") or ""),
        model=str(agent.get("model_name") or ""),
        agent=str(agent.get("name") or ""),
    )


def _read_atif_step(step: Document) -> Step | Message:
    text = _text({"content": step.get("message")})
    if step.get("source") != "agent":
        return _message(step.get("source"), text)
    calls = step.get("tool_calls") or ()
    results = (step.get("observation") or {}).get("results") or ()
    return Step(
        text=text,
        calls=tuple(ToolCall(name=str(c["function_name"]), arguments=dict(c.get("arguments") or {})) for c in calls),
        observation="\n".join(map(_text, results)),
    )


# --- SWE-agent ---


def _is_swe_agent(document: Document) -> bool:
    return {"trajectory", "info"} <= set(document)


def _write_swe_agent(trajectory: ExchangeTrajectory) -> dict[str, Any]:
    """Write thought and action separately only where calls are separate from the text."""
    history = [
        _entry(role, text, "system_prompt" if role == "system" else "observation")
        for role, text, _ in trajectory.opening
    ]
    steps = []
    for step in trajectory.steps:
        thought, action = (step.text, step.calls[0].name) if step.calls else ("", step.text)
        entry = _entry("assistant", step.text, "action") | {"thought": thought, "action": action}
        history.append(entry | _assistant(step))
        history.append(_entry("tool" if step.calls else "user", step.observation, "observation"))
        steps.append(
            {
                "action": action,
                "observation": step.observation,
                "response": step.text,
                "thought": thought,
                "state": {},
                "execution_time": step.duration_s,
                "query": [],
                "extra_info": {},
            }
        )
    info = {
        "exit_status": trajectory.exit_status,
        "submission": trajectory.patch,
        "model_stats": {"api_calls": len(trajectory.steps), "instance_cost": 0.0},
    }
    return {
        "trajectory": steps,
        "history": history,
        "info": info,
        "environment": trajectory.instance_id,
        "instance_id": trajectory.instance_id,
    }


def _entry(role: str, text: str, message_type: str) -> dict[str, Any]:
    return {"role": role, "content": text, "message_type": message_type, "agent": "main"}


def _read_swe_agent(document: Document, name: str) -> ExchangeTrajectory:
    """Read the messages without demonstrations; the file's name is the instance where nothing else names it.

    The answers come from the history where calls are separate from the text, since steps have their text only.
    """
    steps, info = _list_and_object(document, "trajectory", "info")
    history = [entry for entry in document.get("history") or () if not entry.get("is_demo")]
    first = next((place for place, entry in enumerate(history) if entry.get("role") == "assistant"), len(history))
    opening = [_message(entry.get("role"), _text(entry)) for entry in history[:first]]
    has_calls = any(entry.get("tool_calls") for entry in history[first:])
    answered = _swe_history(history[first:]) if has_calls else _swe_steps(steps)
    content = _opening_and_steps([*opening, *answered])
    instance_id = str(document.get("instance_id") or name)
    return ExchangeTrajectory(
        id=id_of_text(instance_id, **content),
        instance_id=instance_id,
        **content,
        exit_status=str(info.get("exit_status") or ""),
        patch=str(info.get("submission") or ""),
        agent="swe-agent",
    )


def _swe_history(entries: Iterable[Document]) -> Iterator[Step | Message]:
    """Yield answers and what followed; an entry that says and calls nothing is the harness's own, at a limit."""
    is_answered = True
    for entry in entries:
        part = _read_message(entry)
        if isinstance(part, Step):
            is_answered = bool(part.text or part.calls)
        if is_answered:
            yield part


def _swe_steps(steps: Iterable[Document]) -> Iterator[Step]:
    """Yield the steps with an answer; where one has an action alone, that is what the agent wrote."""
    for step in steps:
        duration_s = step.get("execution_time")
        if text := str(step.get("response") or step.get("action") or ""):
            yield Step(
                text=text,
                observation=str(step.get("observation") or ""),
                duration_s=float(duration_s) if isinstance(duration_s, int | float) else 0.0,
            )


# --- message lists ---


def _is_mini_swe_agent(document: Document) -> bool:
    """Match its own name, or the messages and the info of older files."""
    is_named = str(document.get("trajectory_format", "")).startswith(_MINI_VERSION)
    return is_named or {"messages", "info"} <= set(document)


def _write_mini_swe_agent(trajectory: ExchangeTrajectory) -> dict[str, Any]:
    """Write the message list, with mini's last message of the role ``exit``."""
    messages: list[dict[str, Any]] = [{"role": role, "content": text} for role, text, _ in trajectory.opening]
    for step in trajectory.steps:
        commands = [call.arguments for call in step.calls] or [{"command": step.text}]
        messages.append(_assistant(step) | {"extra": {"actions": commands}})
        messages.append({"role": "user", "content": step.observation})
    end = {"exit_status": trajectory.exit_status, "submission": trajectory.patch}
    messages.append({"role": "exit", "content": trajectory.patch, "extra": dict(end)})
    info = {
        "model_stats": {"instance_cost": 0.0, "api_calls": len(trajectory.steps)},
        "config": {"agent": {}, "agent_type": "repairgym", "model": {"model_name": trajectory.model}},
        "mini_version": "",
        "repairgym_version": __version__,
        **end,
    }
    return {
        "info": info,
        "messages": messages,
        "trajectory_format": f"{_MINI_VERSION}.1",
        "instance_id": trajectory.instance_id,
    }


def _assistant(step: Step) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": step.text}
    if step.calls:
        message["tool_calls"] = [
            {
                "id": f"call_{number}",
                "type": "function",
                "function": {"name": call.name, "arguments": json.dumps(call.arguments)},
            }
            for number, call in enumerate(step.calls)
        ]
    return message


def _read_mini_swe_agent(document: Document, name: str) -> ExchangeTrajectory:
    messages, info = _list_and_object(document, "messages", "info")
    instance_id = str(document.get("instance_id") or name)
    model = ((info.get("config") or {}).get("model") or {}).get("model_name", "")
    content = _opening_and_steps(_read_message(message) for message in messages if message.get("role") != "exit")
    return ExchangeTrajectory(
        id=id_of_text(instance_id, **content),
        instance_id=instance_id,
        **content,
        exit_status=str(info.get("exit_status") or ""),
        patch=str(info.get("submission") or ""),
        model=str(model),
        agent="mini-swe-agent",
    )


def _is_chat(document: Document) -> bool:
    return isinstance(document.get("messages"), list)


def _write_chat(trajectory: ExchangeTrajectory) -> dict[str, Any]:
    """Write the messages to imitate, and fields for filters."""
    return {
        "messages": [{"role": role, "content": text} for role, text, _ in trajectory.messages()],
        "instance_id": trajectory.instance_id,
        "id": trajectory.id,
        "model": trajectory.model,
        "resolved": trajectory.is_resolved,
        "patch": trajectory.patch,
    }


def _read_chat(document: Document, _: str) -> ExchangeTrajectory:
    """Read the conversation, which has to name its instance."""
    instance_id = document.get("instance_id")
    if not isinstance(instance_id, str) or not instance_id:
        raise FormatError("no instance_id")
    content = _opening_and_steps(map(_read_message, document["messages"]))
    return ExchangeTrajectory(
        id=str(document.get("id") or document.get("traj_id") or id_of_text(instance_id, **content)),
        instance_id=instance_id,
        **content,
        exit_status="",
        patch=str(document.get("patch") or ""),
        model=str(document.get("model") or ""),
        agent="",
    )


# --- only read ---


def _is_inspect(document: Document) -> bool:
    return {"epoch", "messages", "scores"} <= set(document)


def _read_inspect(document: Document, _: str) -> ExchangeTrajectory:
    """Read one sample; the patch is what its task left in ``metadata.patch``, as Inspect's own format has no place."""
    instance_id = str(document["id"])
    messages = [_inspect_message(message) for message in document["messages"]]
    content = _opening_and_steps(map(_read_message, messages))
    return ExchangeTrajectory(
        id=id_of_text(f"{instance_id}#{document['epoch']}", **content),
        instance_id=instance_id,
        **content,
        exit_status="",
        patch=str((document.get("metadata") or {}).get("patch") or ""),
        model=str((document.get("output") or {}).get("model") or ""),
        agent="inspect",
    )


def _inspect_message(message: Document) -> Document:
    calls = [
        {"function": {"name": c["function"], "arguments": c["arguments"]}} for c in message.get("tool_calls") or ()
    ]
    return {**message, "tool_calls": calls}


def _is_verl(document: Document) -> bool:
    return {"input", "output", "score"} <= set(document)


def _is_trl(document: Document) -> bool:
    return {"prompt", "completion", "advantage"} <= set(document)


def _reader_of_texts(agent: str, prompt: str, answer: str) -> Callable[[Document, str], ExchangeTrajectory]:
    """Return a reader of rows with a text before the first sampled token and one from there on."""

    def read(document: Document, name: str) -> ExchangeTrajectory:
        opening = document[prompt]
        texts = [opening] if isinstance(opening, str) else [_text(message) for message in opening]
        messages, steps = tuple(Message("user", text) for text in texts), (Step(text=_plain(document[answer])),)
        return ExchangeTrajectory(
            id=id_of_text(name, messages, steps),
            instance_id=str(document.get("instance_id") or name),
            opening=messages,
            steps=steps,
            exit_status="",
            patch="",
            agent=agent,
        )

    return read


def _plain(answer: Any) -> str:
    return answer if isinstance(answer, str) else "\n".join(map(_text, answer))


def _read_message(message: Document) -> Step | Message:
    if not isinstance(message, Mapping) or "role" not in message:
        raise FormatError("a message without a role")
    text = _text(message)
    if message["role"] == "assistant":
        return Step(text=text, calls=tuple(calls_of(message)))
    return _message(message["role"], text)


# --- parts of documents ---


def _list_and_object(document: Document, list_name: str, object_name: str) -> tuple[list[Any], dict[str, Any]]:
    items, fields = document.get(list_name), document.get(object_name)
    if not isinstance(items, list) or not isinstance(fields, dict):
        raise FormatError(f"no {list_name} or no {object_name}")
    return items, fields


def _opening_and_steps(parts: Iterable[Step | Message]) -> dict[str, Any]:
    """Return the messages before the first step, and the steps; later messages join the observation before them."""
    opening: list[Message] = []
    steps: list[Step] = []
    for part in parts:
        if isinstance(part, Step):
            steps.append(part)
        elif steps:
            last = steps[-1]
            joined = f"{last.observation}\n{part.text}" if last.observation else part.text
            steps[-1] = last.model_copy(update={"observation": joined})
        else:
            opening.append(part)
    if not steps:
        raise FormatError("no answer of the agent")
    return {"opening": tuple(opening), "steps": tuple(steps)}


def _message(role: object, text: str) -> Message:
    return Message("system" if role == "system" else "user", text)


def _text(message: Document) -> str:
    return text_of(message.get("content"))


FORMATS = {
    form.name: form
    for form in (
        TrajectoryFormat("atif", ".trajectory.json", _is_atif, _write_atif, _read_atif),
        TrajectoryFormat("swe_agent", ".traj", _is_swe_agent, _write_swe_agent, _read_swe_agent),
        TrajectoryFormat(
            "mini_swe_agent", ".traj.json", _is_mini_swe_agent, _write_mini_swe_agent, _read_mini_swe_agent
        ),
        TrajectoryFormat("inspect", ".json", _is_inspect, None, _read_inspect),
        TrajectoryFormat("verl", ".jsonl", _is_verl, None, _reader_of_texts("verl", "input", "output")),
        TrajectoryFormat("trl", ".parquet", _is_trl, None, _reader_of_texts("trl", "prompt", "completion")),
        TrajectoryFormat("slime", ".pt", is_slime, None, read_slime),
        TrajectoryFormat("prime_rl", ".jsonl", is_prime_rl, None, read_prime_rl),
        TrajectoryFormat("otlp", ".jsonl", is_trace, None, read_trace),
        TrajectoryFormat("chat", ".jsonl", _is_chat, _write_chat, _read_chat),
    )
}
"""The first format that matches a document wins."""


def detect_format(document: Document) -> TrajectoryFormat:
    """Return the format of ``document``; `FormatError` where none matches."""
    for form in FORMATS.values():
        if form.matches(document):
            return form
    raise FormatError(f"the keys {', '.join(sorted(document)[:8]) or '(none)'} match no format of {', '.join(FORMATS)}")

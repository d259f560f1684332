"""Formats of one message list: mini-swe-agent's ``.traj.json`` (1 and 1.1) and rows of chat messages for SFT."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from repairgym import __version__
from repairgym.bridges.trajectories.base import (
    Document,
    ExchangeTrajectory,
    FormatError,
    Step,
    ToolCall,
    TrajectoryFormat,
)
from repairgym.inference.renderer import Message

_PREFIX = "mini-swe-agent-1"


class MiniSweAgent(TrajectoryFormat):
    """``{"info": {...}, "messages": [...], "trajectory_format": "mini-swe-agent-1.1", "instance_id": ...}``."""

    name = "mini_swe_agent"
    suffix = ".traj.json"

    def matches(self, document: Document) -> bool:
        """Match its own name, or the messages and the info of older files."""
        named = str(document.get("trajectory_format", "")).startswith(_PREFIX)
        return named or {"messages", "info"} <= set(document)

    def write(self, trajectory: ExchangeTrajectory) -> dict[str, Any]:
        """Write the message list, with mini's last message of the role ``exit``."""
        messages: list[dict[str, Any]] = [{"role": role, "content": text} for role, text in trajectory.opening]
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
            "trajectory_format": "mini-swe-agent-1.1",
            "instance_id": trajectory.instance_id,
        }

    def read(self, document: Document, name: str) -> ExchangeTrajectory:
        """Read answers with the observations after them, calls separate from the text."""
        messages, info = document.get("messages"), document.get("info")
        if not isinstance(messages, list) or not isinstance(info, dict):
            raise FormatError("no messages or no info")
        opening, steps = read_messages([message for message in messages if message.get("role") != "exit"])
        instance_id = str(document.get("instance_id") or name)
        model = ((info.get("config") or {}).get("model") or {}).get("model_name", "")
        return ExchangeTrajectory(
            id=instance_id,
            instance_id=instance_id,
            opening=opening,
            steps=steps,
            exit_status=str(info.get("exit_status") or ""),
            patch=str(info.get("submission") or ""),
            model=str(model),
            agent="mini-swe-agent",
        )


class ChatMessages(TrajectoryFormat):
    """``{"messages": [{"role": ..., "content": ...}], "instance_id": ...}`` per line (SWE-smith's form and others)."""

    name = "chat"
    suffix = ".jsonl"

    def matches(self, document: Document) -> bool:
        """Match its messages."""
        return isinstance(document.get("messages"), list)

    def write(self, trajectory: ExchangeTrajectory) -> dict[str, Any]:
        """Write the messages to imitate, and fields for filters."""
        return {
            "messages": [{"role": role, "content": text} for role, text in trajectory.messages()],
            "instance_id": trajectory.instance_id,
            "id": trajectory.id,
            "model": trajectory.model,
            "resolved": trajectory.is_resolved,
            "patch": trajectory.patch,
        }

    def read(self, document: Document, name: str) -> ExchangeTrajectory:
        """Read the conversation, which has to name its instance."""
        instance_id = document.get("instance_id")
        if not isinstance(instance_id, str) or not instance_id:
            raise FormatError("no instance_id")
        opening, steps = read_messages(document["messages"])
        return ExchangeTrajectory(
            id=str(document.get("id") or document.get("traj_id") or instance_id),
            instance_id=instance_id,
            opening=opening,
            steps=steps,
            exit_status="",
            patch=str(document.get("patch") or ""),
            model=str(document.get("model") or ""),
            agent="",
        )


def read_messages(messages: Sequence[Document]) -> tuple[tuple[Message, ...], tuple[Step, ...]]:
    """Return (messages before the first answer, answers with observations) of a chat.

    Raises:
        FormatError: there is no answer, or a message without role or text.
    """
    opening: list[Message] = []
    steps: list[Step] = []
    for message in messages:
        if not isinstance(message, Mapping) or "role" not in message:
            raise FormatError("a message without a role")
        text = message_text(message)
        if message["role"] == "assistant":
            steps.append(Step(text=text, calls=tuple(_calls(message))))
        elif steps:
            last = steps[-1]
            joined = f"{last.observation}\n{text}" if last.observation else text
            steps[-1] = last.model_copy(update={"observation": joined})
        else:
            opening.append(Message("system" if message["role"] == "system" else "user", text))
    if not steps:
        raise FormatError("no message of the assistant")
    return tuple(opening), tuple(steps)


def message_text(message: Document) -> str:
    """Return the text of a message whose content may be text, parts of text or nothing.

    Raises:
        FormatError: the content is something else.
    """
    content = message.get("content")
    if isinstance(content, list):
        return "".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    if content is not None and not isinstance(content, str):
        raise FormatError(f"content is {type(content).__name__}, expected text")
    return content or ""


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


def _calls(message: Document) -> Iterator[ToolCall]:
    for call in message.get("tool_calls") or ():
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise FormatError("a tool call without the name of its function")
        given = function.get("arguments") or {}
        try:
            arguments = json.loads(given) if isinstance(given, str) else given
        except ValueError:
            arguments = {"arguments": given}
        yield ToolCall(
            name=function["name"], arguments=arguments if isinstance(arguments, dict) else {"arguments": given}
        )


_VERSION = "ATIF-v1.6"
"""The oldest version with every field that is written here, for older readers."""


class Atif(TrajectoryFormat):
    """``{"schema_version": "ATIF-v1.6", "session_id": ..., "agent": {...}, "steps": [...]}``."""

    name = "atif"
    suffix = ".trajectory.json"

    def matches(self, document: Document) -> bool:
        """Match its version."""
        return str(document.get("schema_version", "")).startswith("ATIF-v1.")

    def write(self, trajectory: ExchangeTrajectory) -> dict[str, Any]:
        """Write tokens and log-probabilities, too, where they are known."""
        steps: list[dict[str, Any]] = [{"source": role, "message": text} for role, text in trajectory.opening]
        steps += [_agent_step(step) for step in trajectory.steps]
        sampled = [step.tokens for step in trajectory.steps if step.tokens]
        metrics: dict[str, Any] = {"total_steps": len(steps)}
        if len(sampled) == len(trajectory.steps):
            metrics["total_prompt_tokens"] = sum(tokens.prompt_length for tokens in sampled)
            metrics["total_completion_tokens"] = sum(len(tokens.token_ids) for tokens in sampled)
        return {
            "schema_version": _VERSION,
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

    def read(self, document: Document, name: str) -> ExchangeTrajectory:
        """Read the text only: the tokens of ATIF belong to an unknown tokenizer."""
        steps, agent = document.get("steps"), document.get("agent")
        if not isinstance(steps, list) or not isinstance(agent, dict):
            raise FormatError("no steps or no agent")
        opening: list[Message] = []
        agent_steps: list[Step] = []
        for step in steps:
            if not isinstance(step, Mapping):
                raise FormatError("a step is not an object")
            text = message_text({"content": step.get("message")})
            if step.get("source") == "agent":
                agent_steps.append(_read_step(step, text))
            elif agent_steps:
                last = agent_steps[-1]
                agent_steps[-1] = last.model_copy(update={"observation": f"{last.observation}\n{text}".strip("\n")})
            else:
                opening.append(Message("system" if step.get("source") == "system" else "user", text))
        if not agent_steps:
            raise FormatError("no step of the agent")
        extra = document.get("extra") or {}
        instance_id = str(extra.get("instance_id") or name)
        return ExchangeTrajectory(
            id=str(document.get("session_id") or instance_id),
            instance_id=instance_id,
            opening=tuple(opening),
            steps=tuple(agent_steps),
            exit_status=str(extra.get("exit_status") or ""),
            patch=str(extra.get("patch") or ""),
            model=str(agent.get("model_name") or ""),
            agent=str(agent.get("name") or ""),
        )


def _agent_step(step: Step) -> dict[str, Any]:
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


def _read_step(step: Document, text: str) -> Step:
    calls = [
        ToolCall(name=str(call["function_name"]), arguments=dict(call.get("arguments") or {}))
        for call in step.get("tool_calls") or ()
    ]
    results = (step.get("observation") or {}).get("results") or ()
    return Step(
        text=text,
        calls=tuple(calls),
        observation="\n".join(message_text({"content": result.get("content")}) for result in results),
    )


class SweAgent(TrajectoryFormat):
    """``{"trajectory": [...], "history": [...], "info": {...}}``: steps, the messages sent, and the result."""

    name = "swe_agent"
    suffix = ".traj"

    def matches(self, document: Document) -> bool:
        """Match its parts."""
        return {"trajectory", "info"} <= set(document)

    def write(self, trajectory: ExchangeTrajectory) -> dict[str, Any]:
        """Write thought and action separately only where calls are separate from the text."""
        history = [
            _entry(role, text, "system_prompt" if role == "system" else "observation")
            for role, text in trajectory.opening
        ]
        steps = []
        for step in trajectory.steps:
            thought, action = (step.text, step.calls[0].name) if step.calls else ("", step.text)
            history.append(_entry("assistant", step.text, "action") | {"thought": thought, "action": action})
            history.append(_entry("user", step.observation, "observation"))
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
        return {"trajectory": steps, "history": history, "info": info, "environment": trajectory.instance_id}

    def read(self, document: Document, name: str) -> ExchangeTrajectory:
        """Read the steps without the demonstrations in the history; the file's name is the instance."""
        steps, info = document.get("trajectory"), document.get("info")
        if not isinstance(steps, list) or not isinstance(info, dict):
            raise FormatError("no trajectory or no info")
        read_steps = tuple(_read_swe_step(step) for step in steps if isinstance(step, Mapping) and step.get("response"))
        if not read_steps:
            raise FormatError("no step with a response")
        opening = []
        for entry in document.get("history") or ():
            if entry.get("role") == "assistant" and not entry.get("is_demo"):
                break
            if not entry.get("is_demo"):
                opening.append(Message("system" if entry.get("role") == "system" else "user", message_text(entry)))
        return ExchangeTrajectory(
            id=name,
            instance_id=name,
            opening=tuple(opening),
            steps=read_steps,
            exit_status=str(info.get("exit_status") or ""),
            patch=str(info.get("submission") or ""),
            agent="swe-agent",
        )


def _entry(role: str, text: str, message_type: str) -> dict[str, Any]:
    return {"role": role, "content": text, "message_type": message_type, "agent": "main"}


def _read_swe_step(step: Document) -> Step:
    duration_s = step.get("execution_time")
    return Step(
        text=str(step["response"]),
        observation=str(step.get("observation") or ""),
        duration_s=float(duration_s) if isinstance(duration_s, int | float) else 0.0,
    )

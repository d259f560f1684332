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

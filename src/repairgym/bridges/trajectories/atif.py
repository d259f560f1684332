"""ATIF, Harbor's trajectory format (versions 1.0 to 1.8): steps of system, user and agent with calls and metrics."""

from __future__ import annotations

from collections.abc import Mapping
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
from repairgym.bridges.trajectories.mini_swe_agent import message_text
from repairgym.inference.renderer import Message

_VERSION = "ATIF-v1.6"
"""The oldest that has every field written here, so that older readers take it."""


class Atif(TrajectoryFormat):
    """``{"schema_version": "ATIF-v1.6", "session_id": ..., "agent": {...}, "steps": [...]}``."""

    name = "atif"
    suffix = ".trajectory.json"

    def matches(self, document: Document) -> bool:
        """By its version."""
        return str(document.get("schema_version", "")).startswith("ATIF-v1.")

    def write(self, trajectory: ExchangeTrajectory) -> dict[str, Any]:
        """Tokens and log-probabilities go along where they are known."""
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
        """Text only: what ATIF holds of tokens is of a tokenizer that is not known here."""
        steps, agent = document.get("steps"), document.get("agent")
        if not isinstance(steps, list) or not isinstance(agent, dict):
            raise FormatError("no steps or no agent")
        opening: list[Message] = []
        found: list[Step] = []
        for step in steps:
            if not isinstance(step, Mapping):
                raise FormatError("a step that is no object")
            text = message_text({"content": step.get("message")})
            if step.get("source") == "agent":
                found.append(_read_step(step, text))
            elif found:
                found[-1] = found[-1].model_copy(update={"observation": f"{found[-1].observation}\n{text}".strip("\n")})
            else:
                opening.append(Message("system" if step.get("source") == "system" else "user", text))
        if not found:
            raise FormatError("no step of the agent")
        extra = document.get("extra") or {}
        instance_id = str(extra.get("instance_id") or name)
        return ExchangeTrajectory(
            id=str(document.get("session_id") or instance_id),
            instance_id=instance_id,
            opening=tuple(opening),
            steps=tuple(found),
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
        observation="\n".join(message_text({"content": one.get("content")}) for one in results),
    )

"""SWE-agent's ``.traj``: steps with thought, action and observation, the history that was sent, and the info."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from repairgym.bridges.trajectories.base import Document, ExchangeTrajectory, FormatError, Step, TrajectoryFormat
from repairgym.bridges.trajectories.mini_swe_agent import message_text
from repairgym.inference.renderer import Message


class SweAgent(TrajectoryFormat):
    """``{"trajectory": [...], "history": [...], "info": {...}}``."""

    name = "swe_agent"
    suffix = ".traj"

    def matches(self, document: Document) -> bool:
        """By its three parts."""
        return {"trajectory", "info"} <= set(document)

    def write(self, trajectory: ExchangeTrajectory) -> dict[str, Any]:
        """Thought and action are told apart only where calls are apart from the text."""
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
        """The steps; demonstrations in the history are left out. The file's name is the instance."""
        steps, info = document.get("trajectory"), document.get("info")
        if not isinstance(steps, list) or not isinstance(info, dict):
            raise FormatError("no trajectory or no info")
        found = tuple(_step(step) for step in steps if isinstance(step, Mapping) and step.get("response"))
        if not found:
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
            steps=found,
            exit_status=str(info.get("exit_status") or ""),
            patch=str(info.get("submission") or ""),
            agent="swe-agent",
        )


def _entry(role: str, text: str, message_type: str) -> dict[str, Any]:
    return {"role": role, "content": text, "message_type": message_type, "agent": "main"}


def _step(step: Document) -> Step:
    duration_s = step.get("execution_time")
    return Step(
        text=str(step["response"]),
        observation=str(step.get("observation") or ""),
        duration_s=float(duration_s) if isinstance(duration_s, int | float) else 0.0,
    )

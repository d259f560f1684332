"""Rows of chat messages for supervised fine-tuning (SWE-smith's form and others): one conversation per line."""

from __future__ import annotations

from typing import Any

from repairgym.bridges.trajectories.base import Document, ExchangeTrajectory, FormatError, TrajectoryFormat
from repairgym.bridges.trajectories.mini_swe_agent import read_messages


class ChatMessages(TrajectoryFormat):
    """``{"messages": [{"role": ..., "content": ...}], "instance_id": ...}`` per line."""

    name = "chat"
    suffix = ".jsonl"

    def matches(self, document: Document) -> bool:
        """By its messages."""
        return isinstance(document.get("messages"), list)

    def write(self, trajectory: ExchangeTrajectory) -> dict[str, Any]:
        """What a model is to imitate, and what a filter wants to know."""
        return {
            "messages": [{"role": role, "content": text} for role, text in trajectory.messages()],
            "instance_id": trajectory.instance_id,
            "id": trajectory.id,
            "model": trajectory.model,
            "resolved": trajectory.is_resolved,
            "patch": trajectory.patch,
        }

    def read(self, document: Document, name: str) -> ExchangeTrajectory:
        """The conversation; what it is about must be said."""
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

"""A text model that gives scripted replies."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from repairgym.errors import RepairGymError


class ScriptedTextModel:
    """For tests: replies from a list, the last one again and again; an error is raised, None never comes."""

    id = "scripted"

    def __init__(self, replies: Sequence[str | RepairGymError | None]) -> None:
        """Say ``replies``; ``{code}`` in one stands for the word that the question asks the answer to start with."""
        self._replies = list(replies)
        self.questions: list[str] = []

    async def reply(self, question: str, *, max_tokens: int, seed: int) -> str:
        """The next reply."""
        reply = self._replies[min(len(self.questions), len(self._replies) - 1)]
        self.questions.append(question)
        if reply is None:
            await asyncio.Event().wait()
        if isinstance(reply, RepairGymError):
            raise reply
        code = question.rpartition("ANSWER-")[2].partition(" ")[0]
        return str(reply).replace("{code}", f"ANSWER-{code}")

"""Models that are asked one question: text in, text out.

Reads a question; makes the reply. Invariants: a question is a conversation of its own, nothing is kept between two;
what a policy samples is decoded once and never encoded again.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from typing import Protocol

from repairgym.errors import RepairGymError
from repairgym.inference.base import Policy, SamplingParams
from repairgym.inference.renderer import ChatRenderer


class TextModel(Protocol):
    """Something that answers questions. A chat API fits as it is, a token policy through `PolicyTextModel`."""

    id: str

    async def reply(self, question: str, *, max_tokens: int, seed: int) -> str:
        """The reply to ``question``, at most ``max_tokens`` long.

        Raises:
            RepairGymError: no reply can be had (server trouble, question too long).
        """
        ...


class PolicyTextModel:
    """A :class:`~repairgym.inference.base.Policy` that is asked."""

    def __init__(self, policy: Policy, renderer: ChatRenderer, *, temperature: float = 0.0) -> None:
        """Ask ``policy`` in the chat form of ``renderer``."""
        self.id = policy.id
        self._policy = policy
        self._renderer = renderer
        self._temperature = temperature
        self._numbers = itertools.count()

    async def reply(self, question: str, *, max_tokens: int, seed: int) -> str:
        """The policy's message, without the token that ends it."""
        session_id = f"question/{next(self._numbers)}"
        sampling = SamplingParams(
            temperature=self._temperature,
            max_tokens=max_tokens,
            stop_token_ids=self._renderer.stop_token_ids,
            seed=seed,
        )
        try:
            generation = await self._policy.generate(session_id, self._renderer.open_ids(question), sampling)
        finally:
            await self._policy.end_session(session_id)
        return self._renderer.decode(list(generation.token_ids))


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

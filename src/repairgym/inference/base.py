"""Interfaces of models: a policy (token ids in, ids and log-probabilities out) and a text model (text in, text out).

Guarantees: each question to a text model is a conversation of its own; sampled tokens are decoded once and never
encoded again.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from repairgym.records import Record

if TYPE_CHECKING:
    from repairgym.inference.renderer import ChatRenderer


class SamplingParams(Record):
    """Sampling parameters, always explicit; RL needs temperature 1 and nothing else (paper B, finding 2)."""

    temperature: float = 1.0
    max_tokens: int = 64
    stop_token_ids: tuple[int, ...]
    seed: int = 0


class Generation(Record):
    """Sampled tokens. A stop token is included when the model itself sampled it."""

    token_ids: tuple[int, ...]
    log_probs: tuple[float, ...]
    """Natural log-probability of each sampled token under the distribution that was sampled (temperature applied)."""
    is_stopped: bool
    """True when a stop token ended the generation, False when ``max_tokens`` did."""
    policy_version: int
    """`UNKNOWN_VERSION` if the log-probabilities are not exact (a text-only server): for imitation, never for RL."""
    token_versions: tuple[int, ...] = ()
    """Of each token, if the weights changed during the generation; empty: all have ``policy_version``."""
    cost_usd: float = 0.0
    """Charge of the provider; 0 for local policies."""
    queue_s: float = 0.0
    """Seconds before the prompt was computed, with attempts that failed; this and the next two are 0.0 if unknown."""
    prefill_s: float = 0.0
    """Seconds until the first token."""
    decode_s: float = 0.0
    """Seconds from the first token to the last."""

    @property
    def versions(self) -> tuple[int, ...]:
        """Policy version of each token."""
        return self.token_versions or (self.policy_version,) * len(self.token_ids)


class Policy(Protocol):
    """A model that continues a token sequence."""

    id: str

    async def generate(self, session_id: str, prompt_ids: list[int], sampling: SamplingParams) -> Generation:
        """Continue ``prompt_ids``.

        Within a session each prompt starts with the previous prompt and its completion, unless something was cut from
        the history: then they only have a common start.
        """
        ...

    async def end_session(self, session_id: str) -> None:
        """End a session: its resources (KV cache) can be freed."""
        ...


@runtime_checkable
class RecallingPolicy(Protocol):
    """A policy whose sessions hold a state that earlier answers have to be put back into."""

    async def recall(
        self, session_id: str, prompt_ids: list[int], sampling: SamplingParams, generation: Generation
    ) -> None:
        """Bring a session to where it was after it had answered ``generation``; `ReplayDiffersError` if it cannot."""
        ...


class TextModel(Protocol):
    """A model that answers questions: a chat API as it is, a token policy through `PolicyTextModel`."""

    id: str

    async def reply(self, question: str, *, max_tokens: int, seed: int) -> str:
        """Return the reply to ``question``, at most ``max_tokens`` long; `RepairGymError` if there is none."""
        ...


class PolicyTextModel:
    """A text model over a policy, asked in the chat form of ``renderer``."""

    def __init__(self, policy: Policy, renderer: ChatRenderer, *, temperature: float = 0.0) -> None:
        self.id = policy.id
        self._policy = policy
        self._renderer = renderer
        self._temperature = temperature
        self._numbers = itertools.count()

    async def reply(self, question: str, *, max_tokens: int, seed: int) -> str:
        """Return the policy's message, without its thought."""
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
        return self._renderer.read(generation.token_ids).text

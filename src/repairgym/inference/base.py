"""What a policy is: token ids in, token ids and log-probabilities out (design decision 6)."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Protocol

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
    """`UNKNOWN_VERSION` where the log-probabilities say nothing (a text-only server): imitated at most, never RL."""
    token_versions: tuple[int, ...] = ()
    """Of each token, where the weights changed in the middle; empty: all have ``policy_version``, else its first."""
    cost_usd: float = 0.0
    """What a provider charges for it; policies that run here cost nothing."""
    queue_s: float = 0.0
    """Seconds before the prompt began to be computed; 0.0 here and below where a policy does not know."""
    prefill_s: float = 0.0
    """Seconds until the first token."""
    decode_s: float = 0.0
    """Seconds from the first token to the last."""

    @property
    def versions(self) -> tuple[int, ...]:
        """Policy version of each token."""
        return self.token_versions or (self.policy_version,) * len(self.token_ids)


class Policy(Protocol):
    """Something that continues a token sequence."""

    id: str

    async def generate(self, session_id: str, prompt_ids: list[int], sampling: SamplingParams) -> Generation:
        """Continue ``prompt_ids``.

        Within a session each prompt starts with the one before plus its completion, unless something was cut from the
        history: then they have a common start only.
        """
        ...

    async def end_session(self, session_id: str) -> None:
        """The session's episode is over: whatever is kept for it (KV cache) can go."""
        ...


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

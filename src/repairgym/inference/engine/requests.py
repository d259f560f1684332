"""What goes into the engine and what comes out: requests and counters. Makes nothing by itself."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, field

import numpy as np


@dataclass(eq=False)
class Request:
    """One generation: filled by the engine token by token."""

    session_id: str
    prompt: np.ndarray
    """[prompt tokens] int32."""
    max_tokens: int
    stop_token_ids: frozenset[int]
    temperature: float
    uniforms: np.ndarray
    """[max_tokens] float64 in [0, 1): the randomness of each token, drawn before anything runs."""
    token_ids: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)
    is_stopped: bool = False
    is_cancelled: bool = False
    slot: int = -1
    num_waited_steps: int = 0
    admitted_at_s: float = 0.0
    """On the monotonic clock, as are the two below: when its prompt began to be computed."""
    first_token_at_s: float = 0.0
    last_token_at_s: float = 0.0

    @property
    def is_done(self) -> bool:
        """True when no further token is wanted."""
        return self.is_stopped or self.is_cancelled or len(self.token_ids) >= self.max_tokens

    def append(self, token_id: int, log_prob: float) -> None:
        """Take a sampled token."""
        self.last_token_at_s = time.monotonic()
        if not self.token_ids:
            self.first_token_at_s = self.last_token_at_s
        self.token_ids.append(token_id)
        self.log_probs.append(log_prob)
        self.is_stopped = token_id in self.stop_token_ids


@dataclass
class EngineStatistics:
    """Counters since the engine was made. Every prompt token is in exactly one of the first three."""

    num_prefill_tokens: int = 0
    """Prompt tokens computed."""
    num_reused_tokens: int = 0
    """Prompt tokens whose keys and values the session's own slot still held."""
    num_shared_tokens: int = 0
    """Prompt tokens whose keys and values came from another session's slot."""
    num_padded_tokens: int = 0
    """Padding computed beside the prefill tokens."""
    num_decode_tokens: int = 0
    """Tokens sampled."""
    num_steps: int = 0
    num_prefill_forwards: int = 0
    num_resets: int = 0
    """Prompts that did not start with what their slot held."""
    num_evictions: int = 0
    """Idle sessions that lost their slot to another."""
    prefill_s: float = 0.0
    decode_s: float = 0.0
    sample_s: float = 0.0
    """Part of ``prefill_s`` and ``decode_s`` spent choosing tokens."""

    def as_metrics(self) -> dict[str, float]:
        """``engine/<counter>`` -> value."""
        return {f"engine/{name}": float(value) for name, value in asdict(self).items()}

"""Requests of the engine, its counters, and the sampling of tokens.

Guarantee: the randomness belongs to the request, so a request with the same seed draws the same numbers in any batch.
"""

import time
from dataclasses import asdict, dataclass, field

import numpy as np
import torch

from repairgym.inference.engine.shaping import Shaping, TopTokens


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
    """[max_tokens] float64 in [0, 1): the randomness of each token, drawn beforehand."""
    shaping: Shaping | None = None
    forced_ids: tuple[int, ...] = ()
    """Tokens that take the place of the sampled ones, ``max_tokens`` of them; empty: none do."""
    token_ids: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)
    top_tokens: list[TopTokens] = field(default_factory=list)
    """The likeliest tokens at each place, where ``shaping`` asks for them."""
    is_stopped: bool = False
    is_cancelled: bool = False
    slot: int = -1
    num_waited_steps: int = 0
    admitted_at_s: float = 0.0
    """Start of the prompt's computation, on the monotonic clock like the next two."""
    first_token_at_s: float = 0.0
    last_token_at_s: float = 0.0

    @property
    def is_done(self) -> bool:
        """True when the generation has ended."""
        return self.is_stopped or self.is_cancelled or len(self.token_ids) >= self.max_tokens

    def append(self, token_id: int, log_prob: float) -> None:
        """Add a sampled token."""
        self.last_token_at_s = time.monotonic()
        if not self.token_ids:
            self.first_token_at_s = self.last_token_at_s
        self.token_ids.append(token_id)
        self.log_probs.append(log_prob)
        self.is_stopped = token_id in self.stop_token_ids
        if self.shaping is not None and self.shaping.mask is not None and not self.is_stopped:
            self.shaping.mask.accept(token_id)


@dataclass
class EngineStatistics:
    """Counters of an engine. Every prompt token is in exactly one of the first three."""

    num_prefill_tokens: int = 0
    """Prompt tokens computed."""
    num_reused_tokens: int = 0
    """Prompt tokens with keys and values in the session's own slot."""
    num_shared_tokens: int = 0
    """Prompt tokens with keys and values from another session's slot."""
    num_padded_tokens: int = 0
    """Padding computed in addition to the prefill tokens."""
    num_decode_tokens: int = 0
    num_steps: int = 0
    num_prefill_forwards: int = 0
    num_resets: int = 0
    """Prompts that did not start with the content of their slot."""
    num_evictions: int = 0
    """Idle sessions that lost their slot to another."""
    prefill_s: float = 0.0
    decode_s: float = 0.0
    sample_s: float = 0.0
    """Part of ``prefill_s`` and ``decode_s`` spent on sampling."""

    def as_metrics(self) -> dict[str, float]:
        """``engine/<counter>`` -> value."""
        return {f"engine/{name}": float(value) for name, value in asdict(self).items()}


_NUM_UNIFORM_LEVELS = 1 << 24


def draw_uniforms(seed: int, prompt_length: int, count: int) -> np.ndarray:
    """[count] float64 in [0, 1) for one generation.

    The prompt length enters the seed, so the turns of an episode with one seed draw different numbers. Values are
    multiples of 2^-24: a value times the total probability stays below the total in float64.
    """
    generator = np.random.default_rng([seed & 0xFFFFFFFF, seed >> 32 & 0xFFFFFFFF, prompt_length])
    return generator.integers(0, _NUM_UNIFORM_LEVELS, size=count) / _NUM_UNIFORM_LEVELS


def sample_tokens(
    logits: torch.Tensor, temperatures: torch.Tensor, uniforms: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Sample one token per row by inverting the cumulative distribution.

    Args:
        logits: [rows, vocab], any float dtype.
        temperatures: [rows] float32; 0 means the most likely token.
        uniforms: [rows] float64 in [0, 1).

    Returns:
        Token ids [rows] int64 and log-probabilities [rows] float32: the float32 log-softmax of logits/temperature at
        the token (0.0 at temperature 0, where the distribution is a single point).
    """
    is_greedy = temperatures == 0
    scaled = logits.float() / torch.where(is_greedy, 1.0, temperatures)[:, None]
    log_probs = torch.log_softmax(scaled, dim=-1)
    cumulative = log_probs.exp().cumsum(dim=-1, dtype=torch.float64)
    targets = uniforms * cumulative[:, -1]
    sampled = torch.searchsorted(cumulative, targets[:, None], right=True)[:, 0]
    if bool(is_greedy.any()):
        sampled = torch.where(is_greedy, logits.argmax(dim=-1), sampled)
    chosen = log_probs.gather(1, sampled[:, None])[:, 0]
    return sampled, torch.where(is_greedy, 0.0, chosen)

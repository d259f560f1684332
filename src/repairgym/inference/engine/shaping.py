"""Changes of the sampled distribution that clients of a server may ask for; RL asks for none.

Guarantees: a token that is shaped away has log-probability minus infinity and is never sampled; the log-probabilities
of the others are those of the distribution that is sampled.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import torch

TopTokens = tuple[tuple[int, float], ...]
"""(token id, log-probability), likeliest first."""


class TokenMask(Protocol):
    """The tokens that a grammar allows next."""

    def allowed(self, num_tokens: int) -> np.ndarray:
        """Return [num_tokens] bool; at least one is true."""
        ...

    def accept(self, token_id: int) -> None:
        """Move behind a sampled token."""
        ...


@dataclass(frozen=True)
class Shaping:
    """Changes of one request to the model's distribution, in the order in which they apply."""

    mask: TokenMask | None = None
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    """Added to the logits of token ids."""
    presence_penalty: float = 0.0
    """Subtracted from the logits of tokens that the answer has."""
    frequency_penalty: float = 0.0
    """Subtracted for each time that the answer has the token."""
    top_k: int = 0
    """The likeliest tokens that may be sampled; 0: all."""
    top_p: float = 1.0
    """Probability of the likeliest tokens that may be sampled, at the request's temperature; 1: all."""
    num_top: int = 0
    """Likeliest tokens that are reported at each place."""


def shape_logits(logits: torch.Tensor, temperature: float, answer: Sequence[int], shaping: Shaping) -> torch.Tensor:
    """Return ``logits`` [vocab] float32 of the token behind ``answer`` after the changes of ``shaping``."""
    if shaping.mask is not None:
        allowed = torch.from_numpy(shaping.mask.allowed(len(logits))).to(logits.device)
        logits = logits.masked_fill(~allowed, -math.inf)
    changes: dict[int, float] = dict(shaping.logit_bias)
    if shaping.presence_penalty or shaping.frequency_penalty:
        for token_id in answer:
            changes[token_id] = changes.get(token_id, 0.0) - shaping.frequency_penalty
        for token_id in set(answer):
            changes[token_id] -= shaping.presence_penalty
    if changes:
        index = torch.tensor(list(changes), device=logits.device)
        values = torch.tensor(list(changes.values()), dtype=logits.dtype, device=logits.device)
        logits = logits.index_add(0, index, values)
    if shaping.top_k:
        least = logits.topk(min(shaping.top_k, len(logits))).values[-1]
        logits = logits.masked_fill(logits < least, -math.inf)
    return _nucleus(logits, temperature, shaping.top_p) if shaping.top_p < 1 else logits


def _nucleus(logits: torch.Tensor, temperature: float, top_p: float) -> torch.Tensor:
    """Keep the likeliest tokens until their probability reaches ``top_p``, at least one."""
    ordered = torch.sort(torch.softmax(logits / (temperature or 1.0), dim=-1), descending=True)
    before = ordered.values.cumsum(dim=-1) - ordered.values
    dropped = ordered.indices[1:][before[1:] >= top_p]
    return logits.index_fill(0, dropped, -math.inf)


def top_tokens(logits: torch.Tensor, temperature: float, count: int) -> TopTokens:
    """Return the ``count`` likeliest tokens of the distribution that was sampled."""
    if temperature == 0:
        logits = torch.full_like(logits, -math.inf).index_fill(0, logits.argmax(), 0.0)
    log_probs, token_ids = torch.log_softmax(logits.float() / (temperature or 1.0), dim=-1).topk(
        min(count, len(logits))
    )
    return tuple(zip(token_ids.tolist(), log_probs.tolist(), strict=True))

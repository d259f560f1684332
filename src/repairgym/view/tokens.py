"""The tokens of an episode as they were sampled, a stretch at a time.

Reads a ledger and, when there is one, the run's tokenizer; makes `Piece` records. Invariants: each token of the stretch
is in exactly one piece; a character that spans several tokens is one piece; a stretch is bounded, however long the
episode.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from tokenizers import Tokenizer

from repairgym.ledger import TokenLedger
from repairgym.report.tokens import decode

STRETCH_TOKENS = 2_000
_MAX_TOKENS_PER_CHARACTER = 4
_LEVELS = (0.99, 0.9, 0.7, 0.5, 0.3, 0.1, 0.03)
"""Probabilities between the levels of the colour scale; level 0 is the surest."""
NUM_LEVELS = len(_LEVELS) + 1
_NUM_UNLIKELY = 8


@dataclass(frozen=True)
class Piece:
    """Tokens that are shown together: one, or those of one character."""

    start: int
    """Place of the first token in the ledger."""
    token_ids: tuple[int, ...]
    text: str
    is_action: bool
    log_prob: float
    """Of all tokens of the piece; 0.0 where they were not sampled."""
    policy_version: int
    is_first: bool
    """Mask or policy version differ from the piece before."""

    @property
    def level(self) -> int:
        """Step of the colour scale, 0 to `NUM_LEVELS` - 1."""
        probability = self.probability
        return next((index for index, least in enumerate(_LEVELS) if probability >= least), len(_LEVELS))

    @property
    def probability(self) -> float:
        """Probability with which the piece was sampled."""
        return math.exp(min(0.0, self.log_prob)) if math.isfinite(self.log_prob) else 0.0


@dataclass(frozen=True)
class TokenFacts:
    """What holds over a whole ledger."""

    num_tokens: int
    num_action_tokens: int
    mean_log_prob: float | None
    """Over the sampled tokens, in nats; None without any."""
    policy_versions: tuple[int, ...]
    """Of the sampled tokens."""
    num_histories: int
    """More than 1 where the history forked: what one of them copied from another stands here once."""
    unlikely: tuple[int, ...]
    """Places of the least likely sampled tokens, least likely first."""


def read_facts(ledger: TokenLedger) -> TokenFacts:
    """Facts of a ledger."""
    places = np.flatnonzero(ledger.is_action)
    log_probs = ledger.log_prob[places].astype(np.float64)
    order = np.argsort(log_probs, kind="stable")[:_NUM_UNLIKELY]
    return TokenFacts(
        num_tokens=len(ledger),
        num_action_tokens=len(places),
        mean_log_prob=float(log_probs.mean()) if len(places) else None,
        policy_versions=tuple(int(one) for one in np.unique(ledger.policy_version[places])),
        num_histories=max(1, len(ledger.branches)),
        unlikely=tuple(int(one) for one in places[order]),
    )


def stretch(ledger: TokenLedger, tokenizer: Tokenizer | None, start: int, size: int = STRETCH_TOKENS) -> list[Piece]:
    """Pieces of the tokens ``start`` to ``start + size``; without a tokenizer a token is its number."""
    return list(_pieces(ledger, tokenizer, max(0, start), min(len(ledger), start + size)))


def _pieces(ledger: TokenLedger, tokenizer: Tokenizer | None, start: int, end: int) -> Iterator[Piece]:
    last: tuple[bool, int] | None = None
    while start < end:
        stop, text = _character(ledger, tokenizer, start, end)
        kind = bool(ledger.is_action[start]), int(ledger.policy_version[start])
        yield Piece(
            start=start,
            token_ids=tuple(int(one) for one in ledger.token_id[start:stop]),
            text=text,
            is_action=kind[0],
            log_prob=float(ledger.log_prob[start:stop].astype(np.float64).sum()),
            policy_version=kind[1],
            is_first=kind != last,
        )
        start, last = stop, kind


def _character(ledger: TokenLedger, tokenizer: Tokenizer | None, start: int, end: int) -> tuple[int, str]:
    """End and text of the shortest run of tokens of one kind from ``start`` on that is whole characters."""
    if tokenizer is None:
        return start + 1, f"[{int(ledger.token_id[start])}]"
    first = decode(tokenizer, ledger.token_id[start : start + 1].tolist())
    if not first.endswith("�"):
        return start + 1, first
    for stop in range(start + 2, min(end, start + _MAX_TOKENS_PER_CHARACTER) + 1):
        if ledger.is_action[stop - 1] != ledger.is_action[start]:
            break
        text = decode(tokenizer, ledger.token_id[start:stop].tolist())
        if not text.endswith("�"):
            return stop, text
    return start + 1, first

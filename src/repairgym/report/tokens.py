"""Sampled tokens as text with their probabilities, a bounded window at a time.

Reads a token ledger and the run's tokenizer, if it has one; makes `Piece` records. Guarantees: each token of the window
is in exactly one piece; a character of several tokens is one piece, with the product of their probabilities.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from repairgym.ledger import TokenLedger

WINDOW_TOKENS = 2_000
_MAX_TOKENS_PER_CHARACTER = 4
_LEVELS = (0.99, 0.9, 0.7, 0.5, 0.3, 0.1, 0.03)
"""Smallest probability of each step of the color scale; step 0 is the most likely."""
LEVEL_LABELS = (*(f"≥ {level:g}".replace("0.", ".") for level in _LEVELS), "less")
_NUM_UNLIKELY = 8


@dataclass(frozen=True)
class Piece:
    """Tokens that are shown together: one, or those of one character."""

    start: int
    """Index of the first token in the ledger."""
    token_ids: tuple[int, ...]
    text: str
    is_action: bool
    log_prob: float
    """Of all tokens of the piece; 0.0 for context."""
    policy_version: int
    is_first: bool
    """Mask or policy version differ from the previous piece."""

    @property
    def level(self) -> int:
        """Step of the color scale: 0 for a sure token, the last of `LEVEL_LABELS` for a very unlikely one."""
        probability = self.probability
        return next((index for index, least in enumerate(_LEVELS) if probability >= least), len(_LEVELS))

    @property
    def probability(self) -> float:
        """Probability with which the piece was sampled."""
        return math.exp(min(0.0, self.log_prob)) if math.isfinite(self.log_prob) else 0.0


@dataclass(frozen=True)
class TokenSummary:
    """Numbers over a whole ledger."""

    num_tokens: int
    num_action_tokens: int
    mean_log_prob: float | None
    """Over the sampled tokens, in nats; None without any."""
    policy_versions: tuple[int, ...]
    """Of the sampled tokens."""
    num_histories: int
    """More than 1 where the history forked; tokens that histories share are stored once."""
    unlikely: tuple[int, ...]
    """Indices of the least likely sampled tokens, least likely first."""


def find_tokenizer(folder: Path) -> Tokenizer | None:
    """Return the tokenizer of the first checkpoint below ``folder`` with a readable one; None without any."""
    for path in sorted(folder.glob("**/tokenizer.json")):
        try:
            return Tokenizer.from_file(str(path))
        except Exception:  # the library raises nothing narrower; a half-written checkpoint has no tokenizer yet
            continue
    return None


def decode(tokenizer: Tokenizer, token_ids: Sequence[int]) -> str:
    """Return the text of ``token_ids``, special tokens included."""
    return str(tokenizer.decode([int(token) for token in token_ids], skip_special_tokens=False))


def summarize_tokens(ledger: TokenLedger) -> TokenSummary:
    """Return the numbers of a ledger."""
    places = np.flatnonzero(ledger.is_action)
    log_probs = ledger.log_prob[places].astype(np.float64)
    order = np.argsort(log_probs, kind="stable")[:_NUM_UNLIKELY]
    return TokenSummary(
        num_tokens=len(ledger),
        num_action_tokens=len(places),
        mean_log_prob=float(log_probs.mean()) if len(places) else None,
        policy_versions=tuple(int(version) for version in np.unique(ledger.policy_version[places])),
        num_histories=max(1, len(ledger.branches)),
        unlikely=tuple(int(place) for place in places[order]),
    )


def read_pieces(ledger: TokenLedger, tokenizer: Tokenizer | None, start: int, size: int = WINDOW_TOKENS) -> list[Piece]:
    """Return the pieces of tokens ``start`` to ``start + size``; without a tokenizer a token is its number."""
    return list(_pieces(ledger, tokenizer, max(0, start), min(len(ledger), start + size)))


def _pieces(ledger: TokenLedger, tokenizer: Tokenizer | None, start: int, end: int) -> Iterator[Piece]:
    previous: tuple[bool, int] | None = None
    window, ids = start, [[token] for token in ledger.token_id[start:end].tolist()]
    log_probs = ledger.log_prob[start:end].tolist()
    firsts = tokenizer.decode_batch(ids, skip_special_tokens=False) if tokenizer else []
    while start < end:
        first = firsts[start - window] if firsts else f"[{int(ledger.token_id[start])}]"
        stop, text = start + 1, first
        if tokenizer and first.endswith("�"):
            stop, text = _character(ledger, tokenizer, start, end, first)
        kind = bool(ledger.is_action[start]), int(ledger.policy_version[start])
        yield Piece(
            start=start,
            token_ids=tuple(token for (token,) in ids[start - window : stop - window]),
            text=text,
            is_action=kind[0],
            log_prob=math.fsum(log_probs[start - window : stop - window]),
            policy_version=kind[1],
            is_first=kind != previous,
        )
        start, previous = stop, kind


def _character(ledger: TokenLedger, tokenizer: Tokenizer, start: int, end: int, first: str) -> tuple[int, str]:
    """Return end and text of the shortest run of tokens from ``start`` that is whole characters of one kind."""
    for stop in range(start + 2, min(end, start + _MAX_TOKENS_PER_CHARACTER) + 1):
        if ledger.is_action[stop - 1] != ledger.is_action[start]:
            break
        text = decode(tokenizer, ledger.token_id[start:stop].tolist())
        if not text.endswith("�"):
            return stop, text
    return start + 1, first

"""Sampled tokens as text, each shaded by how likely it was.

Reads token ids, log-probabilities and a ``tokenizer.json`` of the run; makes escaped HTML. Invariants: the text of the
pieces is what the tokenizer decodes, but a special token is a mark; a character that spans several tokens is one piece,
as likely as their product.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path

from markupsafe import Markup
from tokenizers import Tokenizer

from repairgym.ledger import TokenLedger

_MAX_TOKENS_PER_CHARACTER = 4
_SPECIAL_MARK = "■"
_SHADES = ((0.9, ""), (0.5, "p1"), (0.2, "p2"), (0.05, "p3"), (0.0, "p4"))
"""Smallest probability of each shade, CSS class."""


def find_tokenizer(folder: Path) -> Tokenizer | None:
    """The tokenizer of the run, from the first checkpoint that has one; None when there is none that can be read."""
    for path in sorted(folder.glob("**/tokenizer.json")):
        try:
            return Tokenizer.from_file(str(path))
        except Exception:  # the library raises nothing narrower; a half-written checkpoint has no tokenizer yet
            continue
    return None


def decode(tokenizer: Tokenizer, token_ids: Sequence[int]) -> str:
    """Text of ``token_ids``, special tokens included."""
    return str(tokenizer.decode([int(token) for token in token_ids], skip_special_tokens=False))


def pieces(tokenizer: Tokenizer, token_ids: Sequence[int], log_probs: Sequence[float]) -> Iterator[tuple[str, float]]:
    """(text, log-probability) of each whole character run."""
    pending: list[int] = []
    total = 0.0
    for token, log_prob in zip(token_ids, log_probs, strict=True):
        pending.append(int(token))
        total += float(log_prob)
        text = decode(tokenizer, pending)
        if not text.endswith("�") or len(pending) == _MAX_TOKENS_PER_CHARACTER:
            yield text, total
            pending, total = [], 0.0
    if pending:
        yield decode(tokenizer, pending), total


def shade(log_prob: float) -> str:
    """CSS class of a probability: nothing for a sure token, ``p4`` for a very unlikely one."""
    probability = math.exp(min(0.0, log_prob))
    return next(css for least, css in _SHADES if probability >= least)


def shaded(tokenizer: Tokenizer, ledger: TokenLedger, span: tuple[int, int]) -> Markup:
    """The sampled tokens of ``span`` as HTML; each says its probability when pointed at."""
    start, end = span
    parts = []
    for text, log_prob in pieces(tokenizer, ledger.token_id[start:end].tolist(), ledger.log_prob[start:end].tolist()):
        css = shade(log_prob)
        chance = math.exp(min(0.0, log_prob))
        attribute = Markup(' class="{}"').format(css) if css else Markup("")
        shown = _SPECIAL_MARK if text.startswith("<|") and text.endswith("|>") else text
        parts.append(Markup('<span{} title="p = {}">{}</span>').format(attribute, f"{chance:.3g}", shown))
    return Markup("").join(parts)

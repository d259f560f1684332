"""Log-probabilities and entropies of chosen tokens, computed in chunks of logits.

Reads hidden states and the output head's weight; makes the values of `log_softmax`. Guarantees: never more than
`chunk_tokens` times `chunk_vocab` logits exist at one time, forwards and backwards; all computation is float32.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch


def token_log_probs(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    target: torch.Tensor,
    chunk_tokens: int,
    chunk_vocab: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute log-probability (with gradient) and entropy (without) of each target.

    Args:
        hidden: [N, hidden] states that predict the targets.
        weight: [vocab, hidden] of the output head.
        bias: [vocab] of the output head, where it has one.
        target: [N] token ids.
        chunk_tokens: Most rows of logits at one time.
        chunk_vocab: Most columns of logits at one time.

    Returns:
        Two [N] float32.
    """
    with torch.autocast(hidden.device.type, enabled=False):
        return _TokenLogProbs.apply(  # type: ignore[no-any-return, no-untyped-call]
            hidden.float(), weight.float(), None if bias is None else bias.float(), target, chunk_tokens, chunk_vocab
        )


class _TokenLogProbs(torch.autograd.Function):
    """With z the logits: log p = z[target] - log sum exp z; d log p / d z = onehot(target) - softmax(z)."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        target: torch.Tensor,
        chunk_tokens: int,
        chunk_vocab: int,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        ctx.chunks = (chunk_tokens, chunk_vocab)
        log_probs, totals, entropies = [], [], []
        logits = None
        for rows, ids in zip(hidden.split(chunk_tokens), target.split(chunk_tokens), strict=True):
            total = entropy_sum = chosen = None
            for first, logits in _logit_blocks(rows, weight, bias, chunk_vocab):
                block_total = torch.logsumexp(logits, dim=-1)
                # E[z] under this block's own softmax; blocks are then averaged by their probability.
                block_mean = (torch.exp(logits - block_total[:, None]) * logits).sum(dim=-1)
                block_chosen = _gather(logits, ids - first)
                if total is None or entropy_sum is None or chosen is None:
                    total, entropy_sum, chosen = block_total, block_mean, block_chosen
                    continue
                both = torch.logaddexp(total, block_total)
                entropy_sum = entropy_sum * (total - both).exp() + block_mean * (block_total - both).exp()
                total, chosen = both, chosen + block_chosen
            assert total is not None
            assert entropy_sum is not None
            assert chosen is not None
            log_probs.append(chosen - total)
            totals.append(total)
            entropies.append(total - entropy_sum)
        is_one_block = len(target) <= chunk_tokens and len(weight) <= chunk_vocab
        # Where all logits fit anyway, keeping them saves a matrix product backwards.
        ctx.save_for_backward(hidden, weight, bias, target, torch.cat(totals), logits if is_one_block else None)
        entropy = torch.cat(entropies)
        ctx.mark_non_differentiable(entropy)
        return torch.cat(log_probs), entropy

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        hidden, weight, bias, target, totals, all_logits = ctx.saved_tensors
        chunk_tokens, chunk_vocab = ctx.chunks
        needs_hidden, needs_weight, needs_bias = ctx.needs_input_grad[:3]
        by_hidden = torch.zeros_like(hidden) if needs_hidden else None
        by_weight = torch.zeros_like(weight) if needs_weight else None
        by_bias = torch.zeros_like(bias) if needs_bias else None
        for start in range(0, len(target), chunk_tokens):
            part = slice(start, start + chunk_tokens)
            rows, ids, upstream = hidden[part], target[part], gradients[0][part, None]
            blocks = [(0, all_logits)] if all_logits is not None else _logit_blocks(rows, weight, bias, chunk_vocab)
            for first, logits in blocks:
                columns = slice(first, first + logits.shape[1])
                by_logits = torch.exp(logits - totals[part, None]).mul_(-upstream)
                _add_at(by_logits, ids - first, upstream[:, 0])
                if by_hidden is not None:
                    by_hidden[part] += by_logits @ weight[columns]
                if by_weight is not None:
                    by_weight[columns] += by_logits.T @ rows
                if by_bias is not None:
                    by_bias[columns] += by_logits.sum(dim=0)
        return by_hidden, by_weight, by_bias, None, None, None


def _logit_blocks(
    rows: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, chunk_vocab: int
) -> Iterator[tuple[int, torch.Tensor]]:
    """(first token id, [rows, tokens] logits) of each block of the vocabulary."""
    for first in range(0, len(weight), chunk_vocab):
        logits = rows @ weight[first : first + chunk_vocab].T
        yield first, logits if bias is None else logits + bias[first : first + chunk_vocab]


def _gather(logits: torch.Tensor, column: torch.Tensor) -> torch.Tensor:
    """[rows] logit at ``column``, 0 if it is outside this block."""
    is_here = (column >= 0) & (column < logits.shape[1])
    values = logits.gather(1, column.clamp(0, logits.shape[1] - 1)[:, None])[:, 0]
    return torch.where(is_here, values, 0.0)


def _add_at(matrix: torch.Tensor, column: torch.Tensor, values: torch.Tensor) -> None:
    is_here = (column >= 0) & (column < matrix.shape[1])
    matrix.scatter_add_(1, column.clamp(0, matrix.shape[1] - 1)[:, None], torch.where(is_here, values, 0.0)[:, None])

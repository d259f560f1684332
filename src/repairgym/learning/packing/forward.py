"""Log-probabilities of learned tokens, with gradients, from micro-batches with shared prefixes.

Reads a Hugging Face causal LM and a `MicroBatch`; makes `TokenScores`. Guarantees: values and gradients equal separate
full forwards up to float noise; vocabulary logits exist only for learned positions, at most `head_chunk_tokens` times
`head_chunk_vocab` at one time, forwards and backwards; logits, log-probabilities, entropies and values are float32
under any autocast; processes of one context hold parts of the hidden states and all scores.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from transformers import PreTrainedModel

from repairgym.config.learning import ComputeConfig
from repairgym.learning.distributed.context_parallel import ContextGroup
from repairgym.learning.packing.batching import MicroBatch
from repairgym.learning.packing.tree_attention import TREE_ATTENTION_NAME, forest_shape


class ValueHead(torch.nn.Module):
    """The critic of PPO: one linear layer on the last hidden state.

    A new head returns 0 everywhere, so the first advantages are the plain returns, and the first value gradients do not
    reach the model's body.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        """Make a head for ``model``, on its device."""
        super().__init__()
        embedding = model.get_output_embeddings().weight
        self.linear = torch.nn.Linear(embedding.shape[1], 1, device=embedding.device)
        torch.nn.init.zeros_(self.linear.weight)
        torch.nn.init.zeros_(self.linear.bias)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """[N, hidden] -> [N] float32."""
        with torch.autocast(hidden.device.type, enabled=False):
            value: torch.Tensor = self.linear(hidden.float())[:, 0]
        return value


@dataclass(frozen=True)
class TokenScores:
    """The learned tokens of a micro-batch; all tensors are [N] float32."""

    log_prob: torch.Tensor
    """Under the model, with gradient."""
    entropy: torch.Tensor
    """Of the model's distribution at the token, without gradient."""
    old_log_prob: torch.Tensor
    advantage: torch.Tensor
    weight: torch.Tensor
    row: torch.Tensor
    """[N] int64 sequence of each token, ascending from 0, with all learned tokens of each sequence."""
    reference_log_prob: torch.Tensor | None = None
    """Under the reference policy; this and the next two are None if the samples lack them."""
    old_value: torch.Tensor | None = None
    value_target: torch.Tensor | None = None
    value: torch.Tensor | None = None
    """Of the value head, with gradient, for the state before each token; None without a value head."""


class Scorer(torch.nn.Module):
    """A causal LM and, for PPO, its value head as one module, so that sharding sees one forward per micro-batch."""

    def __init__(
        self, model: PreTrainedModel, value_head: ValueHead | None = None, context: ContextGroup | None = None
    ) -> None:
        """``context``: the processes that compute each micro-batch together; None: this one alone."""
        super().__init__()
        self.model = model
        self.value_head = value_head
        self._context = context or ContextGroup()
        self.is_sharing = bool(getattr(model, "_supports_attention_backend", False))
        """False for models with their own attention: they compute each sample separately."""
        if self.is_sharing:
            model.set_attn_implementation(TREE_ATTENTION_NAME)

    def forward(
        self, batch: MicroBatch, compute: ComputeConfig
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
        """[M] log-probabilities with gradient, [M] entropies without, [M] values with (None without a head)."""
        device = next(self.model.parameters()).device
        context = self._context
        # Sources ascend, so this process's pairs of source and target are adjacent.
        counts = context.counts(batch.source, batch.num_tokens)
        source, target = (pairs.split(counts)[context.rank] for pairs in (batch.source, batch.target))
        source = source - context.rank * context.part_length(batch.num_tokens)
        with _autocast(device, compute.is_bf16):
            hidden = self._hidden(batch, device).index_select(0, source.to(device))
        head = self.model.get_output_embeddings()
        bias, chunks = getattr(head, "bias", None), (compute.head_chunk_tokens, compute.head_chunk_vocab)
        log_prob, entropy = token_log_probs(hidden, head.weight, bias, target.to(device), *chunks)
        value = context.gather(self.value_head(hidden), counts) if self.value_head else None
        return context.gather(log_prob, counts), context.gather(entropy, counts), value

    def _hidden(self, batch: MicroBatch, device: torch.device) -> torch.Tensor:
        """Compute the last hidden states of this process's part of the pack; for a single process [T, hidden]."""
        ids = self._context.own_part(batch.ids).to(device)[None]
        if not self.is_sharing:
            parts = (self.model.base_model(input_ids=part, use_cache=False) for part in ids.split(batch.lengths, dim=1))
            return torch.cat([part.last_hidden_state[0] for part in parts])
        # The padding that makes the parts equally long is a sequence of its own.
        num_padded = self._context.size * ids.shape[1] - batch.num_tokens
        padding = ((num_padded,), (-1,)) if num_padded else ((), ())
        out = self.model.base_model(
            input_ids=ids,
            position_ids=self._context.own_part(batch.position).to(device)[None],
            # Already 4-D, so transformers makes none; the forest defines the visible keys.
            attention_mask=torch.ones(1, 1, 1, 1, dtype=torch.bool, device=device),
            use_cache=False,
            forest=forest_shape(batch.lengths + padding[0], batch.parents + padding[1], device),
            context=self._context,
        )
        return out.last_hidden_state[0]  # type: ignore[no-any-return]


def score(scorer: Scorer, batch: MicroBatch, compute: ComputeConfig) -> TokenScores:
    """Score the learned tokens of a micro-batch."""
    log_prob, entropy, value = scorer(batch, compute)
    device = log_prob.device
    learned = batch.learned.to(device)
    return TokenScores(
        log_prob.index_select(0, learned),
        entropy.index_select(0, learned),
        batch.old_log_prob.to(device),
        batch.advantage.to(device),
        batch.weight.to(device),
        batch.row.to(device),
        None if batch.reference_log_prob is None else batch.reference_log_prob.to(device),
        None if batch.old_value is None else batch.old_value.to(device),
        None if batch.value_target is None else batch.value_target.to(device),
        None if value is None else value.index_select(0, learned),
    )


def _autocast(device: torch.device, is_bf16: bool) -> AbstractContextManager[Any]:
    return torch.autocast(device.type, torch.bfloat16) if is_bf16 else nullcontext()


def token_log_probs(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    target: torch.Tensor,
    chunk_tokens: int,
    chunk_vocab: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute log-probability (with gradient) and entropy (without) of each [N] target, both [N] float32.

    The [N, hidden] states predict the targets; weight [vocab, hidden] and bias [vocab] are the output head's. Logits
    exist for at most ``chunk_tokens`` rows and ``chunk_vocab`` columns at one time.
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
            total = rows.new_full((len(rows),), -torch.inf)
            entropy_sum = chosen = torch.zeros_like(total)
            for first, logits in _logit_blocks(rows, weight, bias, chunk_vocab):
                block_total = torch.logsumexp(logits, dim=-1)
                # E[z] under this block's own softmax; blocks are then averaged by their probability.
                block_mean = (torch.exp(logits - block_total[:, None]) * logits).sum(dim=-1)
                both = torch.logaddexp(total, block_total)
                entropy_sum = entropy_sum * (total - both).exp() + block_mean * (block_total - both).exp()
                total, chosen = both, chosen + _gather(logits, ids - first)
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
                    by_hidden[part].addmm_(by_logits, weight[columns])
                if by_weight is not None:
                    by_weight[columns].addmm_(by_logits.T, rows)
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

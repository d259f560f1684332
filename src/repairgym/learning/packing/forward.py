"""Log-probabilities of learned tokens, with gradients, from micro-batches with shared prefixes.

Reads a Hugging Face causal LM and a `MicroBatch`; makes `TokenScores`. Guarantees: values and gradients equal separate
full forwards up to float noise; vocabulary logits exist only for learned positions (`log_probs`); logits,
log-probabilities, entropies and values are float32 under any autocast; processes of one context hold parts of the
hidden states and all scores.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from transformers import PreTrainedModel

from repairgym.config.learning import ComputeConfig
from repairgym.learning.distributed.context_parallel import ContextGroup
from repairgym.learning.packing.batching import MicroBatch
from repairgym.learning.packing.log_probs import token_log_probs
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
        log_prob, entropy = token_log_probs(
            hidden,
            head.weight,
            getattr(head, "bias", None),
            target.to(device),
            compute.head_chunk_tokens,
            compute.head_chunk_vocab,
        )
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
        _optional_to(batch.reference_log_prob, device),
        _optional_to(batch.old_value, device),
        _optional_to(batch.value_target, device),
        None if value is None else value.index_select(0, learned),
    )


def _optional_to(tensor: torch.Tensor | None, device: torch.device) -> torch.Tensor | None:
    return None if tensor is None else tensor.to(device)


def _autocast(device: torch.device, is_bf16: bool) -> AbstractContextManager[Any]:
    return torch.autocast(device.type, torch.bfloat16) if is_bf16 else nullcontext()

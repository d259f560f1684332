"""Attention over a packed forest, registered with transformers as ``repairgym_tree``.

Reads query, key and value of one flat sequence of segments; makes the result of separate causal attention over every
whole sequence, each distinct token once. A segment's queries see the keys of the earlier segments on its path and,
causally, their own: nothing is padded, and no mask is as large as the pack. If several processes hold a pack, each
attends with a part of the heads (`context_parallel`). Guarantee: the result keeps the order of the queries.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional
from torch.nn.attention.bias import causal_lower_right
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import sdpa_mask

from repairgym.inference.engine.forward import grouped_attention
from repairgym.learning.distributed.context_parallel import ContextGroup

TREE_ATTENTION_NAME = "repairgym_tree"
_ALONE = ContextGroup()


@dataclass(frozen=True)
class ForestShape:
    """The segments of a pack; the same for all layers of a forward."""

    lengths: tuple[int, ...]
    """Tokens of each segment, in the order of the pack."""
    paths: tuple[tuple[int, ...], ...]
    """Of each segment: the segments before it, the first of its sequences first."""
    masks: tuple[torch.Tensor | None, ...]
    """Of each segment: [length, keys] visible keys; None for a segment without a parent."""


def forest_shape(lengths: Sequence[int], parents: Sequence[int], device: torch.device) -> ForestShape:
    """Return the shape of a pack whose segments come after their parents (-1: none).

    On a CPU masks are made once for all layers; elsewhere they are the bias of fused kernels, which takes no memory.
    """
    paths: list[tuple[int, ...]] = []
    for parent in parents:
        paths.append((*paths[parent], parent) if parent >= 0 else ())
    masks = [
        _lower_right(length, sum(lengths[at] for at in path) + length, device) if path else None
        for length, path in zip(lengths, paths, strict=True)
    ]
    return ForestShape(tuple(lengths), tuple(paths), tuple(masks))


def tree_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    forest: ForestShape | None = None,
    context: ContextGroup = _ALONE,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Compute scaled dot-product attention of a packed forest; without ``forest`` that of the inference engine.

    The query is [1, heads, tokens, head_dim] of this process's tokens, key and value are [1, kv_heads, tokens,
    head_dim]; ``attention_mask`` is ignored if there is a forest, ``dropout`` not applied: learner and sampler have to
    agree. Without ``scaling`` scores are multiplied by 1/sqrt(head_dim). Returns [1, tokens, heads, head_dim] and no
    attention weights.
    """
    if forest is None:
        return grouped_attention(module, query, key, value, attention_mask, dropout, scaling, **kwargs)
    query, key, value = (context.exchange(tensor) for tensor in (query, key, value))
    # One split per tensor: its gradient is one concatenation; that of slices would be a sum of full tensors.
    queries, keys, values = (tensor.split(forest.lengths, dim=2) for tensor in (query, key, value))
    outs = []
    for at, (path, mask) in enumerate(zip(forest.paths, forest.masks, strict=True)):
        seen = (*path, at)
        outs.append(
            functional.scaled_dot_product_attention(
                queries[at],
                torch.cat([keys[k] for k in seen], dim=2) if path else keys[at],
                torch.cat([values[k] for k in seen], dim=2) if path else values[at],
                attn_mask=mask,
                is_causal=mask is None,
                scale=scaling,
                enable_gqa=query.shape[1] != key.shape[1],
            )
        )
    return context.exchange(torch.cat(outs, dim=2).transpose(1, 2)).contiguous(), None


def _lower_right(num_queries: int, num_keys: int, device: torch.device) -> torch.Tensor:
    if device.type != "cpu":
        return causal_lower_right(num_queries, num_keys)
    return torch.ones(num_queries, num_keys, dtype=torch.bool).tril(num_keys - num_queries)


AttentionInterface.register(TREE_ATTENTION_NAME, tree_attention)
AttentionMaskInterface.register(TREE_ATTENTION_NAME, sdpa_mask)

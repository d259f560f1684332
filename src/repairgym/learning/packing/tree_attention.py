"""Attention over a packed forest, registered with transformers as ``repairgym_tree``.

Reads query, key and value of one flat sequence of segments; makes the result of separate causal attention over every
whole sequence, each distinct token once. A segment's queries see the keys of the earlier segments on its path and,
causally, their own; no mask is as large as the pack, and on a CPU nothing is padded. On a GPU, where the number of
kernels decides for short segments, those without a parent and of about one length are one call. If several processes
hold a pack, each attends with a part of the heads (`context_parallel`). Guarantee: the result keeps the order of the
queries.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.nn import functional
from torch.nn.attention.bias import causal_lower_right
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import sdpa_mask

from repairgym.inference.engine.forward import grouped_attention
from repairgym.learning.distributed.context_parallel import ContextGroup

_MIN_LENGTH_RATIO = 0.8
"""Padding costs at most a quarter of the shorter segment's work. Our choice."""
TREE_ATTENTION_NAME = "repairgym_tree"
_ALONE = ContextGroup()


@dataclass(frozen=True)
class RootCall:
    """Segments without a parent, padded behind to the length of the longest, which causal attention does not see."""

    place: torch.Tensor
    """[segments, length] place of each token in the pack; padding repeats a token."""
    members: frozenset[int]


@dataclass(frozen=True)
class ForestShape:
    """The segments of a pack; the same for all layers of a forward."""

    lengths: tuple[int, ...]
    """Tokens of each segment, in the order of the pack."""
    paths: tuple[tuple[int, ...], ...]
    """Of each segment: the segments before it, the first of its sequences first."""
    masks: tuple[torch.Tensor | None, ...]
    """Of each segment: [length, keys] visible keys; None for a segment without a parent."""
    calls: tuple[RootCall, ...] = ()
    """Calls for segments without a parent that are computed together, longest last."""
    order: torch.Tensor | None = None
    """[tokens] place of each token of the pack among the outputs of ``calls``, then of the other segments; None: there
    are no ``calls``."""


def forest_shape(
    lengths: Sequence[int], parents: Sequence[int], device: torch.device, *, is_batched: bool | None = None
) -> ForestShape:
    """Return the shape of a pack whose segments come after their parents (-1: none).

    On a CPU masks are made once for all layers; elsewhere they are the bias of fused kernels, which takes no memory.
    ``is_batched``: compute segments without a parent together; None: on a GPU.
    """
    paths: list[tuple[int, ...]] = []
    for parent in parents:
        paths.append((*paths[parent], parent) if parent >= 0 else ())
    masks = [
        _lower_right(length, sum(lengths[at] for at in path) + length, device) if path else None
        for length, path in zip(lengths, paths, strict=True)
    ]
    is_batched = device.type != "cpu" if is_batched is None else is_batched
    calls, order = _root_calls(lengths, parents, device) if is_batched else ((), None)
    return ForestShape(tuple(lengths), tuple(paths), tuple(masks), calls, order)


def _root_calls(
    lengths: Sequence[int], parents: Sequence[int], device: torch.device
) -> tuple[tuple[RootCall, ...], torch.Tensor | None]:
    """Group the segments without a parent; lengths of a group are at least `_MIN_LENGTH_RATIO` of its longest."""
    groups: list[list[int]] = []
    for at in sorted((at for at, parent in enumerate(parents) if parent < 0), key=lambda at: -lengths[at]):
        if not groups or lengths[at] < _MIN_LENGTH_RATIO * lengths[groups[-1][0]]:
            groups.append([])
        groups[-1].append(at)
    groups = [group for group in groups if len(group) > 1]
    if not groups:
        return (), None
    starts = np.concatenate([[0], np.cumsum(lengths)])
    calls, order, num_before = [], np.empty(starts[-1], dtype=np.int64), 0
    for group in groups:
        longest = lengths[group[0]]
        size = np.array([lengths[at] for at in group])[:, None]
        offset = np.minimum(np.arange(longest)[None, :], size - 1)
        place = starts[group][:, None] + offset
        for row, at in enumerate(group):
            order[starts[at] : starts[at + 1]] = num_before + row * longest + np.arange(lengths[at])
        num_before += len(group) * longest
        calls.append(RootCall(torch.from_numpy(place).to(device), frozenset(group)))
    together = frozenset().union(*(call.members for call in calls))
    for at in range(len(lengths)):
        if at not in together:
            order[starts[at] : starts[at + 1]] = num_before + np.arange(lengths[at])
            num_before += lengths[at]
    return tuple(calls), torch.from_numpy(order).to(device)


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
    outs = [_together(query, key, value, call.place, scaling) for call in forest.calls]
    together = frozenset().union(*(call.members for call in forest.calls))
    # One split per tensor: its gradient is one concatenation; that of slices would be a sum of full tensors.
    queries, keys, values = (tensor.split(forest.lengths, dim=2) for tensor in (query, key, value))
    for at, (path, mask) in enumerate(zip(forest.paths, forest.masks, strict=True)):
        if at in together:
            continue
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
    out = torch.cat(outs, dim=2)
    if forest.order is not None:
        out = out.index_select(2, forest.order)
    return context.exchange(out.transpose(1, 2)).contiguous(), None


def _together(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, place: torch.Tensor, scaling: float | None
) -> torch.Tensor:
    """[1, heads, segments * length, head_dim] outputs of the segments at ``place``."""
    segments, length = place.shape
    queries, keys, values = (
        tensor[0].index_select(1, place.flatten()).unflatten(1, (segments, length)).transpose(0, 1)
        for tensor in (query, key, value)
    )
    is_grouped = query.shape[1] != key.shape[1]
    out = functional.scaled_dot_product_attention(
        queries, keys, values, is_causal=True, scale=scaling, enable_gqa=is_grouped
    )
    return out.transpose(0, 1).flatten(1, 2)[None]


def _lower_right(num_queries: int, num_keys: int, device: torch.device) -> torch.Tensor:
    if device.type != "cpu":
        return causal_lower_right(num_queries, num_keys)
    return torch.ones(num_queries, num_keys, dtype=torch.bool).tril(num_keys - num_queries)


AttentionInterface.register(TREE_ATTENTION_NAME, tree_attention)
AttentionMaskInterface.register(TREE_ATTENTION_NAME, sdpa_mask)

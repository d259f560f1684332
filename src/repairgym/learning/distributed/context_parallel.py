"""Context parallelism: one pack of tokens over several processes, by all-to-all over the heads (Ulysses).

Reads and makes the tensors of one process. DeepSpeed-Ulysses (arXiv 2309.14509, section 3.1): linear layers see a
process's part of the tokens; around attention the processes exchange, so that each has all tokens of its part of the
heads. Guarantees: attention sees whole packs, so prefix forests are shared as in one process; gathered tensors are
equal in all processes of a context, so each computes the whole loss, and the sum of their gradients is its gradient.
"""

from itertools import accumulate
from typing import Any

import torch
import torch.distributed as dist
from torch.nn import functional
from transformers import PreTrainedModel

from repairgym.errors import ConfigError
from repairgym.learning.distributed.fsdp import TIMEOUT, World


class ContextGroup:
    """The processes that compute a pack together; a single process needs no group and exchanges nothing."""

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        self._group = group
        self.rank, self.size = (0, 1) if group is None else (dist.get_rank(group), dist.get_world_size(group))

    def part_length(self, num_tokens: int) -> int:
        """Return the tokens per process of a pack of ``num_tokens``, padding included."""
        return -(-num_tokens // self.size)

    def own_part(self, values: torch.Tensor) -> torch.Tensor:
        """[T] of a pack -> [part_length] of this process; zeros beyond the end."""
        length = self.part_length(len(values))
        padded = functional.pad(values, (0, length * self.size - len(values)))
        return padded[self.rank * length : (self.rank + 1) * length]

    def counts(self, places: torch.Tensor, num_tokens: int) -> list[int]:
        """Count the ascending ``places`` [M] in each process's part of a pack of ``num_tokens``."""
        owners = places // self.part_length(num_tokens)
        counts: list[int] = torch.bincount(owners, minlength=self.size).tolist()
        return counts

    def exchange(self, values: torch.Tensor) -> torch.Tensor:
        """[1, n, t, ...] of this process -> [1, n / size, size * t, ...]: all of the third for a part of the second.

        From heads to tokens before attention, from tokens to heads after it.
        """
        if self._group is None:
            return values
        return _Exchange.apply(values, 1, 2, self._group)  # type: ignore[no-any-return, no-untyped-call]

    def gather(self, values: torch.Tensor, counts: list[int]) -> torch.Tensor:
        """[counts[rank]] of every process -> [sum of counts], in the order of ranks, with gradient for the own ones."""
        if self._group is None:
            return values
        return _Gather.apply(values, counts, self._group)  # type: ignore[no-any-return, no-untyped-call]


def context_group(world: World, model: PreTrainedModel) -> ContextGroup:
    """Return this process's group of ``world.context_size`` neighbors; all processes must call it.

    Raises:
        ConfigError: the heads of ``model`` cannot be divided evenly, or its attention cannot be replaced.
    """
    if world.context_size == 1:
        return ContextGroup()
    check_divisible(model, world.context_size)
    group, _ = dist.new_subgroups(world.context_size, timeout=TIMEOUT)
    return ContextGroup(group)


def check_divisible(model: PreTrainedModel, size: int) -> None:
    """Check that ``size`` processes can share the attention of ``model``; `ConfigError` as in `context_group`."""
    if not getattr(model, "_supports_attention_backend", False):
        raise ConfigError(
            f"{type(model).__name__} brings its own attention, which compute.context_parallel={size} has to replace; "
            "set compute.context_parallel=1 or use a model with transformers' attention interface"
        )
    config = model.config.get_text_config()
    num_heads = int(config.num_attention_heads)
    num_kv_heads = int(getattr(config, "num_key_value_heads", None) or num_heads)
    if num_heads % size or num_kv_heads % size:
        possible = [n for n in range(1, num_kv_heads + 1) if num_heads % n == 0 and num_kv_heads % n == 0]
        raise ConfigError(
            f"compute.context_parallel={size}: each process takes an equal part of the heads, and the model has "
            f"{num_heads} attention heads and {num_kv_heads} key-value heads; possible: {possible}"
        )


class _Exchange(torch.autograd.Function):
    """All-to-all: cut along one dimension, join by rank along another; the reverse in the backward pass."""

    @staticmethod
    def forward(ctx: Any, values: torch.Tensor, cut: int, join: int, group: dist.ProcessGroup) -> torch.Tensor:
        ctx.backwards = (join, cut, group)
        sent = torch.stack(values.chunk(dist.get_world_size(group), dim=cut))
        received = torch.empty_like(sent)
        dist.all_to_all_single(received, sent, group=group)
        return torch.cat(received.unbind(), dim=join)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        return _Exchange.apply(gradients[0], *ctx.backwards), None, None, None  # type: ignore[no-untyped-call]


class _Gather(torch.autograd.Function):
    """All-gather of unequal parts. Every process continues with the same whole, so it has its own part's gradient."""

    @staticmethod
    def forward(ctx: Any, values: torch.Tensor, counts: list[int], group: dist.ProcessGroup) -> torch.Tensor:
        ends = list(accumulate(counts))
        rank = dist.get_rank(group)
        ctx.own = slice(ends[rank] - counts[rank], ends[rank])
        # Some back ends need equal lengths.
        padded = functional.pad(values, (0, max(counts) - len(values)))
        received = [torch.empty_like(padded) for _ in counts]
        dist.all_gather(received, padded, group=group)
        return torch.cat([part[:count] for part, count in zip(received, counts, strict=True)])

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        return gradients[0][ctx.own], None, None

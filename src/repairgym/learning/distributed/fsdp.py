"""Several processes that train one model (torchrun): weights, gradients and optimizer state are sharded with FSDP2.

Reads the process group that torchrun describes; makes sharded modules. Guarantees: every process, or every context of
several (`context_parallel`), computes its own share of the same optimizer batch, and all make the same number of
forwards and backwards.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from torch.distributed.tensor import DTensor
from transformers.modeling_layers import GradientCheckpointingLayer

from repairgym.config.learning import ComputeConfig, OptimizerConfig
from repairgym.errors import ConfigError, RepairGymError

TIMEOUT = timedelta(days=7)
"""Followers wait for whole rollouts of the leader."""
Item = TypeVar("Item")


@dataclass(frozen=True)
class World:
    """This process among those that train together."""

    rank: int = 0
    size: int = 1
    context_size: int = 1
    """Neighbors that compute a micro-batch together; it divides ``size``."""

    @property
    def is_leader(self) -> bool:
        """True for the process that writes files and messages."""
        return self.rank == 0

    @property
    def is_counting(self) -> bool:
        """True for one process of each context, so that sums count a context once."""
        return self.rank % self.context_size == 0

    def share(self, batches: Sequence[Item], sizes: Sequence[int]) -> list[tuple[Item, bool]]:
        """Return the batches of this process's context, with False for copies that must not count.

        The largest are assigned first, each to the context with the least load. All get equally many, because their
        forwards and backwards synchronize: a context with too few computes the smallest batch again.
        """
        num_contexts = self.size // self.context_size
        if num_contexts == 1:
            return [(batch, True) for batch in batches]
        portions: list[list[int]] = [[] for _ in range(num_contexts)]
        loads = [0] * num_contexts
        for at in sorted(range(len(batches)), key=lambda at: -sizes[at]):
            least = loads.index(min(loads))
            portions[least].append(at)
            loads[least] += sizes[at]
        own = portions[self.rank // self.context_size]
        missing = max(map(len, portions)) - len(own)
        smallest = min(range(len(batches)), key=lambda at: sizes[at], default=0)
        return [(batches[at], True) for at in own] + [(batches[smallest], False)] * missing

    def sums(self, values: Mapping[str, float]) -> dict[str, float]:
        """Sum each value over the processes."""
        total: dict[str, float] = {}
        for part in self.gather(dict(values)):
            for name, value in part.items():
                total[name] = total.get(name, 0.0) + value
        return total

    def gather(self, item: Item) -> list[Item]:
        """Return the items of all processes, in the order of ranks."""
        if self.size == 1:
            return [item]
        gathered: list[Any] = [None] * self.size
        dist.all_gather_object(gathered, item)
        return gathered

    def broadcast(self, item: Item) -> Item:
        """Return the leader's item; the arguments of the others are ignored."""
        if self.size == 1:
            return item
        box = [item]
        dist.broadcast_object_list(box, src=0)
        return box[0]


def current_world(context_size: int = 1) -> World:
    """Return the place of this process; `ConfigError` if ``context_size`` does not divide the number of processes."""
    rank, size = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
    if size % context_size:
        raise ConfigError(
            f"compute.context_parallel={context_size} splits a context over {context_size} processes, but there are "
            f"{size}; start a multiple of it: torchrun --nproc-per-node {context_size}"
        )
    return World(rank, size, context_size)


@contextmanager
def process_group() -> Iterator[World]:
    """Open the process group that torchrun described in the environment, if there is one.

    Raises:
        RepairGymError: another process of the group has ended.
    """
    if num_processes() == 1 or dist.is_initialized():
        yield current_world()
        return
    use_training_device()
    # Objects are exchanged over gloo: waiting there leaves the GPUs to the sampler.
    dist.init_process_group("cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo", timeout=TIMEOUT)
    try:
        yield current_world()
        # torch's threads release the last exchange's tensors a moment later and need a live interpreter for that.
        # An exchange without tensors gives them the time.
        dist.barrier()
    except RuntimeError as error:
        if isinstance(error, RepairGymError) or not _is_lost_process(error):
            raise
        raise RepairGymError(
            "another process of this training has ended; fix the error that it reported, then run the same command to "
            "resume from the last saved state"
        ) from error
    finally:
        dist.destroy_process_group()


def check_processes(optimizer: OptimizerConfig, compute: ComputeConfig) -> World:
    """Return the place of this process; `ConfigError` if several processes cannot train with these settings."""
    world = current_world(compute.context_parallel)
    if world.size > 1 and optimizer.type == "muon":
        raise ConfigError("optimizer.type='muon' needs whole matrices, several processes hold parts; use 'adamw'")
    if compute.is_offloaded and (world.size == 1 or not torch.cuda.is_available()):
        device = "GPUs" if torch.cuda.is_available() else "a CPU"
        raise ConfigError(
            "compute.is_offloaded moves the shards of several processes from GPUs to host memory, and the number of "
            f"processes is {world.size}, on {device}; leave it out, or start several on GPUs with torchrun"
        )
    return world


def num_processes() -> int:
    """Number of processes that torchrun has started; 1 without it."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def num_local_processes() -> int:
    """Number of those on this machine."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", num_processes()))


def is_leading() -> bool:
    """True in the process that leads, also before the processes have met."""
    return os.environ.get("RANK", "0") == "0"


def gpu_bytes() -> float | None:
    """Free memory of the GPU that a process trains on, less what a model server holds of it; None without one."""
    return float(torch.cuda.mem_get_info(training_device())[0]) if torch.cuda.is_available() else None


def _is_lost_process(error: RuntimeError) -> bool:
    return isinstance(error, dist.DistError) or " by peer" in str(error)


def use_training_device() -> None:
    """Make the training device the current one of the calling thread."""
    if torch.cuda.is_available():
        torch.cuda.set_device(training_device())


def training_device() -> str:
    """Return the device of this process: its GPU, or ``cpu``."""
    return f"cuda:{os.environ.get('LOCAL_RANK', '0')}" if torch.cuda.is_available() else "cpu"


def shard(module: torch.nn.Module, compute: ComputeConfig) -> None:
    """Shard the layers and the rest of ``module`` over all processes, in place; ``compute`` is as of `ComputeConfig`.

    With bfloat16 autocast layers are gathered in 16 bits, which saves autocast a copy of each weight.
    """
    offload = CPUOffloadPolicy() if compute.is_offloaded else OffloadPolicy()
    policy = MixedPrecisionPolicy(
        param_dtype=torch.bfloat16 if compute.is_bf16 else None, reduce_dtype=torch.float32, cast_forward_inputs=False
    )
    for layer in list(module.modules()):
        if isinstance(layer, GradientCheckpointingLayer):
            fully_shard(layer, mp_policy=policy, offload_policy=offload)
    # The root stays whole between forward and backward: embeddings and head may be one tensor, used at both ends. It
    # stays float32, too, as logits are.
    fully_shard(module, reshard_after_forward=False, offload_policy=offload)


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """Return a sharded tensor whole, on every process, and any other as it is; every process must call it."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def shards_in_order(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """Yield the shards of a tensor to the leader, in the order of their rows; one that is not sharded as it is.

    Every process must exhaust it: the others send theirs and yield nothing. The leader holds one of another at a time,
    where `whole` would take up to two whole tensors in every process.
    """
    if not isinstance(tensor, DTensor):
        yield tensor
        return
    mine, rank = tensor.to_local(), dist.get_rank()
    if rank:
        if mine.numel():
            dist.send(mine.contiguous(), 0)
        return
    yield mine
    # As torch.chunk: all have equally many rows but the last ones.
    num_rows = -(-tensor.shape[0] // dist.get_world_size())
    for start in range(num_rows, tensor.shape[0], num_rows):
        part = mine.new_empty((min(num_rows, tensor.shape[0] - start), *tensor.shape[1:]))
        dist.recv(part, start // num_rows)
        yield part
        del part

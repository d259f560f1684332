"""Plug-in that every process of a verl run imports first (``VERL_USE_EXTERNAL_MODULES``): our platform and engine.

A CPU is a platform of verl's, so that everything except vLLM runs without a GPU. verl 0.9.1 takes a device, a module
like `torch.cuda`, a collective back end and Ray resources from its platform. Here the device is ``cpu``, memory counts
are 0 and collectives use gloo. verl counts its processes in GPUs, so Ray gets as many as the learner has processes.
Guarantees: the import is enough; nothing of verl's is changed, entries are added to its registries.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist
from verl.plugin.platform.platform_base import PlatformBase
from verl.plugin.platform.platform_manager import PlatformRegistry

_EMBEDDED = "embedded"


def _do_nothing(*_: Any, **__: Any) -> None:
    """Do nothing: there is one device, no cache, no asynchronous work, no profiler."""


def _true(*_: Any, **__: Any) -> bool:
    return True


def _one_device(*_: Any, **__: Any) -> int:
    return 1


def _device_name(*_: Any, **__: Any) -> str:
    return "cpu"


def _no_bytes(*_: Any, **__: Any) -> int:
    return 0


class CpuDevice(ModuleType):
    """The part of `torch.cuda` that verl uses; memory is not counted, and nothing is asynchronous."""

    is_available = _true
    device_count = _one_device
    current_device = get_device_name = _device_name
    set_device = synchronize = empty_cache = ipc_collect = reset_peak_memory_stats = _do_nothing
    memory_allocated = memory_reserved = max_memory_allocated = max_memory_reserved = _no_bytes

    def __init__(self) -> None:
        super().__init__("torch.cpu")

    def mem_get_info(self, device: Any = None) -> tuple[int, int]:
        """Return (free, total) bytes: not counted."""
        return 0, 0

    def manual_seed(self, seed: int) -> None:
        """Seed torch."""
        torch.manual_seed(seed)

    manual_seed_all = manual_seed

    def get_rng_state(self, device: Any = None) -> torch.Tensor:
        """Return torch's state."""
        return torch.get_rng_state()

    def set_rng_state(self, state: torch.Tensor, device: Any = None) -> None:
        """Set torch's state."""
        torch.set_rng_state(state)

    def current_stream(self, *_: Any, **__: Any) -> Any:
        """Return the only stream."""
        return torch.cpu.current_stream()

    Stream = current_stream

    def stream(self, stream: Any) -> AbstractContextManager[None]:
        """Keep the only stream."""
        return nullcontext()


class CpuPlatform(PlatformBase):  # type: ignore[misc] # verl is in an environment of its own
    """verl's view of a machine without an accelerator."""

    device_name = vendor_name = "cpu"
    device_module = CpuDevice()
    is_available = _true
    device_count = _one_device
    current_device = _device_name
    set_device = synchronize = empty_cache = set_allocator_settings = profiler_start = profiler_stop = _do_nothing
    cudart = _do_nothing

    def manual_seed(self, seed: int) -> None:
        """Seed torch."""
        torch.manual_seed(seed)

    manual_seed_all = manual_seed

    def get_device_capability(self, device_index: int = 0) -> tuple[None, None]:
        """Return no capability."""
        return None, None

    def communication_backend_name(self) -> str:
        """Return the back end of collectives, gloo.

        A process of the learner calls this just before it joins its group, with ``cpu:gloo,DEVICE:BACKEND``. torch
        rejects a device that is named twice, so the process joins here, and verl sees that it has.
        """
        if "RANK" in os.environ and not dist.is_initialized():
            rank, num_ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
            dist.init_process_group("cpu:gloo", rank=rank, world_size=num_ranks)
        return "gloo"

    def visible_devices_envvar(self) -> str:
        """Return the variable that Ray sets for its GPUs."""
        return "CUDA_VISIBLE_DEVICES"

    @contextmanager
    def nvtx_range(self, msg: str) -> Iterator[None]:
        """Profile nothing."""
        yield

    def ray_resource_name(self) -> str:
        """Return the Ray resource in which verl counts its processes."""
        return "GPU"

    def ray_noset_envvars(self) -> list[str]:
        """Return no variable: Ray may set all."""
        return []

    def is_ipc_supported(self) -> bool:
        """Return False: there is no device memory to share."""
        return False


def _load_replica() -> type:
    from repairgym.bridges.verl.embedded_rollout import EmbeddedReplica

    return EmbeddedReplica


def _register_engine() -> None:
    from verl.workers.rollout.base import _ROLLOUT_REGISTRY
    from verl.workers.rollout.replica import RolloutReplicaRegistry

    RolloutReplicaRegistry.register(_EMBEDDED, _load_replica)
    _ROLLOUT_REGISTRY[_EMBEDDED, "async"] = "repairgym.bridges.verl.embedded_rollout.EmbeddedAdapter"


PlatformRegistry.register(platform="cpu")(CpuPlatform)
_register_engine()

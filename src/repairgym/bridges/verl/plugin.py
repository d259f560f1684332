"""Plug-in that every process of a verl run imports first (``VERL_USE_EXTERNAL_MODULES``): our platform and engine.

A CPU is a platform of verl's, so that everything except vLLM runs without a GPU. verl 0.9.1 takes a device, a module
like `torch.cuda`, a collective back end and Ray resources from its platform. Here the device is ``cpu``, memory counts
are 0 and collectives use gloo. verl counts its processes in GPUs, so Ray gets as many as the learner has processes.
Guarantees: the import is enough; nothing of verl's is changed, entries are added to its registries.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import nullcontext
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist
from verl.plugin.platform.platform_base import PlatformBase
from verl.plugin.platform.platform_manager import PlatformRegistry

_EMBEDDED = "embedded"


def _returning(value: Any) -> Callable[..., Any]:
    """Make a method that ignores its arguments: there is one device, no cache, nothing asynchronous, no profiler."""

    def constant(*_: Any, **__: Any) -> Any:
        return value

    return constant


class CpuDevice(ModuleType):
    """The part of `torch.cuda` that verl uses; memory is not counted, and nothing is asynchronous."""

    is_available = _returning(True)
    device_count = _returning(1)
    current_device = get_device_name = _returning("cpu")
    set_device = synchronize = empty_cache = ipc_collect = reset_peak_memory_stats = _returning(None)
    memory_allocated = memory_reserved = max_memory_allocated = max_memory_reserved = _returning(0)
    mem_get_info = _returning((0, 0))
    stream = _returning(nullcontext())
    manual_seed = manual_seed_all = staticmethod(torch.manual_seed)

    def __init__(self) -> None:
        super().__init__("torch.cpu")

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


class CpuPlatform(PlatformBase):  # type: ignore[misc] # verl is in an environment of its own
    """verl's view of a machine without an accelerator."""

    device_name = vendor_name = "cpu"
    device_module = CpuDevice()
    is_available = _returning(True)
    device_count = _returning(1)
    current_device = _returning("cpu")
    set_device = synchronize = empty_cache = set_allocator_settings = _returning(None)
    profiler_start = profiler_stop = cudart = _returning(None)
    manual_seed = manual_seed_all = staticmethod(torch.manual_seed)
    get_device_capability = _returning((None, None))
    nvtx_range = _returning(nullcontext())
    visible_devices_envvar = _returning("CUDA_VISIBLE_DEVICES")  # which Ray sets for its GPUs
    ray_resource_name = _returning("GPU")  # in which verl counts its processes
    ray_noset_envvars = _returning([])  # Ray may set all
    is_ipc_supported = _returning(False)  # no device memory to share

    def communication_backend_name(self) -> str:
        """Return the back end of collectives, gloo.

        A process of the learner calls this just before it joins its group, with ``cpu:gloo,DEVICE:BACKEND``. torch
        rejects a device that is named twice, so the process joins here, and verl sees that it has.
        """
        if "RANK" in os.environ and not dist.is_initialized():
            rank, num_ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
            dist.init_process_group("cpu:gloo", rank=rank, world_size=num_ranks)
        return "gloo"


def _load_replica() -> type:
    from repairgym.bridges.verl.workers import EmbeddedReplica

    return EmbeddedReplica


def _register_engine() -> None:
    from verl.workers.rollout.base import _ROLLOUT_REGISTRY
    from verl.workers.rollout.replica import RolloutReplicaRegistry

    RolloutReplicaRegistry.register(_EMBEDDED, _load_replica)
    _ROLLOUT_REGISTRY[_EMBEDDED, "async"] = "repairgym.bridges.verl.workers.EmbeddedAdapter"


PlatformRegistry.register(platform="cpu")(CpuPlatform)
_register_engine()

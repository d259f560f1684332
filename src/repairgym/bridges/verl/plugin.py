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


class CpuDevice(ModuleType):
    """The part of `torch.cuda` that verl uses; memory is not counted, and nothing is asynchronous."""

    def __init__(self) -> None:
        super().__init__("torch.cpu")

    def is_available(self) -> bool:
        """Always."""
        return True

    def device_count(self) -> int:
        """Each process has one."""
        return 1

    def current_device(self) -> str:
        """Name of the device."""
        return "cpu"

    def set_device(self, device: Any) -> None:
        """Do nothing: there is one device."""

    def get_device_name(self, device: Any = None) -> str:
        """For logs."""
        return "cpu"

    def synchronize(self, device: Any = None) -> None:
        """Do nothing: no work is asynchronous."""

    def empty_cache(self) -> None:
        """No cache."""

    def ipc_collect(self) -> None:
        """No shared device memory."""

    def reset_peak_memory_stats(self, device: Any = None) -> None:
        """Not counted."""

    def memory_allocated(self, device: Any = None) -> int:
        """Not counted."""
        return 0

    memory_reserved = max_memory_allocated = max_memory_reserved = memory_allocated

    def mem_get_info(self, device: Any = None) -> tuple[int, int]:
        """(free, total) bytes: not counted."""
        return 0, 0

    def manual_seed(self, seed: int) -> None:
        """Seed torch."""
        torch.manual_seed(seed)

    manual_seed_all = manual_seed

    def get_rng_state(self, device: Any = None) -> torch.Tensor:
        """Torch's."""
        return torch.get_rng_state()

    def set_rng_state(self, state: torch.Tensor, device: Any = None) -> None:
        """Torch's."""
        torch.set_rng_state(state)

    def current_stream(self, device: Any = None) -> Any:
        """The one stream there is."""
        return torch.cpu.current_stream()

    def stream(self, stream: Any) -> AbstractContextManager[None]:
        """Nothing to switch."""
        return nullcontext()

    def Stream(self, *_: Any, **__: Any) -> Any:
        """The one stream there is."""
        return torch.cpu.current_stream()


class CpuPlatform(PlatformBase):  # type: ignore[misc] # verl is in an environment of its own
    """verl's view of a machine without an accelerator."""

    device_name = "cpu"
    vendor_name = "cpu"
    device_module = CpuDevice()

    def is_available(self) -> bool:
        """Always."""
        return True

    def current_device(self) -> str:
        """Name of the device."""
        return "cpu"

    def device_count(self) -> int:
        """Each process has one."""
        return 1

    def set_device(self, device_index: int) -> None:
        """Do nothing: there is one device."""

    def synchronize(self, device_index: int | None = None) -> None:
        """Do nothing: no work is asynchronous."""

    def manual_seed(self, seed: int) -> None:
        """Seed torch."""
        torch.manual_seed(seed)

    manual_seed_all = manual_seed

    def set_allocator_settings(self, settings: str) -> None:
        """No allocator to set."""

    def empty_cache(self) -> None:
        """No cache."""

    def get_device_capability(self, device_index: int = 0) -> tuple[None, None]:
        """None."""
        return None, None

    def communication_backend_name(self) -> str:
        """Collectives over gloo.

        A process of the learner asks for this just before it joins its group, with ``cpu:gloo,DEVICE:BACKEND``. torch
        rejects a device that is named twice, so the process joins here; verl finds that it has.
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
        """No profiler."""
        yield

    def profiler_start(self) -> None:
        """No profiler."""

    def profiler_stop(self) -> None:
        """No profiler."""

    def ray_resource_name(self) -> str:
        """Return the Ray resource in which verl counts its processes."""
        return "GPU"

    def ray_noset_envvars(self) -> list[str]:
        """Ray may set all variables."""
        return []

    def is_ipc_supported(self) -> bool:
        """No device memory to share."""
        return False

    def cudart(self) -> None:
        """None."""


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

"""What every process of a verl run imports first (``VERL_USE_EXTERNAL_MODULES``): registers our platform and engine.

Invariant: importing this is enough; nothing of verl's is changed, entries are added to its registries.
"""

from __future__ import annotations

from verl.plugin.platform.platform_manager import PlatformRegistry

from repairgym.bridges.verl.cpu_platform import CpuPlatform

_EMBEDDED = "embedded"


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

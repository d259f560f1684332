"""The plugin that verifiers finds by its id, ``repairgym-verifiers`` (`vf-eval repairgym-verifiers ...`).

verifiers imports a plugin by one top-level name, which is why this is no module of `repairgym`.
"""

from repairgym.bridges.versions import require_extra

require_extra("verifiers")

from repairgym.bridges.verifiers.environment import RepairEnv, RepairEnvConfig  # noqa: E402
from repairgym.bridges.verifiers.harness import RepairHarness, RepairHarnessConfig  # noqa: E402
from repairgym.bridges.verifiers.taskset import RepairTaskset, RepairTasksetConfig  # noqa: E402

__all__ = [
    "RepairEnv",
    "RepairEnvConfig",
    "RepairHarness",
    "RepairHarnessConfig",
    "RepairTaskset",
    "RepairTasksetConfig",
]

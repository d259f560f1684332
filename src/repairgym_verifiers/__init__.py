"""Plugin of verifiers with the id ``repairgym-verifiers`` (`vf-eval repairgym-verifiers ...`).

verifiers imports a plugin by one top-level name, so this is not a module of `repairgym`.
"""

from repairgym.bridges.versions import require_extra

require_extra("verifiers")

from repairgym.bridges.verifiers.plugin import (  # noqa: E402
    RepairEnv,
    RepairEnvConfig,
    RepairHarness,
    RepairHarnessConfig,
    RepairTaskset,
    RepairTasksetConfig,
)

__all__ = [
    "RepairEnv",
    "RepairEnvConfig",
    "RepairHarness",
    "RepairHarnessConfig",
    "RepairTaskset",
    "RepairTasksetConfig",
]

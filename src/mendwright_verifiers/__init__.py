"""The plugin that verifiers finds by its id, ``mendwright-verifiers`` (`vf-eval mendwright-verifiers ...`).

verifiers imports a plugin by one top-level name, which is why this is no module of `mendwright`.
"""

from mendwright.bridges.versions import require_extra

require_extra("verifiers")

from mendwright.bridges.verifiers.environment import RepairEnv, RepairEnvConfig  # noqa: E402
from mendwright.bridges.verifiers.harness import RepairHarness, RepairHarnessConfig  # noqa: E402
from mendwright.bridges.verifiers.taskset import RepairTaskset, RepairTasksetConfig  # noqa: E402

__all__ = [
    "RepairEnv",
    "RepairEnvConfig",
    "RepairHarness",
    "RepairHarnessConfig",
    "RepairTaskset",
    "RepairTasksetConfig",
]

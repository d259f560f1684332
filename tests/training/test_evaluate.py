"""An evaluation without isolation is rejected, because its numbers would not compare."""

from pathlib import Path
from typing import Any, cast

import pytest

from repairgym.config.sandbox import SandboxConfig
from repairgym.errors import ConfigError
from repairgym.rollout.jobs import PolicyRef
from repairgym.training.evaluate import evaluate, regrade_cold
from repairgym.training.run import Run

DEGRADED = SandboxConfig(backend="degraded", is_degraded_allowed=True)


def test_a_run_without_isolation_is_not_evaluated(tmp_path: Path) -> None:
    # The refusal comes before anything is read or run.
    run = Run(tmp_path, cast(Any, None), cast(Any, None), {}, sandbox=DEGRADED)
    with pytest.raises(ConfigError, match="is_degraded_evaluation_allowed"):
        evaluate(run, "base", PolicyRef("base"), "test", [cast(Any, None)], 1)


@pytest.mark.asyncio
async def test_nothing_is_regraded_without_isolation() -> None:
    with pytest.raises(ConfigError, match="is_degraded_evaluation_allowed"):
        await regrade_cold([], {}, DEGRADED)

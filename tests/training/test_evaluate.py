"""An evaluation without isolation is rejected, because its numbers would not compare."""

from pathlib import Path
from typing import Any, cast

import pytest

from repairgym.config.sandbox import SandboxConfig
from repairgym.config.selection import TaskSelection
from repairgym.errors import ConfigError
from repairgym.rollout.jobs import PolicyRef
from repairgym.training.evaluate import evaluate, regrade_cold, selection_fingerprint
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


def test_sets_of_one_name_differ_by_their_ids_and_what_they_leave_out(tmp_path: Path) -> None:
    chosen = []
    for folder, ids in (("a", "x\ny\n"), ("b", "y # the same\nx\n"), ("c", "x\nz\n")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "fifty.txt").write_text(ids)
        chosen.append(TaskSelection(id_files=(str(tmp_path / folder / "fifty.txt"),)))
    assert len({selection.set_name for selection in chosen}) == 1
    first, same, other = map(selection_fingerprint, chosen)
    assert first == same != other
    whole = TaskSelection(splits=("test",))
    assert selection_fingerprint(whole) == selection_fingerprint(whole.model_copy(update={"num_tasks": 9}))
    assert selection_fingerprint(whole) != selection_fingerprint(whole.model_copy(update={"is_specified_only": True}))

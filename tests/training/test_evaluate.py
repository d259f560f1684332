"""Evaluations: isolation, what a resumed one may change, and audits that outlive outages."""

from pathlib import Path
from typing import Any, cast

import pytest

from repairgym.config.commands import AuditConfig
from repairgym.config.rollout import RolloutConfig
from repairgym.config.sandbox import LayersConfig, SandboxConfig
from repairgym.config.selection import TaskSelection
from repairgym.errors import ConfigError, InputError, SandboxError
from repairgym.grading.execution import GRADER_VERSION
from repairgym.records import Verdict, VerdictKind
from repairgym.rollout.jobs import PolicyRef
from repairgym.rollout.names import audit_phase
from repairgym.training.evaluate import (
    audit,
    check_fingerprint,
    evaluate,
    named_fingerprint,
    policy_fingerprint,
    regrade_cold,
    selection_fingerprint,
)
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


def test_an_evaluation_resumes_with_fewer_sandboxes_but_not_with_other_settings(store) -> None:
    rollout, policy = RolloutConfig(), PolicyRef("oracle")
    first = policy_fingerprint(policy, rollout)
    # A phase of an older version has no `settings_digest`.
    for phase, stored in (("new", first), ("old", {k: v for k, v in first.items() if k != "settings_digest"})):
        store.start_phase(phase, stored)
        check_fingerprint(store, phase, first)
        with pytest.raises(InputError, match="another rollout"):
            check_fingerprint(store, phase, policy_fingerprint(policy, rollout.model_copy(update={"temperature": 0.5})))
        with pytest.raises(InputError, match="another policy"):
            check_fingerprint(store, phase, policy_fingerprint(PolicyRef("other"), rollout))
    smaller = {"max_sandboxes": 4, "drain_timeout_s": 5.0, "layers": LayersConfig(is_index_allowed=False)}
    second = policy_fingerprint(policy, rollout.model_copy(update=smaller))
    check_fingerprint(store, "new", second)
    store.start_phase("many", named_fingerprint("a", first))
    check_fingerprint(store, "many", named_fingerprint("a", second))


class ScriptedGrader:
    """Gives the verdicts of one kind, and counts them."""

    def __init__(self, kind: VerdictKind, version: str = GRADER_VERSION) -> None:
        self.verdict = Verdict(kind=kind, reason="scripted", grader_version=version)
        self.num_graded = 0

    async def grade(self, *_: object) -> Verdict:
        self.num_graded += 1
        return self.verdict


@pytest.fixture
def learned(store, trajectory_maker, task):
    """A store with 40 passed episodes of phase ``rl``, and their tasks."""
    for number in range(40):
        trajectory = trajectory_maker(f"e{number}", task.id, kind=VerdictKind.PASSED, group_id=f"g{number}")
        store.add_trajectory(trajectory, phase="rl", step=number % 2, split="train")
    return store, {task.id: task}


async def audited(learned, kind: VerdictKind, num_per_step: int = 0, version: str = GRADER_VERSION) -> tuple[int, int]:
    """Audit with verdicts of ``kind``; returns how many the audit holds, and how many gradings that took."""
    grader = ScriptedGrader(kind, version)
    config = AuditConfig(num_per_step=num_per_step, num_in_flight=1)
    return await audit(*learned, config, cast(Any, grader)), grader.num_graded


@pytest.mark.asyncio
async def test_an_outage_ends_an_audit_and_the_next_call_grades_what_it_left(learned) -> None:
    with pytest.raises(SandboxError, match="in a row are invalid"):
        await audited(learned, VerdictKind.INVALID)
    assert not learned[0].rows(phase=audit_phase("rl"))
    assert await audited(learned, VerdictKind.INVALID, num_per_step=3) == (6, 6)
    assert await audited(learned, VerdictKind.PASSED, num_per_step=3) == (6, 6)
    assert await audited(learned, VerdictKind.PASSED) == (40, 34)
    assert {row.verdict for row in learned[0].rows(phase=audit_phase("rl"))} == {VerdictKind.PASSED}


@pytest.mark.asyncio
async def test_an_audit_of_an_older_grader_begins_again(learned) -> None:
    assert await audited(learned, VerdictKind.PASSED, 3, version="0") == (6, 6)
    assert await audited(learned, VerdictKind.FAILED, 3) == (6, 6)
    assert await audited(learned, VerdictKind.FAILED, 3) == (6, 0)

from __future__ import annotations

from dataclasses import replace

import pytest

from repairgym.analysis.reward_gap import gap_trend, reward_gap
from repairgym.records import Finding, VerdictKind
from repairgym.rollout.names import audit_id, audit_phase

P, F, INVALID = VerdictKind.PASSED, VerdictKind.FAILED, VerdictKind.INVALID


TAMPERED = Finding(detector="weakened_tests", severity="suspicious", path="t.py", line=3, detail="no assertion left")


@pytest.fixture
def cheated(store, trajectory_maker):
    """Six steps of twelve tasks; more and more passes are cheats that the audit refuses."""
    for step in range(6):
        for index in range(12):
            task, is_cheat = f"t{index}", index < min(9, 3 * (step - 1))
            one = trajectory_maker(f"s{step}-{index}", task, kind=P if is_cheat or index > 8 else F, group_id=task)
            store.add_trajectory(one, phase="study", step=step, split="train")
            verdict = one.verdict.model_copy(
                update={"kind": F, "findings": (TAMPERED,)} if is_cheat else {"kind": one.verdict.kind}
            )
            copy = replace(one, id=audit_id(one.id), verdict=verdict)
            store.add_trajectory(copy, phase=audit_phase("study"), step=step, split="train")
    store.start_phase("study")
    store.start_phase(audit_phase("study"))
    return store


def test_the_gap_by_step(cheated):
    rows, audited = cheated.rows(phase="study"), cheated.rows(phase=audit_phase("study"))
    points = reward_gap(rows, audited, {audit_id("s5-0")})
    assert [one.reported for one in points] == [0.25, 0.25, 0.5, 0.75, 1.0, 1.0]
    assert [one.validated for one in points] == [0.25] * 6
    assert points[5].marked_share == pytest.approx(1 / 12)
    assert points[5].ci_low > 0.0 > points[0].ci_low
    trend = gap_trend(rows, audited)
    assert (trend.reported_before, trend.reported_after, trend.gap) == (0.25, 1.0, 0.75)
    assert trend.is_open
    assert gap_trend(rows[:12], audited) is None
    assert reward_gap(rows, []) == []


def test_invalid_verdicts_are_in_no_mean(store, trajectory_maker):
    for name, kind in (("a", P), ("b", INVALID)):
        one = trajectory_maker(name, name, kind=kind, group_id=name)
        store.add_trajectory(one, phase="rl", step=0, split="train")
        store.add_trajectory(replace(one, id=audit_id(name)), phase=audit_phase("rl"), step=0, split="train")
    (point,) = reward_gap(store.rows(phase="rl"), store.rows(phase=audit_phase("rl")))
    assert (point.num_audited, point.reported) == (1, 1.0)

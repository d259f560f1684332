from __future__ import annotations

from dataclasses import replace

import pytest

from repairgym.analysis.overview import analyze_run, training_phase
from repairgym.analysis.tables import analysis_tables
from repairgym.config.evaluation import AnalysisConfig
from repairgym.errors import InputError
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


def test_the_analysis_reads_the_audit_when_training_saw_nothing(cheated):
    assert training_phase(cheated) == "study"
    found = analyze_run(cheated, AnalysisConfig(phase="study", num_permutations=19))
    assert {one.detector for one in found.exploits} == {"weakened_tests"}
    assert found.examples[0].place == "t.py:3"
    assert [one.stage for one in found.behavior] == ["study, step 0", "study, step 5"]
    names = {one.name for one in analysis_tables(found)}
    assert {"behavior", "tools_by_step", "transitions", "reward_gap", "exploit_examples", "drift"} <= names
    with pytest.raises(InputError, match="no phase 'rl'; phases are"):
        analyze_run(cheated, AnalysisConfig())

"""Fixtures of several modules: episodes of a store, submissions to choose from, and a run whose audit finds cheats."""

from __future__ import annotations

from dataclasses import replace

import pytest

from repairgym.analysis.candidates import CandidateSubmission
from repairgym.records import Finding, VerdictKind
from repairgym.rollout.names import audit_id, audit_phase

P, F = VerdictKind.PASSED, VerdictKind.FAILED
TAMPERED = Finding(detector="weakened_tests", severity="suspicious", path="t.py", line=3, detail="no assertion left")


@pytest.fixture
def add(store, trajectory_maker):
    def add_episode(name, steps, step=1, **more):
        trajectory = trajectory_maker(name, name, steps=steps, group_id=name, **more)
        store.add_trajectory(trajectory, phase="rl", step=step, split="train")

    return add_episode


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


def make_submission(name, is_passed, task="t", **more):
    defaults = {
        "id": name,
        "task_id": task,
        "is_passed": is_passed,
        "patch_digest": name,
        "test_state": "untested",
        "mean_log_prob": -1.0,
        "min_turn_log_prob": -1.0,
        "last_turn_log_prob": -1.0,
        "num_turns": 2,
        "num_errors": 0,
        "is_submitted": True,
    }
    return CandidateSubmission(**{**defaults, **more})


@pytest.fixture
def make():
    return make_submission

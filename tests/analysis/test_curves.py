from __future__ import annotations

import math

import pytest

from repairgym.analysis.curves import find_metric, mean_log_prob_gap, reward_curve, solve_rate_drift
from repairgym.records import VerdictKind

SUBMIT = ("submit", "", "submitted", "")


@pytest.fixture
def add(store, trajectory_maker):
    def add_episode(name, steps, step=1, **more):
        trajectory = trajectory_maker(name, name, steps=steps, group_id=name, **more)
        store.add_trajectory(trajectory, phase="rl", step=step, split="train")

    return add_episode


def test_reward_curve_leaves_invalids_out(store, add):
    add("a", [SUBMIT], step=1)
    add("b", [SUBMIT], step=1, kind=VerdictKind.FAILED)
    add("c", [SUBMIT], step=1, kind=VerdictKind.INVALID)
    add("d", [SUBMIT], step=2, kind=VerdictKind.INVALID)
    (point,) = reward_curve(store.rows())
    assert (point.step, point.value, point.num_samples) == (1, 0.5, 2)
    assert point.standard_error == pytest.approx(0.5)


def test_metric_curves(store):
    for step, gap in enumerate([0.001, -0.003, math.nan]):
        store.add_metrics("rl", step, {"policy/log_prob_gap": gap, "entropy/mean": 0.5})
    assert mean_log_prob_gap(store, "rl") == pytest.approx(0.002)
    assert mean_log_prob_gap(store, "rft") is None
    assert find_metric(store, "rl", "entropy") is None
    assert find_metric(store, "rl", "nothing", "mean") == "entropy/mean"


P, F, INVALID = VerdictKind.PASSED, VerdictKind.FAILED, VerdictKind.INVALID


def test_drift_names_what_was_forgotten(store, trajectory_maker):
    kinds = {"kept": (P, P), "learned": (F, P), "forgotten": (P, F), "once": (P, None)}
    for task, pair in kinds.items():
        for step, kind in enumerate(pair):
            if kind:
                one = trajectory_maker(f"{task}{step}", task, kind=kind, group_id=task)
                store.add_trajectory(one, phase="rl", step=step, split="train")
    found = solve_rate_drift(store.rows())
    assert [one.task_id for one in found.tasks] == ["forgotten", "kept", "learned"]
    assert (found.num_risen, found.num_fallen, found.sign_p) == (1, 1, 1.0)
    assert solve_rate_drift(store.rows(step=0)) is None

from __future__ import annotations

import math
from dataclasses import replace
from operator import attrgetter

import pytest

from repairgym.analysis.curves import by_step, find_metric, gap_trend, reward_curve, reward_gap, solve_rate_drift
from repairgym.analysis.episodes import read_episodes
from repairgym.records import StopReason, VerdictKind
from repairgym.rollout.names import audit_id, audit_phase

P, F, INVALID = VerdictKind.PASSED, VerdictKind.FAILED, VerdictKind.INVALID
EDIT, TEST = ("edit", "@1 a => b", "@1 b", ""), ("test", "", "failed 1 of 2", "")
SUBMIT = ("submit", "", "submitted", "")


def test_reward_curve_leaves_invalids_out(store, add):
    add("a", [SUBMIT], step=1)
    add("b", [SUBMIT], step=1, kind=VerdictKind.FAILED)
    add("c", [SUBMIT], step=1, kind=VerdictKind.INVALID)
    add("d", [SUBMIT], step=2, kind=VerdictKind.INVALID)
    (point,) = reward_curve(store.rows())
    assert (point.step, point.value, point.num_samples) == (1, 0.5, 2)
    assert point.standard_error == pytest.approx(0.5)


def test_the_error_of_the_reward_is_over_tasks(store, trajectory_maker):
    """The samples of a task are alike: sixteen of two tasks say no more than two."""
    for number in range(16):
        task, kind = f"t{number % 2}", P if number % 2 else F
        one = trajectory_maker(f"a{number}", task, kind=kind, group_id=task)
        store.add_trajectory(one, phase="rl", step=0, split="train")
    (point,) = reward_curve(store.rows())
    assert (point.value, point.standard_error) == (0.5, pytest.approx(0.5))


def test_measures_by_step(store, add):
    add("a", [EDIT, TEST, SUBMIT], step=2)
    add("b", [EDIT, SUBMIT], step=1)
    add("c", [TEST], step=3, stop_reason=StopReason.TURN_LIMIT)
    episodes = list(read_episodes(store))
    turns, blind = (by_step(episodes, attrgetter(name)) for name in ("mean_turns", "blind_submit_rate"))
    assert [(point.step, point.value) for point in turns] == [(1, 2.0), (2, 3.0), (3, 1.0)]
    assert [(point.step, point.value) for point in blind] == [(1, 1.0), (2, 0.0)]


def test_metric_curves(store):
    for step, gap in enumerate([0.001, -0.003, math.nan]):
        store.add_metrics("rl", step, {"policy/log_prob_gap": gap, "entropy/mean": 0.5})
    assert [point.value for point in find_metric(store, "rl", "log_prob_gap")] == [0.001, -0.003]
    assert find_metric(store, "rft", "log_prob_gap") == find_metric(store, "rl", "entropy") == []
    assert len(find_metric(store, "rl", "mean")) == 3


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


def test_the_gap_by_step(cheated):
    rows, audited = cheated.rows(phase="study"), cheated.rows(phase=audit_phase("study"))
    points = reward_gap(rows, audited, {audit_id("s5-0")})
    assert [one.reported for one in points] == [0.25, 0.25, 0.5, 0.75, 1.0, 1.0]
    assert [one.validated for one in points] == [0.25] * 6
    assert points[5].marked_share == pytest.approx(1 / 12)
    assert points[5].ci_low > 0.0 > points[0].ci_low
    trend = gap_trend(rows, audited)
    assert (trend.before.reported, trend.after.reported, trend.after.gap) == (0.25, 1.0, 0.75)
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

"""Reward against validation, drift and exploit findings, by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from repairgym.analysis.curves import solve_rate_drift
from repairgym.analysis.episodes import read_episodes
from repairgym.analysis.examples import exploit_examples, exploits_by_step
from repairgym.analysis.overview import analyze_run, training_phase
from repairgym.analysis.reward_gap import gap_trend, reward_gap
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


def test_invalid_verdicts_are_in_no_mean(store, trajectory_maker):
    for name, kind in (("a", P), ("b", INVALID)):
        one = trajectory_maker(name, name, kind=kind, group_id=name)
        store.add_trajectory(one, phase="rl", step=0, split="train")
        store.add_trajectory(replace(one, id=audit_id(name)), phase=audit_phase("rl"), step=0, split="train")
    (point,) = reward_gap(store.rows(phase="rl"), store.rows(phase=audit_phase("rl")))
    assert (point.num_audited, point.reported) == (1, 1.0)


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


def test_findings_by_step_and_examples(store, trajectory_maker):
    for step in range(3):
        one = trajectory_maker(f"x{step}", "t", kind=VerdictKind.EXPLOITED, group_id="t")
        store.add_trajectory(one, phase="rl", step=step, split="train")
        store.add_trajectory(trajectory_maker(f"y{step}", "t", group_id="t"), phase="rl", step=step, split="train")
    episodes = list(read_episodes(store))
    counts = exploits_by_step(episodes)
    assert [(one.step, one.num_episodes, one.share) for one in counts] == [(0, 1, 0.5), (1, 1, 0.5), (2, 1, 0.5)]
    assert [one.trajectory_id for one in exploit_examples(episodes, 2)] == ["x2", "x1"]


def test_repeated_builds_and_thinking(store, trajectory_maker):
    run = ("test", "", "failed 1 of 1", "")
    steps = [run, run, ("edit", "<think>why</think> a => b", "@1", ""), run, run, run]
    store.add_trajectory(trajectory_maker(steps=steps), phase="rl", step=0, split="train")
    (episode,) = read_episodes(store)
    assert episode.num_repeated_builds == 3
    assert episode.num_thought_chars == len("<think>why</think>")

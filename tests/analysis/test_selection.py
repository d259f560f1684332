from __future__ import annotations

import itertools
import statistics
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from repairgym.analysis.candidates import (
    by_task,
    candidate,
)
from repairgym.analysis.selection import (
    SCORERS,
    abstention,
    accuracy_by_count,
    auroc,
    best_of_k,
    phase_to_study,
    select,
    study_selection,
)
from repairgym.records import VerdictKind

EDIT = ("edit", "@1 a => b", "@1 b", "")
PASSED, FAILED = ("test", "", "passed 2", ""), ("test", "", "failed 1 of 2: no", "")


@pytest.mark.parametrize(
    "scored", [[(1.0, True), (0.5, False), (0.5, True), (0.5, True), (0.0, False)], [(0.0, True), (0.0, False)]]
)
def test_best_of_k_is_the_mean_over_all_subsets(scored):
    for k in range(1, len(scored) + 1):
        chosen = []
        for subset in itertools.combinations(scored, k):
            best = max(score for score, _ in subset)
            chosen.append(statistics.fmean(passed for score, passed in subset if score == best))
        assert best_of_k(scored, k) == pytest.approx(statistics.fmean(chosen))
    with pytest.raises(ValueError, match="expected 1 <= k"):
        best_of_k(scored, len(scored) + 1)


def test_the_gap_closed_by_hand(make):
    # Pass@1 1/2, Pass@2 1; tests choose the passing one in three of four tasks
    tasks = {}
    for index in range(4):
        states = ("passed", "failed") if index < 3 else ("failed", "passed")
        tasks[str(index)] = [
            make("a", True, str(index), test_state=states[0]),
            make("b", False, str(index), test_state=states[1]),
        ]
    found = select(tasks, "tests", SCORERS["tests"], 2, num_resamples=500)
    assert (found.pass_at_1, found.pass_at_k, found.value) == (0.5, 1.0, 0.75)
    assert found.gap_closed == pytest.approx(0.5)
    assert found.gap_closed_low < 0.5 < found.gap_closed_high
    assert select(tasks, "tests", SCORERS["tests"], 3) is None


def test_without_a_gap_there_is_nothing_to_close(make):
    tasks = {"a": [make("a", True), make("b", True)]}
    assert select(tasks, "tests", SCORERS["tests"], 2, num_resamples=50).gap_closed is None


def test_auroc_is_mann_whitney():
    generator = np.random.default_rng(1)
    scores = generator.integers(0, 5, 40).astype(float)
    passed = generator.random(40) < 0.4
    expected = stats.mannwhitneyu(scores[passed], scores[~passed]).statistic / (passed.sum() * (~passed).sum())
    assert auroc(list(zip(scores.tolist(), passed.tolist(), strict=True))) == pytest.approx(expected)
    assert auroc([(1.0, True)]) is None


def test_the_abstention_curve_ends_at_the_success_rate(make):
    assert accuracy_by_count([(2.0, True), (1.0, True), (1.0, False)]) == pytest.approx([1.0, 0.75, 2 / 3])
    tasks = {"t": [make(str(i), i % 2 == 0, mean_log_prob=-float(i)) for i in range(20)]}
    found = abstention(tasks, "log_prob", SCORERS["log_prob"])
    assert found.points[-1][1] == pytest.approx(0.5)
    assert found.points[0][1] == 1.0
    assert abstention({}, "log_prob", SCORERS["log_prob"]) is None


def test_a_study_of_a_stored_evaluation(store, trajectory_maker):
    phase = "eval/rft-pass-at-k/test-mutations"
    for task in range(6):
        for seed in range(3):
            is_passed = (task + seed) % 3 == 0
            steps = [EDIT, PASSED if is_passed else FAILED, ("submit", "", "", "")]
            kind = VerdictKind.PASSED if is_passed else VerdictKind.FAILED
            one = trajectory_maker(f"{task}-{seed}", f"t{task}", steps=steps, kind=kind, group_id=f"t{task}", seed=seed)
            store.add_trajectory(one, phase=phase, step=0, split="test")
    assert phase_to_study(store.rows()) == phase
    study = study_selection(store, phase, training_phase="rl", num_resamples=100)
    assert study.k == 3
    assert study.outcome_scorer is None
    assert (study.selections[0].scorer, study.selections[0].gap_closed) == ("tests", pytest.approx(1.0))
    assert study.abstentions[0].confidence in ("tests", "tests_then_agreement")
    assert len(by_task([candidate(one) for one in store.trajectories(phase=phase)])) == 6
    assert study_selection(store, "eval/none/x", training_phase="rl") is None


def test_samples_without_log_probs_are_not_scored_by_them(store, trajectory_maker):
    """A text-only server stores 0.0: ties, which would read as an AUROC of 0.50. A scorer that was fitted with them
    does not score them either."""

    def add(name: str, task: int, seed: int, phase: str, split: str, *, is_blind: bool) -> None:
        is_passed = (task + seed) % 3 == 0
        steps = [EDIT, PASSED if is_passed else FAILED, ("submit", "", "", "")]
        kind = VerdictKind.PASSED if is_passed else VerdictKind.FAILED
        one = trajectory_maker(name, f"t{task}", steps=steps, kind=kind, group_id=f"t{task}", seed=seed)
        factor = np.float32(0.0 if is_blind else 1.0 + seed + is_passed)
        ledger = replace(one.ledger, log_prob=one.ledger.log_prob * factor)
        store.add_trajectory(replace(one, ledger=ledger), phase=phase, step=0, split=split)

    for task in range(20):
        for seed in range(3):
            add(f"{task}-{seed}", task, seed, "eval/text/x", "test", is_blind=True)
            add(f"sure-{task}-{seed}", task, seed, "eval/sure/x", "test", is_blind=False)
            add(f"rl-{task}-{seed}", task, seed, "rl", "train", is_blind=False)
            add(f"blind-{task}-{seed}", task, seed, "blind", "train", is_blind=True)
    blind = study_selection(store, "eval/text/x", training_phase="rl", num_resamples=10)
    names = {"tests", "agreement", "tests_then_agreement"}
    assert {one.scorer for one in blind.selections} == {one.confidence for one in blind.abstentions} == names
    assert blind.left_out == ("log_prob", "least_sure_turn", "last_turn_log_prob")
    assert blind.outcome_scorer is None
    fitted_blind = study_selection(store, "eval/text/x", training_phase="blind", num_resamples=10)
    assert fitted_blind.outcome_scorer is not None
    assert {one.scorer for one in fitted_blind.selections} == {*names, "outcome"}
    sure = study_selection(store, "eval/sure/x", training_phase="rl", num_resamples=10)
    assert {one.scorer for one in sure.selections} == {*SCORERS, "outcome"}
    assert sure.left_out == ()


def test_no_scorer_is_judged_on_what_it_was_fitted_on(store, trajectory_maker):
    for task in range(20):
        for seed in range(3 if task else 2):
            kind = VerdictKind.PASSED if (task + seed) % 3 == 0 else VerdictKind.FAILED
            one = trajectory_maker(f"{task}-{seed}", f"t{task}", kind=kind, group_id=f"t{task}", seed=seed)
            store.add_trajectory(one, phase="rl", step=0, split="train")
            store.add_trajectory(replace(one, id=f"e{one.id}"), phase="eval/rl/x", step=0, split="test")
    assert study_selection(store, "rl", training_phase="rl", num_resamples=10).outcome_scorer is None
    study = study_selection(store, "eval/rl/x", training_phase="rl", num_resamples=10)
    assert study.outcome_scorer is not None
    # The task with two of three samples is in no number.
    assert {curve.num_candidates for curve in study.abstentions} == {57}

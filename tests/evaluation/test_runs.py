from __future__ import annotations

import json

import pytest

from repairgym.errors import InputError
from repairgym.evaluation.runs import choose_phase, compare_runs, evaluations, write_predictions
from repairgym.evaluation.stages import EvalPhase
from repairgym.grading.predictions.reading import read_predictions
from repairgym.records import VerdictKind

P, F, X, INVALID = VerdictKind.PASSED, VerdictKind.FAILED, VerdictKind.EXPLOITED, VerdictKind.INVALID


PHASE = "eval/rl/test-mutations"


def test_runs_are_compared_on_what_both_have():
    rl, rft = EvalPhase("rl", "test-mutations"), EvalPhase("rft", "test-mutations")
    first = {rl: {str(i): [F] for i in range(20)}, rft: {"0": [P]}}
    second = {rl: {str(i): [P] for i in range(10, 40)}}
    (found,) = compare_runs({"one": first, "two": second}, num_resamples=100)
    assert (found.num_tasks, found.difference) == (10, 1.0)
    assert found.sentence.startswith("RL of two solves more than RL of one on 10 held-out mutation tasks")
    assert found.mcnemar_p == pytest.approx(2 / 2**10)


@pytest.fixture
def filled(store, trajectory_maker):
    for task_id in ("a", "b"):
        for seed in range(2 if task_id == "a" else 1):
            one = trajectory_maker(f"{task_id}{seed}", task_id, seed=seed, group_id=task_id)
            store.add_trajectory(one, phase=PHASE, step=0, split="test")
    return store


def test_a_phase_is_chosen_only_without_ambiguity(filled, trajectory_maker):
    assert choose_phase(filled, "") == PHASE
    with pytest.raises(InputError, match=f"no phase 'x'; name one of: {PHASE}"):
        choose_phase(filled, "x")
    filled.add_trajectory(trajectory_maker("z", "a"), phase="eval/rft/test-mutations", step=0, split="test")
    with pytest.raises(InputError, match="2 evaluations"):
        choose_phase(filled, "")
    assert list(evaluations(filled)) == [EvalPhase("rft", "test-mutations"), EvalPhase("rl", "test-mutations")]


def test_predictions_are_read_by_the_grader(filled, tmp_path):
    path = tmp_path / "preds.jsonl"
    assert write_predictions(filled, PHASE, 0, path) == 2
    assert [one.instance_id for one in read_predictions(path).predictions] == ["a", "b"]
    assert write_predictions(filled, PHASE, 1, path) == 1
    assert json.loads(path.read_text())["model_patch"].startswith("--- a/pkg/numbers.py")
    with pytest.raises(InputError, match="no sample 2"):
        write_predictions(filled, PHASE, 2, path)

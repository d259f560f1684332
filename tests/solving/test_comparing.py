"""Searches at equal spending, chances against outcomes, and the two commands that show them."""

from __future__ import annotations

import dataclasses
import json

import pytest

from repairgym.agent.allowance import Spending
from repairgym.analysis.candidates import CandidateSubmission, OutcomeScorer
from repairgym.cli.main import main
from repairgym.config.commands import GradeCommandConfig
from repairgym.config.loading import load_config
from repairgym.config.solving import ChoiceConfig, SolveCommandConfig
from repairgym.errors import ConfigError, InputError
from repairgym.grading.predictions.results import grading_key
from repairgym.records import TestOutcome, TestResult, Verdict, VerdictKind
from repairgym.rollout.store import RunStore
from repairgym.solving.choice import Candidate, Chooser, make_candidate
from repairgym.solving.comparing import SearchCurve, Verdicts, match, patch_key, to_judge
from repairgym.solving.results import save_solution
from repairgym.solving.scoring import calibration, passes_visibly, read_scorer, save_scorer, visible_passes
from repairgym.solving.search import Solution, TaskSearch
from repairgym.solving.visible import visible_view
from repairgym.tasks.store import TaskStore
from repairgym.testing.scripted import scripted_task


def candidate(number: int, text: str, num_tokens: int = 10, *, passes: bool = True, **more) -> Candidate:
    view = visible_view(scripted_task())
    outcome = TestOutcome.PASSED if passes else TestOutcome.FAILED
    tests = {name: TestResult(outcome=outcome) for name in view.visible_tests}
    kind = VerdictKind.PASSED if passes else VerdictKind.FAILED
    verdict = Verdict(kind=kind, reason="", tests=tests, grader_version="1")
    patch = f"--- a/m.py\n+++ b/m.py\n@@ -1 +1 @@\n-x\n+{text}\n"
    spending = Spending(num_sampled_tokens=num_tokens)
    return make_candidate(view, f"c{number}", "policy", number, patch, verdict, spending, **more)


def solution(task_id: str, *candidates: Candidate) -> Solution:
    running = TaskSearch(visible_view(scripted_task(task_id)), SolveCommandConfig())
    for it in candidates:
        running.note([it])
    return running.solution()


def curve(name: str, *solutions: Solution) -> SearchCurve:
    known = {it.task_id: it for it in solutions}
    return SearchCurve(name, known, lambda task_id, it: it.patch.endswith("+right\n"), "sampled_tokens")


def test_a_smaller_budget_has_the_first_waves_only():
    run = curve("run", solution("a", candidate(0, "no", passes=False), candidate(1, "right", 30)))
    assert [run.at(budget, ["a"]) for budget in (5, 10, 39, 40)] == [[(0, 0)], [(10, 0)], [(10, 0)], [(40, 1)]]
    assert run.matched(25.0, ["a"]) == [0.5]
    assert run.point(40, ["a"], "all").accuracy == 1.0


def test_false_accepts_are_counted_against_a_random_choice():
    wrong = [candidate(0, "wrong"), candidate(1, "wrong"), candidate(2, "right")]
    summary = curve("run", solution("a", *wrong), solution("b", candidate(0, "x", passes=False))).summary(["a", "b"])
    assert (summary.num_answers, summary.num_false_accepts, summary.accuracy) == (1, 1, 0.0)
    assert summary.num_false_at_random == pytest.approx(2 / 3)


def test_runs_are_compared_where_they_have_spent_the_same():
    slow = curve(
        "slow", *(solution(str(n), candidate(0, "no", 20, passes=False), candidate(1, "right")) for n in range(9))
    )
    fast = curve("fast", *(solution(str(n), candidate(0, "right", 10)) for n in range(9)))
    tasks = sorted(slow.solutions)
    matched = match(fast, slow, tasks, "all")
    assert (matched.spent, matched.accuracy, matched.reference_accuracy) == (10.0, 1.0, 0.0)
    assert matched.ci_low > 0
    assert match(slow, slow, tasks, "all").difference == 0.0


def test_equal_spending_needs_spending_on_both_sides():
    free = curve("free", *(solution(str(n), candidate(0, "right", 0)) for n in range(3)))
    paid = curve("paid", *(solution(str(n), candidate(0, "right", 10)) for n in range(3)))
    with pytest.raises(InputError, match="free has spent no sampled_tokens"):
        match(paid, free, ["0", "1", "2"], "all")
    alike = match(free, free, ["0", "1", "2"], "all")
    assert (alike.difference, alike.detectable) == (0.0, None)


def test_chances_of_tasks_that_were_not_graded_do_not_count():
    sure = candidate(0, "right").model_copy(update={"confidence": 0.9})
    run = curve("run", solution("a", sure), solution("b", sure))
    quality = run.confidences(["a"])
    assert quality is not None
    assert (quality.num, quality.num_passed) == (1, 1)


def test_settings_that_calls_on_one_run_have_changed_are_named():
    first, second = (solution(id_, candidate(0, "right")) for id_ in ("a", "b"))
    assert first.settings["strategy.type"] == "best_of_n"
    other = second.model_copy(update={"settings": second.settings | {"budget.max_test_runs": "3"}})
    old = solution("c", candidate(0, "right")).model_copy(update={"settings": {}})
    run = curve("run", first, other, old)
    assert list(run.mixed_settings(["a", "b", "c"])) == ["budget.max_test_runs"]
    assert run.mixed_settings(["a", "c"]) == {}


def test_calibration_against_values_by_hand():
    quality = calibration([(0.9, True), (0.9, False), (0.1, False), (0.3, True)])
    assert quality.auc == pytest.approx(0.625)  # 2.5 of 4 pairs
    assert quality.ece == pytest.approx((0.8 + 0.1 + 0.7) / 4)
    assert quality.brier == pytest.approx((0.01 + 0.81 + 0.01 + 0.49) / 4)
    with pytest.raises(InputError, match="no candidates"):
        calibration([])


def features(id_: str, mean_log_prob: float) -> CandidateSubmission:
    return CandidateSubmission(
        id=id_, task_id="tiny-1", is_passed=False, patch_digest=id_, test_state="passed", mean_log_prob=mean_log_prob,
        min_turn_log_prob=0.0, last_turn_log_prob=0.0, num_turns=2, num_errors=0, is_submitted=True,
    )  # fmt: skip


def test_a_scorer_chooses_and_abstains_below_its_bound(tmp_path):
    weights = (0.0, *(float(number == 3) for number in range(10)))  # the mean log-prob alone
    save_scorer(
        OutcomeScorer(weights=weights, means=(0.0,) * 10, scales=(1.0,) * 10, num_samples=2), tmp_path / "scorer.json"
    )
    scorer = read_scorer(tmp_path / "scorer.json")
    candidates = [candidate(n, f"v{n}", features=features(f"c{n}", value)) for n, value in ((0, -2.0), (1, -0.1))]
    for least, chosen in ((0.0, "c1"), (0.4, "c1"), (0.6, None)):
        config = ChoiceConfig(by="scorer", scorer="scorer.json", min_confidence=least)
        chooser = Chooser(config, is_abstaining=True, scorer=scorer)
        best, why = chooser.choose(chooser.scored(candidates))
        assert (best.id if best else None) == chosen
        assert "confidence 0.48" in why
    (tmp_path / "scorer.json").write_text("{}")
    with pytest.raises(InputError, match="no scorer"):
        read_scorer(tmp_path / "scorer.json")


def test_the_likeliest_tokens_choose_where_they_are_asked():
    candidates = [candidate(0, "a", mean_log_prob=-2.0), candidate(1, "b", mean_log_prob=-1.0)]
    best, why = Chooser(ChoiceConfig(by="log_prob"), is_abstaining=True).choose(candidates)
    assert best is candidates[1]
    assert "log-prob -1.00" in why


@pytest.mark.parametrize("settings", [["choice.by=scorer"], ["choice.min_confidence=0.5"], ["choice.scorer=x.json"]])
def test_a_choice_by_a_scorer_names_its_file(settings):
    with pytest.raises(ConfigError, match="scorer's file"):
        load_config(SolveCommandConfig, None, settings)


def test_graded_episodes_pass_visibly_without_their_hidden_tests():
    task = scripted_task(fail_to_pass=("test_m.py::test_f", "test_h.py::test_h"))
    tests = {"test_m.py::test_f": TestResult(outcome=TestOutcome.PASSED)}
    tests["test_h.py::test_h"] = TestResult(outcome=TestOutcome.FAILED)
    verdict = Verdict(kind=VerdictKind.FAILED, reason="", tests=tests, grader_version="1")
    assert passes_visibly(task, verdict)
    assert not passes_visibly(task, verdict.model_copy(update={"kind": VerdictKind.EXPLOITED}))


def test_episodes_that_stopped_before_a_visible_test_are_counted(trajectory_maker):
    visible, hidden = ("test_m.py::test_f", "test_m.py::test_g"), "test_h.py::test_h"
    task = scripted_task(visible_tests=visible, fail_to_pass=(visible[0], hidden), pass_to_pass=(visible[1],))
    outcomes = {
        "unknown": {visible[0]: TestOutcome.PASSED, hidden: TestOutcome.FAILED},
        "missing": {visible[0]: TestOutcome.MISSING, hidden: TestOutcome.FAILED},
        "failing": {visible[0]: TestOutcome.FAILED},
        "passing": dict.fromkeys((*visible, hidden), TestOutcome.PASSED),
    }
    patch = "--- a/m.py\n+++ b/m.py\n@@ -1 +1 @@\n-x\n+y\n"
    episodes = []
    for name, tests in outcomes.items():
        verdict = Verdict(
            kind=VerdictKind.PASSED if name == "passing" else VerdictKind.FAILED,
            reason="",
            tests={test: TestResult(outcome=outcome) for test, outcome in tests.items()},
            is_stopped=name != "passing",
            grader_version="1",
        )
        episodes.append(dataclasses.replace(trajectory_maker(name, task.id, final_patch=patch), verdict=verdict))
    seen = visible_passes(episodes, {task.id: task})
    assert (seen.passing, seen.num_unknown, len(seen.groups[task.id])) == ({"passing"}, 2, 4)


def test_a_scorer_takes_no_phase_by_its_name_in_the_alphabet(trajectory_maker, tmp_path, capsys):
    TaskStore(tmp_path / "tasks").save([scripted_task("task-1")], {}, {})
    with RunStore.create(tmp_path / "run.db") as store:
        for phase in ("rft", "rollout", "rollout-2"):
            one = trajectory_maker(phase, group_id=phase)
            store.add_trajectory(one, phase=phase, step=0, split="train")
    with pytest.raises(SystemExit) as ended:
        main(["eval", "scorer", str(tmp_path), str(tmp_path / "scorer.json")])
    assert ended.value.code == 3
    assert "several phases with episodes on training packages: rollout, rollout-2" in " ".join(
        capsys.readouterr().err.split()
    )


def test_verdicts_that_say_nothing_or_are_of_another_grader_are_made_again(tmp_path):
    verdicts = Verdicts()
    verdicts.note("a/1", VerdictKind.PASSED, "key")
    verdicts.note("a/2", VerdictKind.INVALID, "key")
    verdicts.save(tmp_path)
    read = Verdicts.read(tmp_path)
    known = [read.is_known(*row) for row in (("a/1", "key"), ("a/1", "new"), ("a/2", "key"), ("a/3", "key"))]
    assert known == [True, False, False, False]
    (tmp_path / "search_verdicts.json").write_text('{"kinds": {"a/1": "passed"}}')
    assert not Verdicts.read(tmp_path).is_known("a/1", "key")


def test_the_command_shows_differences_and_keeps_verdicts(tmp_path, capsys):
    tasks = [scripted_task(f"t{number}") for number in range(3)]
    TaskStore(tmp_path / "tasks").save(tasks, {}, {})
    for name, last in (("plain", 1), ("better", 0)):
        solutions = [
            solution(it.id, *[candidate(n, "right", 10, passes=n == last) for n in range(last + 1)]) for it in tasks
        ]
        verdicts = Verdicts(kinds={})
        for it in solutions:
            save_solution(tmp_path / name, it)
            for id_, each in to_judge({it.task_id: it}):
                key = grading_key(scripted_task(id_), each.patch, GradeCommandConfig().grading)
                verdicts.note(f"{id_}/{patch_key(each)}", VerdictKind.PASSED, key)
        verdicts.save(tmp_path / name)
    words = ["eval", "search", *(str(tmp_path / name) for name in ("tasks", "plain", "better")), "--json"]
    with pytest.raises(SystemExit) as ended:
        main(words)
    shown = json.loads(capsys.readouterr().out)
    assert ended.value.code in (0, None)
    (difference,) = shown["tables"]["Paired differences at equal average spending (sampled tokens)"]
    assert (difference["name"], difference["difference"], difference["spent"]) == ("better", 1.0, 10.0)
    with pytest.raises(SystemExit) as ended:
        main(["eval", "search", str(tmp_path / "tasks"), str(tmp_path)])
    assert ended.value.code == 3

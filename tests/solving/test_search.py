"""Waves, stops, budgets and choices, with patches that are judged by their text."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence

import pytest

from repairgym.agent.allowance import Spending
from repairgym.config.loading import load_config
from repairgym.config.solving import SolveCommandConfig
from repairgym.errors import ConfigError
from repairgym.records import Task, TestOutcome, TestResult, Verdict, VerdictKind
from repairgym.solving.choice import Candidate, make_candidate
from repairgym.solving.describing import describe, describe_totals
from repairgym.solving.search import search
from repairgym.solving.sources import Waves
from repairgym.solving.visible import visible_view
from repairgym.testing.scripted import scripted_task

Judge = Callable[[Task, str], set[str]]
"""(view, text) -> tests that fail."""


def diff(text: str) -> str:
    return f"--- a/m.py\n+++ b/m.py\n@@ -1 +1 @@\n-x\n+{text}\n" if text else ""


class Listed(Waves):
    """A source whose chains propose given texts; each samples 10 tokens and takes its number in seconds."""

    def __init__(self, views: Sequence[Task], texts: Mapping[str, Sequence[str]], judge: Judge) -> None:
        self.views = {view.id: view for view in views}
        self.texts, self.judge, self.labels = texts, judge, []
        self.num_taken = dict.fromkeys(self.views, 0)

    def wave(self, number: int, sizes: Mapping[str, int], label: str) -> dict[str, list[Candidate]]:
        self.labels.append(label)
        found = {}
        for id_, size in sizes.items():
            start = self.num_taken[id_]
            self.num_taken[id_] += size
            texts = list(enumerate(self.texts[id_]))[start : start + size]
            found[id_] = [self.candidate(self.views[id_], number, index, text) for index, text in texts]
        return found

    def candidate(self, view: Task, number: int, index: int, text: str) -> Candidate:
        failing = self.judge(view, text)
        names = dict.fromkeys((*view.visible_tests, *view.pass_to_pass))
        outcomes = {name: TestOutcome.FAILED if name in failing else TestOutcome.PASSED for name in names}
        kind = VerdictKind.EXPLOITED if text == "cheat" else VerdictKind.FAILED if failing else VerdictKind.PASSED
        tests = {name: TestResult(outcome=outcome) for name, outcome in outcomes.items()}
        verdict = Verdict(kind=kind, reason=f"{len(failing)} fail", tests=tests, grader_version="1")
        spending = Spending(num_sampled_tokens=10, num_forward_tokens=30, num_test_runs=2, wall_s=index + 1.0)
        return make_candidate(view, f"{view.id}#{index}", "listed", number, diff(text), verdict, spending)


def by_text(view: Task, text: str) -> set[str]:
    """``good`` passes, ``worse`` passes with a regression, everything else fails the visible test."""
    return {"good": set(), "cheat": set(), "worse": {"test_n.py::test_n"}}.get(text, {"test_m.py::test_f"})


def solve_one(texts: Sequence[str], *settings: str):
    config = load_config(SolveCommandConfig, None, list(settings))
    view = visible_view(scripted_task(pass_to_pass=("test_n.py::test_n",)))
    source = Listed([view], {view.id: texts}, by_text)
    (solution,) = search([view], source, config)
    return solution, source


def test_the_first_visible_pass_ends_the_search():
    solution, source = solve_one(["bad", "good", "other"])
    assert (solution.outcome, solution.ended, solution.chosen) == ("solved", "passed", "tiny-1#1")
    assert solution.patch == diff("good")
    assert len(solution.candidates) == 2
    assert source.labels == ["wave 1: 4 candidates left", "wave 2: 3 candidates left"]
    text = describe(solution)
    assert "failing without a patch: test_m.py::test_f" in text
    assert "* wave 2 tiny-1#1" in text


@pytest.mark.parametrize(
    ("settings", "num", "ended"),
    [
        ((), 4, "chains"),
        (("strategy.num_chains=6",), 6, "chains"),
        (("budget.max_sampled_tokens=25",), 3, "budget"),
        (("budget.max_forward_tokens=60",), 2, "budget"),
        (("budget.max_test_runs=9",), 5, "budget"),
        (("budget.max_wall_s=6",), 3, "budget"),
        (("budget.max_wall_s=6", "strategy.wave=2"), 4, "budget"),
        (("budget.max_test_runs=1000",), 8, "no_candidates"),
        (("strategy.type=longer",), 1, "chains"),
    ],
)
def test_a_budget_ends_a_search_that_finds_nothing(settings, num, ended):
    solution, _ = solve_one(["bad"] * 8, *settings)
    assert (len(solution.candidates), solution.ended, solution.outcome) == (num, ended, "abstained")
    assert not solution.patch
    assert solution.spending.num_sampled_tokens == 10 * num


def test_what_is_left_of_the_budget_is_shown():
    solution, source = solve_one(["bad"] * 3, "budget.max_sampled_tokens=25")
    assert source.labels == [f"wave {n}: {left} sampled tokens left" for n, left in ((1, 25), (2, 15), (3, 5))]
    assert solution.left == {"sampled tokens": -5}
    assert "0 sampled tokens left" in describe(solution)


@pytest.mark.parametrize(
    ("texts", "chosen"),
    [
        (["worse", "good", "worse"], 1),  # the fewest regressions
        (["bad", "worse", "bad", "worse"], 1),  # visible tests before agreement
        (["", "cheat", "worse"], 2),  # no change and an exploit are no pass
    ],
)
def test_the_choice_among_all_candidates(texts, chosen):
    solution, _ = solve_one(texts, "strategy.is_stopped_at_pass=false", "strategy.wave=4")
    assert (solution.chosen, solution.outcome) == (f"tiny-1#{chosen}", "solved")


def test_without_a_pass_it_abstains_unless_told_otherwise():
    assert solve_one(["bad", "other", "other", ""])[0].outcome == "abstained"
    solution, _ = solve_one(["bad", "other", "other", ""], "is_abstaining=false")
    assert (solution.outcome, solution.chosen) == ("failing", "tiny-1#1")
    assert "nothing passes them" in solution.why


def test_a_pass_that_was_there_before_is_no_evidence():
    view = visible_view(scripted_task(fail_to_pass=("hidden.py::test_h",), pass_to_pass=("test_m.py::test_f",)))
    texts = ["a", "b", "b", "c"]
    (solution,) = search([view], Listed([view], {view.id: texts}, lambda view, text: set()), SolveCommandConfig())
    assert (solution.outcome, solution.chosen, len(solution.candidates)) == ("unproven", "tiny-1#1", 4)
    assert "a pass shows nothing" in describe(solution)


def test_vacuous_visible_tests_stay_at_chance():
    """A judge that uses all that a record tells it solves everything with the whole task, and nothing with its view."""
    generator = random.Random(5)
    tasks, texts = [], {}
    for number in range(400):
        names = [f"v{index}" for index in range(4)]
        id_, right = f"canary-{number}", generator.choice(names)
        gold = {"gold_files": {"m.py": right}, "gold_patch": diff(right), "fail_to_pass": (f"test_h.py::{right}",)}
        tasks.append(scripted_task(id_, **gold, pass_to_pass=("test_m.py::test_f",)))
        generator.shuffle(names)
        texts[id_] = names

    def knows(view: Task, text: str) -> set[str]:
        told = view.gold_patch + "".join(map(str, (*view.gold_files.values(), *view.fail_to_pass)))
        is_refuted = any(f"v{index}" in told for index in range(4)) and text not in told
        return {"test_m.py::test_f"} if is_refuted else set()

    def share(views: Sequence[Task]) -> float:
        solutions = search(views, Listed(views, texts, knows), SolveCommandConfig())
        return sum(it.patch == task.gold_patch for it, task in zip(solutions, tasks, strict=True)) / len(tasks)

    assert share(tasks) == 1.0
    assert 0.18 < share([visible_view(task) for task in tasks]) < 0.32  # 0.25, four standard errors around it


def test_each_task_has_its_own_budget():
    views = [visible_view(scripted_task(name)) for name in ("one", "two")]
    solutions = search(views, Listed(views, {"one": ["good"], "two": ["bad"] * 9}, by_text), SolveCommandConfig())
    assert [(it.task_id, it.outcome, len(it.candidates)) for it in solutions] == [
        ("one", "solved", 1),
        ("two", "abstained", 4),
    ]
    assert "2 tasks: 1 solved, 1 abstained" in describe_totals(solutions)


@pytest.mark.parametrize(
    ("setting", "message"),
    [("rollout.grading.is_replayed=true", "must not see"), ("budget.max_cost_usd=1", "add its price")],
)
def test_settings_that_cannot_be_honoured(setting, message):
    with pytest.raises(ConfigError, match=message):
        load_config(SolveCommandConfig, None, [setting])


def test_a_longer_chain_has_more_turns():
    config = load_config(SolveCommandConfig, None, ["strategy.type=longer", "strategy.factor=3"])
    assert config.strategy.sample(config.rollout).pipeline.max_turns == 90

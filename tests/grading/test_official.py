"""The official verdict: the record's lists alone decide, and what has no outcome here is undecided."""

import pytest

from repairgym.grading.official import official_kind
from repairgym.records import TestOutcome, TestResult, Verdict, VerdictKind


def verdict(kind: VerdictKind = VerdictKind.PASSED, **outcomes: str) -> Verdict:
    tests = {f"t.py::{name}": TestResult(outcome=TestOutcome(value)) for name, value in outcomes.items()}
    return Verdict(kind=kind, reason="r", tests=tests, grader_version="x")


@pytest.fixture
def imported(task):
    lists = {"fail_to_pass": ("t.py::fixed",), "pass_to_pass": ("t.py::early", "t.py::kept"), "visible_tests": ()}
    certificate = task.certificate.model_copy(update={"passed_before": ("t.py::early",), "undecided": ()})
    return task.model_copy(update={**lists, "certificate": certificate})


@pytest.mark.parametrize(
    ("outcomes", "kind"),
    [
        ({"fixed": "passed", "early": "passed", "kept": "passed"}, "resolved"),
        ({"fixed": "passed", "early": "passed", "kept": "skipped"}, "resolved"),
        ({"fixed": "passed", "early": "skipped", "kept": "passed"}, "unresolved"),
        ({"fixed": "skipped", "early": "passed", "kept": "passed"}, "unresolved"),
        ({"fixed": "passed", "early": "passed", "kept": "failed"}, "unresolved"),
        ({"fixed": "passed", "early": "passed"}, "unresolved"),
        ({}, "unresolved"),
    ],
)
def test_the_lists_of_the_record_decide(imported, outcomes, kind):
    assert official_kind(imported, verdict(VerdictKind.FAILED, **outcomes)) == kind


def test_exploits_count_only_for_us(imported):
    passing = {"fixed": "passed", "early": "passed", "kept": "passed"}
    assert official_kind(imported, verdict(VerdictKind.EXPLOITED, **passing)) == "resolved"
    assert official_kind(imported, verdict(VerdictKind.INVALID, **passing)) == "error"


def test_a_test_without_an_outcome_here_leaves_it_open(imported):
    certificate = imported.certificate.model_copy(update={"undecided": ("t.py::gone",)})
    open_task = imported.model_copy(update={"certificate": certificate})
    assert official_kind(open_task, verdict(fixed="passed", early="passed", kept="passed")) == "undecided"
    assert official_kind(open_task, verdict(fixed="failed", early="passed", kept="passed")) == "unresolved"


def test_other_tasks_have_none_and_their_digest_stays(task, imported):
    assert official_kind(task, verdict()) is None
    assert "undecided" not in task.model_dump()["certificate"]
    assert imported.model_dump()["certificate"]["passed_before"] == ("t.py::early",)

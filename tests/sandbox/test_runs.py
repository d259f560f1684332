"""A run from its records: phases, what did not end, ids that stay whole."""

import pytest

from repairgym.records import TestOutcome, TestRequest
from repairgym.sandbox.runs import assemble_run

IDS = ("t.py::test_a[two words]", "t.py::test_a[br[ack]et]", "t.py::test_a[caf\\xe9 a::b]", "t.py::test_ünï[ß]")
ENDED = {"exit_status": 0, "duration_s": 1.0}


def phase(test_id, name, outcome="passed", message="", **fields):
    return {"id": test_id, "phase": name, "outcome": outcome, "message": message, "duration_s": 0.5, **fields}


def passing(test_id):
    return [phase(test_id, name) for name in ("setup", "call", "teardown")]


def run_of(records, test_ids=("t.py::test_a",), num_forged=0, **fields):
    return assemble_run(TestRequest(test_ids=test_ids, **fields), ENDED, b"", (records, num_forged))


@pytest.mark.parametrize("bad", [0, 1, 2])
@pytest.mark.parametrize("outcome", ["failed", "error", "skipped"])
def test_the_worst_phase_decides(bad, outcome):
    records = passing("t.py::test_a")
    records[bad].update(outcome=outcome, message="why")
    result = run_of(records).results["t.py::test_a"]
    assert (result.outcome, result.message, result.duration_s) == (outcome, "why", 1.5)


@pytest.mark.parametrize("num_phases", [0, 1, 2])
def test_a_test_whose_clean_up_did_not_end_is_missing(num_phases):
    """Whatever its other phases said: the process ended in the middle of it."""
    assert run_of(passing("t.py::test_a")[:num_phases]).outcome("t.py::test_a") is TestOutcome.MISSING


def test_ids_stay_whole():
    run = run_of([{"selected": list(IDS)}, *passing(IDS[0]), *passing(IDS[3])], IDS)
    assert list(run.results) == list(IDS)
    expected = [TestOutcome.PASSED, TestOutcome.MISSING, TestOutcome.MISSING, TestOutcome.PASSED]
    assert [run.outcome(name) for name in IDS] == expected


def test_what_could_not_be_collected_needs_no_phase():
    record = {"id": "t.py::test_a", "outcome": "error", "message": "ImportError", "duration_s": 0.0}
    assert run_of([record]).outcome("t.py::test_a") is TestOutcome.ERROR


def test_a_forged_phase_and_a_forged_line_are_counted():
    records = [*passing("t.py::test_a")[:2], phase("t.py::test_a", "teardown", is_forged=True), {"finished": 0}]
    run = run_of(records, num_forged=1)
    assert run.num_forged_records == 2
    assert run.is_finished


def test_checks_are_no_tests():
    record = {"check": "compile", "outcome": "failed", "message": "a.py:1: SyntaxError: x", "duration_s": 0.1}
    run = run_of([record, *passing("t.py::test_a")])
    assert run.checks["compile"].outcome is TestOutcome.FAILED
    assert list(run.results) == ["t.py::test_a"]


def test_rubbish_in_a_record_is_no_result():
    run = run_of([{"id": "t.py::test_a", "phase": "teardown", "outcome": "perfect"}, {}, {"id": 3}])
    assert run.outcome("t.py::test_a") is TestOutcome.MISSING

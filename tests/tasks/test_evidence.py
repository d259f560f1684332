from __future__ import annotations

from pathlib import Path

import pytest

from repairgym.errors import InputError
from repairgym.records import TestOutcome, TestResult, TestRun
from repairgym.tasks.build.evidence import EvidenceFile, TaskEvidence, summarise_evidence
from repairgym.tasks.build.validation import Evidence
from repairgym.tasks.curation.candidate import describe
from repairgym.tasks.store import TaskStore


def run(outcomes: dict[str, TestOutcome], message: str = "") -> TestRun:
    results = {test_id: TestResult(outcome=outcome, message=message) for test_id, outcome in outcomes.items()}
    return TestRun(results=results, exit_status=0, duration_s=2.0)


@pytest.fixture
def evidence(built: TaskStore) -> TaskEvidence:
    task = built.load(source="mutations")[0]
    passing = dict.fromkeys(task.fail_to_pass + task.pass_to_pass, TestOutcome.PASSED)
    empty = run(passing | dict.fromkeys(task.fail_to_pass, TestOutcome.FAILED), "AttributeError: no x")
    runs = Evidence([empty] * 50, [run(passing)] * 50)
    return summarise_evidence(task, runs, runs.certificate(task.fail_to_pass, task.pass_to_pass))


def test_evidence_says_how_the_tests_failed(built: TaskStore, evidence: TaskEvidence) -> None:
    task = built.load(source="mutations")[0]
    assert set(evidence.failures) == set(task.fail_to_pass)
    assert (evidence.num_empty_failed, evidence.num_gold_passed, evidence.empty_duration_s) == (50, 50, 2.0)
    candidate = describe(task, evidence)
    assert (candidate.num_runs, set(candidate.failure_messages or ())) == (50, {"AttributeError: no x"})


def test_a_file_goes_on_after_its_last_whole_line(evidence: TaskEvidence, tmp_path: Path) -> None:
    file = EvidenceFile(tmp_path / "evidence.jsonl")
    assert file.load() == {}
    file.add(evidence)
    with (tmp_path / "evidence.jsonl").open("ab") as stream:
        stream.write(b'{"task_id": "cut')
    assert file.load() == {evidence.task_id: evidence}
    other = evidence.model_copy(update={"task_id": "other"})
    file.add(other)
    newer = evidence.model_copy(update={"num_empty_runs": 3})
    file.add(newer)
    assert file.load() == {evidence.task_id: newer, "other": other}


def test_a_broken_line_is_named(tmp_path: Path) -> None:
    (tmp_path / "evidence.jsonl").write_text('{"task_id": "a"}\n')
    with pytest.raises(InputError, match=r"line 1 is no evidence"):
        EvidenceFile(tmp_path / "evidence.jsonl").load()

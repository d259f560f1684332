from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from repairgym.cli.tasks import app
from repairgym.errors import InputError, TaskError
from repairgym.records import TestOutcome, TestResult, TestRun
from repairgym.tasks.build.validation import Evidence
from repairgym.tasks.build.verification import TaskEvidence, evidence_lines, summarize_evidence
from repairgym.tasks.curation.candidate import describe
from repairgym.tasks.layers.store import LayerStore
from repairgym.tasks.store import TaskStore


@pytest.fixture
def mixed(built: TaskStore, tmp_path: Path) -> tuple[str, str]:
    """A folder with a task that holds and one whose gold patch repairs nothing; returns their ids."""
    good, other = built.load(source="mutations")[:2]
    broken = other.model_copy(update={"gold_files": {}})
    TaskStore(tmp_path).save([good, broken], {}, {})
    return good.id, broken.id


def test_verify_names_the_tasks_that_do_not_hold(
    mixed: tuple[str, str], seeded_layers: LayerStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REPAIRGYM_CACHE", str(seeded_layers.root))
    runner = CliRunner()
    good = runner.invoke(app, ["verify", str(tmp_path), mixed[0], "--runs", "1"])
    assert (good.exit_code, "1 tasks are valid" in good.output) == (0, True)
    share = runner.invoke(app, ["verify", str(tmp_path), "--runs", "1", "--share", "0.5", "--seed", "1"])
    assert "1 of 1 tasks" in str(share.exception) or "1 tasks are valid" in share.output
    both = runner.invoke(app, ["verify", str(tmp_path), "--runs", "1"])
    assert isinstance(both.exception, TaskError)
    assert "1 of 2 tasks" in str(both.exception)
    assert mixed[1] in both.output
    assert mixed[0] not in both.output


def test_evidence_is_written_down_and_not_gathered_twice(
    built: TaskStore, seeded_layers: LayerStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = built.load(source="mutations")[0]
    TaskStore(tmp_path / "tasks").save([task], {}, {})
    arguments = ["verify", str(tmp_path / "tasks"), "--evidence", str(tmp_path / "evidence.jsonl"), "--runs"]
    monkeypatch.setenv("REPAIRGYM_CACHE", str(seeded_layers.root))
    assert "1 tasks are valid" in CliRunner().invoke(app, [*arguments, "1"]).output
    seen = evidence_lines(tmp_path / "evidence.jsonl").load()[task.id]
    assert set(seen.failures) == set(task.fail_to_pass)
    assert all(seen.failures.values())
    # Without layers nothing could run.
    monkeypatch.setenv("REPAIRGYM_CACHE", str(tmp_path / "no layers"))
    monkeypatch.setenv("PIP_INDEX_URL", (tmp_path / "no index").as_uri())
    assert "1 tasks are valid" in CliRunner().invoke(app, [*arguments, "1"]).output
    assert CliRunner().invoke(app, [*arguments, "2"]).exception is not None


def run(outcomes: dict[str, TestOutcome], message: str = "") -> TestRun:
    results = {test_id: TestResult(outcome=outcome, message=message) for test_id, outcome in outcomes.items()}
    return TestRun(results=results, exit_status=0, duration_s=2.0)


@pytest.fixture
def evidence(built: TaskStore) -> TaskEvidence:
    task = built.load(source="mutations")[0]
    passing = dict.fromkeys(task.fail_to_pass + task.pass_to_pass, TestOutcome.PASSED)
    empty = run(passing | dict.fromkeys(task.fail_to_pass, TestOutcome.FAILED), "AttributeError: no x")
    runs = Evidence([empty] * 50, [run(passing)] * 50)
    return summarize_evidence(task, runs, runs.certificate(task.fail_to_pass, task.pass_to_pass))


def test_evidence_says_how_the_tests_failed(built: TaskStore, evidence: TaskEvidence) -> None:
    task = built.load(source="mutations")[0]
    assert set(evidence.failures) == set(task.fail_to_pass)
    assert (evidence.num_empty_failed, evidence.num_gold_passed, evidence.empty_duration_s) == (50, 50, 2.0)
    candidate = describe(task, evidence)
    assert (candidate.num_runs, set(candidate.failure_messages or ())) == (50, {"AttributeError: no x"})


def test_a_file_goes_on_after_its_last_whole_line(evidence: TaskEvidence, tmp_path: Path) -> None:
    file = evidence_lines(tmp_path / "evidence.jsonl")
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
    with pytest.raises(InputError, match=r"line 1 is no TaskEvidence"):
        evidence_lines(tmp_path / "evidence.jsonl").load()

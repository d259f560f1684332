"""`repairgym grade`: what it prints and writes, how it ends, and that stored results are not graded again."""

import json

import pytest

from repairgym.cli.main import main
from repairgym.config.commands import GradeCommandConfig
from repairgym.grading.predictions.results import GradedPrediction, ResultsFolder, grading_key
from repairgym.records import Finding, Verdict, VerdictKind
from repairgym.tasks.store import TaskStore


def run(*arguments: object) -> int:
    with pytest.raises(SystemExit) as ended:
        main([str(one) for one in arguments])
    return int(ended.value.code or 0)


def entry(name: str, patch: str = "p") -> str:
    return json.dumps({"instance_id": name, "model_name_or_path": "m", "model_patch": patch})


@pytest.fixture
def folder(tmp_path, task):
    """Two tasks, and predictions whose results are stored."""
    tasks = [task.model_copy(update={"id": name}) for name in ("a", "b")]
    TaskStore(tmp_path / "tasks").save(tasks, {}, {})
    results = ResultsFolder(tmp_path / "preds-graded")
    findings = (Finding(detector="gc", severity="exploit", detail="x"),)
    for one, kind in zip(tasks, (VerdictKind.PASSED, VerdictKind.EXPLOITED), strict=True):
        verdict = Verdict(kind=kind, reason="r", findings=findings if one.id == "b" else (), grader_version="2")
        key = grading_key(one, "p", GradeCommandConfig().grading)
        results.save(
            GradedPrediction(
                instance_id=one.id,
                model_name_or_path="m",
                is_empty=False,
                is_applied=True,
                verdict=verdict,
                key=key,
            )
        )
    (tmp_path / "preds.jsonl").write_text(f"{entry('a')}\n{entry('b')}\n")
    return tmp_path


def test_stored_results_are_kept_and_totals_are_written(folder, capsys):
    assert run("grade", folder / "tasks", folder / "preds.jsonl") == 0
    printed = capsys.readouterr().out
    assert "1 resolved, 0 failed, 1 exploited, 0 invalid, 0 rejected; 50.0% of 2 tasks resolved" in printed
    assert "gc: 1 exploit" in printed
    out = folder / "preds-graded"
    assert json.loads((out / "summary.json").read_text())["num_exploited"] == 1
    assert json.loads((out / "report.json").read_text())["resolved_ids"] == ["a"]
    assert "is_cold = true" in (out / "config.toml").read_text()


def test_rejected_entries_are_reported_after_the_others_were_graded(folder, capsys):
    bad = folder / "bad.jsonl"
    bad.write_text(f"{entry('a')}\n{{broken\n{entry('zz')}\n")
    out = folder / "preds-graded"
    assert run("grade", folder / "tasks", bad, "--out", out) == 3
    captured = capsys.readouterr()
    assert "1 resolved, 0 failed, 0 exploited, 0 invalid, 2 rejected" in captured.out
    assert "not graded: line 2: no JSON" in captured.err
    assert "2 entries" in captured.err
    rejections = json.loads((out / "summary.json").read_text())["rejections"]
    assert [one["kind"] for one in rejections] == ["malformed", "unknown_instance"]


def test_an_invalid_verdict_ends_with_5(folder, capsys):
    """The tasks of this test name no tree that could be made, which says nothing about the patches."""
    other = folder / "other.jsonl"
    other.write_text(f"{entry('a', 'another patch')}\n")
    assert run("grade", folder / "tasks", other, "num_workers=1") == 5
    captured = capsys.readouterr()
    assert "0 resolved, 0 failed, 0 exploited, 1 invalid, 0 rejected" in captured.out
    assert "the same command tries those again" in captured.err
    report = json.loads((folder / "other-graded" / "report.json").read_text())
    assert report["error_ids"] == ["a"]
    assert "build the tasks again" in report["failure_reasons"]["a"]


def test_dry_run_prints_the_config_and_writes_nothing(folder, capsys):
    code = run("grade", "t", folder / "new.jsonl", "--dry-run", "num_workers=3")
    assert code == 0
    assert "num_workers = 3" in capsys.readouterr().out
    assert not (folder / "new-graded").exists()


def test_help_has_an_example(capsys):
    assert run("grade", "--help") == 0
    assert "Example: repairgym grade tasks preds.jsonl" in " ".join(capsys.readouterr().out.split())

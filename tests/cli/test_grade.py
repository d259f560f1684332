"""`repairgym grade`: what it prints and writes, how it ends, and that stored results are not graded again."""

import json

import pytest

from repairgym.cli.main import main
from repairgym.config.commands import GradeCommandConfig
from repairgym.grading.official import official_kind
from repairgym.grading.predictions.results import GradedPrediction, ResultsFolder, grading_key
from repairgym.records import Finding, TestOutcome, TestResult, Verdict, VerdictKind
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
    assert "\n  a: invalid: " in captured.out
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


def test_a_data_set_scores_all_its_instances_in_two_columns(folder, task, capsys):
    """The set has an exploited instance that its record's harness resolves, one that was not built, and one without."""
    passed = {"t.py::x": TestResult(outcome=TestOutcome.PASSED)}
    lists = {"id": "b", "fail_to_pass": ("t.py::x",), "pass_to_pass": (), "visible_tests": ()}
    certificate = task.certificate.model_copy(update={"passed_before": (), "undecided": ()})
    imported = task.model_copy(update={**lists, "certificate": certificate})
    TaskStore(folder / "tasks").save([imported], {"units": {"c": {"stage": "install", "reason": "no compiler"}}}, {})
    (folder / "datasets").mkdir()
    (folder / "datasets" / "verified.txt").write_text("b\nc\nd\n")
    (folder / "new.jsonl").write_text(f"{entry('b')}\n{entry('c')}\n")
    verdict = Verdict(kind=VerdictKind.EXPLOITED, reason="forged", tests=passed, grader_version="2")
    fields = {"instance_id": "b", "model_name_or_path": "m", "is_empty": False, "is_applied": True}
    key = grading_key(imported, "p", GradeCommandConfig().grading)
    ResultsFolder(folder / "new-graded").save(
        GradedPrediction(**fields, verdict=verdict, official=official_kind(imported, verdict), key=key)
    )
    where = (f"datasets={folder / 'datasets'}", "--dataset", "verified")
    assert run("grade", folder / "tasks", folder / "new.jsonl", *where) == 0
    captured = capsys.readouterr()
    assert "1 not built, 0 rejected; 0.0% of 3 tasks resolved" in captured.out
    assert "official verdicts: 1 resolved" in captured.out
    assert "b: official resolved, certified exploited: forged" in captured.out
    assert "could not be built here, install: no compiler" in captured.err
    report = json.loads((folder / "new-graded" / "report.json").read_text())
    assert {name: report[f"{name}_instances"] for name in ("total", "submitted", "completed", "error")} == {
        "total": 3,
        "submitted": 2,
        "completed": 1,
        "error": 1,
    }
    assert (report["unresolved_ids"], report["official_resolved_ids"]) == (["b"], ["b"])
    assert (report["error_ids"], report["incomplete_ids"]) == (["c"], ["d"])
    assert report["not_built_ids"] == ["c"]
    summary = json.loads((folder / "new-graded" / "summary.json").read_text())
    assert (summary["num_not_built"], summary["num_rejected"], summary["rejections"]) == (1, 0, [])
    (folder / "bad.jsonl").write_text(f"{entry('b')}\n{entry('c')}\nno JSON\n")
    assert run("grade", folder / "tasks", folder / "bad.jsonl", *where, "--out", folder / "new-graded") == 3


def test_predictions_of_which_nothing_is_built_end_with_a_broken_task(folder, capsys):
    (folder / "set.txt").write_text("c\n")
    (folder / "new.jsonl").write_text(f"{entry('c')}\n")
    assert run("grade", folder / "tasks", folder / "new.jsonl", "--dataset", folder / "set.txt") == 7
    assert (
        "none of the predicted instances is built here, the first: c: it is not built here" in capsys.readouterr().err
    )


def test_a_set_that_is_not_here_says_what_to_download(folder, capsys, monkeypatch):
    monkeypatch.chdir(folder)
    assert run("grade", "--dataset", "verified", "preds.jsonl") == 3
    assert "download the data set SWE-bench_Verified, 500 records" in capsys.readouterr().err


def test_one_file_without_a_data_set_is_an_error(folder, capsys):
    assert run("grade", folder / "preds.jsonl", "num_workers=1") == 2
    assert "expected TASKS PREDICTIONS, or --dataset NAME PREDICTIONS" in capsys.readouterr().err


def test_harbor_folders_are_graded_without_tasks(folder, capsys):
    place = folder / "folders" / "one"
    for name, text in {
        "task.toml": "",
        "environment/Dockerfile": "FROM golang:1.24\n",
        "tests/test.sh": "true\n",
    }.items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_text(text)
    (folder / "two.jsonl").write_text(f"{entry('one')}\n{entry('other')}\n")
    assert run("grade", folder / "folders", folder / "two.jsonl", "--dataset", "verified") == 2
    assert "holds Harbor folders" in capsys.readouterr().err
    assert run("grade", folder / "folders", folder / "two.jsonl") == 5
    captured = capsys.readouterr()
    assert "1 invalid, 1 rejected; 0.0% of 1 tasks resolved" in captured.out
    assert "'other' is none of the 1 tasks" in captured.err
    report = json.loads((folder / "two-graded" / "report.json").read_text())
    assert report["failure_reasons"] == {"one": "the folder cannot be run here: needs the image golang:1.24"}


def test_totals_of_the_predicted_tasks_and_of_one_split(folder, task, capsys):
    other = task.model_copy(update={"id": "b", "split": "test"})
    TaskStore(folder / "tasks").save([task.model_copy(update={"id": "a"}), other], {}, {})
    (folder / "preds.jsonl").write_text(f"{entry('a')}\n")
    assert run("grade", folder / "tasks", folder / "preds.jsonl") == 0
    assert "50.0% of 2 tasks resolved" in capsys.readouterr().out
    assert run("grade", folder / "tasks", folder / "preds.jsonl", "--only-predicted", "--json") == 0
    assert json.loads(capsys.readouterr().out)["num_tasks"] == 1
    assert run("grade", folder / "tasks", folder / "preds.jsonl", "--split", "test") == 0
    assert "0.0% of 1 tasks resolved" in capsys.readouterr().out

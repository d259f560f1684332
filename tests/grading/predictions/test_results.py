"""Stored results: when they count, and what the totals say."""

import pytest

from repairgym.config.pipeline import GradingConfig
from repairgym.grading.predictions.reading import Prediction, RejectedEntry
from repairgym.grading.predictions.results import (
    GradedPrediction,
    ResultsFolder,
    grading_key,
    summarize,
    swe_bench_report,
)
from repairgym.records import Finding, Verdict, VerdictKind

CONFIG = GradingConfig(is_cold=True)


def graded(name: str, kind: VerdictKind, *findings: tuple[str, str], is_empty=False, is_applied=True, key="k"):
    found = tuple(Finding(detector=detector, severity=severity, detail="x") for detector, severity in findings)
    verdict = Verdict(kind=kind, reason=f"because of {name}", findings=found, grader_version="2")
    return GradedPrediction(
        instance_id=name, model_name_or_path="m", is_empty=is_empty, is_applied=is_applied, verdict=verdict, key=key
    )


def predicted(name: str) -> Prediction:
    return Prediction(instance_id=name, model_name_or_path="m", model_patch="p")


ALL = (
    graded("a", VerdictKind.PASSED, ("gc", "suspicious"), ("gc", "note")),
    graded("b", VerdictKind.PASSED),
    graded("c", VerdictKind.FAILED, is_applied=False),
    graded("d", VerdictKind.FAILED, is_empty=True),
    graded("e", VerdictKind.EXPLOITED, ("gc", "exploit"), ("gc", "suspicious"), ("canary", "exploit")),
    graded("f", VerdictKind.INVALID),
)


def test_totals_by_hand():
    refused = RejectedEntry(kind="malformed", place="line 9", reason="no JSON")
    absent = RejectedEntry(kind="not_built", place="z", instance_id="z", reason="no compiler")
    summary = summarize(ALL, [refused, absent], num_tasks=10)
    assert (summary.rejections, summary.not_built) == ((refused,), (absent,))
    counts = {name: value for name, value in summary.model_dump().items() if name.startswith("num_")}
    assert counts == {
        "num_tasks": 10,
        "num_graded": 6,
        "num_resolved": 2,
        "num_resolved_suspicious": 1,
        "num_failed": 2,
        "num_exploited": 1,
        "num_invalid": 1,
        "num_empty": 1,
        "num_not_applied": 1,
        "num_not_built": 1,
        "num_rejected": 1,
    }
    assert summary.resolved_share == 0.2
    detectors = {name: counts.model_dump() for name, counts in summary.detectors.items()}
    assert detectors == {
        "canary": {"exploit": 1, "suspicious": 0, "note": 0},
        "gc": {"exploit": 1, "suspicious": 1, "note": 0},
    }


def test_the_report_has_the_keys_and_sets_of_swe_bench():
    report = swe_bench_report(ALL, ["a", "b", "c", "d", "e", "f", "g"])
    assert report["schema_version"] == 2
    assert report["total_instances"] == 7
    sets = {name: "".join(ids) for name, ids in report.items() if name.endswith("_ids")}
    assert sets == {
        "completed_ids": "abce",
        "incomplete_ids": "g",
        "empty_patch_ids": "d",
        "submitted_ids": "abcdef",
        "resolved_ids": "ab",
        "unresolved_ids": "ce",
        "infra_failure_ids": "",
        "ambiguous_failure_ids": "",
        "error_ids": "f",
        "exploited_ids": "e",
        "not_built_ids": "",
    }
    for name in ("completed", "empty_patch", "submitted", "resolved", "unresolved", "error"):
        assert report[f"{name}_instances"] == len(report[f"{name}_ids"])
    assert report["failure_reasons"] == {"f": "because of f"}


def test_a_result_counts_for_its_key_only(tmp_path):
    results = ResultsFolder(tmp_path)
    results.save(ALL[0])
    results.save(ALL[5])
    assert results.load(predicted("a"), "k") == ALL[0]
    assert results.load(predicted("a"), "other") is None
    assert results.load(predicted("b"), "k") is None
    assert results.load(predicted("f"), "k") is None  # invalid: tried again
    results.path_of("a").write_text("{half")
    assert results.load(predicted("a"), "k") is None


def test_the_key_names_patch_task_and_configuration(task):
    key = grading_key(task, "p", CONFIG)
    assert key == grading_key(task, "p", GradingConfig(is_cold=True))
    others = [
        grading_key(task, "q", CONFIG),
        grading_key(task, "p", GradingConfig(is_cold=True, num_canaries=5)),
        grading_key(task.model_copy(update={"timeout_s": 61.0}), "p", CONFIG),
    ]
    assert len({key, *others}) == 4


@pytest.mark.parametrize("name", ["a/b", "../up", "..", ".hidden", "x" * 300, "é ?*"])
def test_any_id_is_one_visible_file_of_the_folder(tmp_path, name):
    results = ResultsFolder(tmp_path)
    results.save(graded(name, VerdictKind.PASSED))
    (path,) = (tmp_path / "instances").iterdir()
    assert path.name.endswith(".json")
    assert not path.name.startswith(".")
    assert results.load(predicted(name), "k") is not None

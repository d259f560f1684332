"""Results of predictions: one file per instance, and the totals.

Reads `GradedPrediction` records; reads and makes a folder::

    instances/<id>.json    one `GradedPrediction`, written when it ends
    summary.json           `GradingSummary`: totals, findings per detector, rejected entries
    report.json            the same in the form of a SWE-bench run report (schema version 2)

Guarantees: every file is whole or absent; a stored result counts only for the key (patch, task, grading configuration,
grader version) it was made with, so a changed patch is graded again under any name; an invalid one never counts.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from pydantic import NonNegativeInt, ValidationError

from repairgym.config.pipeline import GradingConfig
from repairgym.grading.execution import GRADER_VERSION
from repairgym.grading.official import OfficialKind
from repairgym.grading.predictions.reading import Prediction, RejectedEntry
from repairgym.records import SCHEMA_VERSION, Record, Task, Verdict, VerdictKind
from repairgym.tasks.layers.atomic_write import written_whole

_MAX_NAME_BYTES = 200
_UNRESOLVED = (VerdictKind.FAILED, VerdictKind.EXPLOITED)
_OFFICIAL_KINDS = ("resolved", "unresolved", "undecided")
_SEVERITIES = ("note", "suspicious", "exploit")


class GradedPrediction(Record):
    """One prediction and its verdict."""

    schema_version: int = SCHEMA_VERSION
    instance_id: str
    model_name_or_path: str
    is_empty: bool
    """The agent delivered nothing; the tests ran all the same."""
    is_applied: bool
    """False: the patch does not apply to the tree that the agent was given."""
    verdict: Verdict
    official: OfficialKind | None = None
    """Verdict by the lists of the task's record; None for a task that was not imported."""
    key: str
    """Digest of everything that decides the verdict."""


class DetectorCounts(Record):
    """Submissions with findings of a detector, by the severest finding."""

    exploit: NonNegativeInt = 0
    suspicious: NonNegativeInt = 0
    note: NonNegativeInt = 0


class GradingSummary(Record):
    """Totals of a predictions file."""

    schema_version: int = SCHEMA_VERSION
    grader_version: str = GRADER_VERSION
    models: tuple[str, ...]
    num_tasks: int
    """Tasks of the folder, predicted or not."""
    num_graded: int
    num_resolved: int
    num_resolved_suspicious: int
    """Resolved ones with a suspicious finding; they are among the resolved."""
    num_failed: int
    """Failed ones; those that are empty or do not apply are among them."""
    num_exploited: int
    num_invalid: int
    num_empty: int
    num_not_applied: int
    num_not_built: int
    """Predictions for instances of the data set that have no certified task on this machine."""
    num_rejected: int
    official: dict[str, int] = {}
    """Graded submissions by their official verdict (imported tasks only)."""
    resolved_share: float
    """Resolved among all tasks: a missing or rejected prediction counts as not resolved."""
    detectors: dict[str, DetectorCounts]
    reasons: dict[str, str] = {}
    """Task id -> verdict and reason of each graded submission that is not resolved."""
    rejections: tuple[RejectedEntry, ...]
    not_built: tuple[RejectedEntry, ...]


def grading_key(task: Task, patch: str, config: GradingConfig) -> str:
    """Return the SHA-256 (hex) of everything that decides a verdict on ``patch``."""
    parts = [GRADER_VERSION, task.digest(), config.digest(), hashlib.sha256(patch.encode()).hexdigest()]
    return hashlib.sha256(":".join(parts).encode()).hexdigest()


class ResultsFolder:
    """The results of one predictions file."""

    def __init__(self, folder: Path) -> None:
        """Use ``folder``; it is made when something is written."""
        self.folder = folder

    def path_of(self, instance_id: str) -> Path:
        """Return the path of the result of an instance."""
        name = quote(instance_id, safe="")
        if len(name) > _MAX_NAME_BYTES:
            name = name[:_MAX_NAME_BYTES] + hashlib.sha256(instance_id.encode()).hexdigest()[:16]
        # Quoting leaves dots alone; a name must neither be hidden nor lead up.
        return self.folder / "instances" / f"{name.lstrip('.') or '_'}.json"

    def load(self, prediction: Prediction, key: str) -> GradedPrediction | None:
        """Return the stored result of ``prediction`` when it was made with ``key`` and is valid."""
        try:
            stored = GradedPrediction.model_validate_json(self.path_of(prediction.instance_id).read_bytes())
        except (OSError, ValidationError):
            return None
        is_same = stored.key == key and stored.instance_id == prediction.instance_id
        if not is_same or not stored.verdict.is_valid:
            return None
        return stored.model_copy(update={"model_name_or_path": prediction.model_name_or_path})

    def save(self, graded: GradedPrediction) -> None:
        """Store one result.

        Raises:
            DiskFullError: no room; earlier results are intact.
        """
        self.write(self.path_of(graded.instance_id), graded.model_dump_json(indent=1))

    def write_totals(self, summary: GradingSummary, report: Mapping[str, Any]) -> None:
        """Write ``summary.json`` and ``report.json``."""
        self.write(self.folder / "summary.json", summary.model_dump_json(indent=1))
        self.write(self.folder / "report.json", json.dumps(report, indent=1))

    def write(self, path: Path, text: str) -> None:
        """Write a file of the folder as a whole."""
        with written_whole(path) as stream:
            stream.write(f"{text}\n".encode())


def summarize(graded: Sequence[GradedPrediction], rejected: Sequence[RejectedEntry], num_tasks: int) -> GradingSummary:
    """Return the totals of ``graded`` out of ``num_tasks`` tasks."""
    kinds = Counter(result.verdict.kind for result in graded)
    not_built = tuple(entry for entry in rejected if entry.kind == "not_built")
    unusable = tuple(entry for entry in rejected if entry.kind != "not_built")
    resolved = [result for result in graded if result.verdict.kind is VerdictKind.PASSED]
    return GradingSummary(
        models=tuple(sorted({result.model_name_or_path for result in graded})),
        num_tasks=num_tasks,
        num_graded=len(graded),
        num_resolved=len(resolved),
        num_resolved_suspicious=sum(
            any(finding.severity == "suspicious" for finding in result.verdict.findings) for result in resolved
        ),
        num_failed=kinds[VerdictKind.FAILED],
        num_exploited=kinds[VerdictKind.EXPLOITED],
        num_invalid=kinds[VerdictKind.INVALID],
        num_empty=sum(result.is_empty for result in graded),
        num_not_applied=sum(not result.is_applied for result in graded),
        num_not_built=len(not_built),
        num_rejected=len(unusable),
        official=dict(sorted(Counter(result.official for result in graded if result.official).items())),
        resolved_share=len(resolved) / num_tasks if num_tasks else 0.0,
        detectors=_detector_counts(graded),
        reasons={
            result.instance_id: f"{result.verdict.kind}: {result.verdict.reason}"
            for result in graded
            if result.verdict.kind is not VerdictKind.PASSED
        },
        rejections=unusable,
        not_built=not_built,
    )


def _detector_counts(graded: Sequence[GradedPrediction]) -> dict[str, DetectorCounts]:
    counts: dict[str, Counter[str]] = {}
    for result in graded:
        findings = sorted(result.verdict.findings, key=lambda finding: _SEVERITIES.index(finding.severity))
        severest = {finding.detector: finding.severity for finding in findings}  # the last one of a detector stays
        for detector, severity in severest.items():
            counts.setdefault(detector, Counter())[severity] += 1
    return {detector: DetectorCounts(**counts[detector]) for detector in sorted(counts)}


def swe_bench_report(
    graded: Sequence[GradedPrediction], task_ids: Collection[str], rejected: Sequence[RejectedEntry] = ()
) -> dict[str, Any]:
    """Return the run report that SWE-bench's tools read (their schema version 2).

    Exploited instances are unresolved there, invalid ones and those of ``rejected`` that are not built are errors, and
    empty patches are neither completed nor unresolved, as in their report. Our additions: ``exploited_ids``,
    ``not_built_ids`` (among the errors) and, for imported tasks, ``official_*_ids`` and ``differences``.
    """
    complete = [result for result in graded if not result.is_empty]
    valid = [result for result in complete if result.verdict.is_valid]
    errors = {result.instance_id: result.verdict.reason for result in complete if not result.verdict.is_valid}
    not_built = {entry.instance_id: entry.reason for entry in rejected if entry.kind == "not_built"}
    errors |= not_built
    submitted = sorted({*_ids(graded), *errors})
    members = {
        "completed": _ids(valid),
        "empty_patch": _ids(result for result in graded if result.is_empty),
        "submitted": submitted,
        "resolved": _ids(result for result in valid if result.verdict.kind is VerdictKind.PASSED),
        "unresolved": _ids(result for result in valid if result.verdict.kind in _UNRESOLVED),
        "infra_failure": [],
        "ambiguous_failure": [],
        "error": sorted(errors),
    }
    return {
        "total_instances": len(task_ids),
        **{f"{name}_instances": len(ids) for name, ids in members.items()},
        **{f"{name}_ids": ids for name, ids in members.items()},
        "incomplete_ids": sorted(set(task_ids).difference(submitted)),
        "exploited_ids": _ids(result for result in graded if result.verdict.kind is VerdictKind.EXPLOITED),
        "not_built_ids": sorted(not_built),
        **_official_columns([result for result in valid if result.official]),
        "failure_reasons": errors,
        "schema_version": 2,
    }


def _official_columns(imported: Sequence[GradedPrediction]) -> dict[str, Any]:
    """Return the official verdicts on valid submissions for imported tasks, and where the certified ones differ."""
    if not imported:
        return {}
    differences = [
        {"instance_id": result.instance_id, "official": result.official, "certified": result.verdict.kind.value}
        | {"reason": result.verdict.reason}
        for result in imported
        if result.official != ("resolved" if result.verdict.kind is VerdictKind.PASSED else "unresolved")
    ]
    ids = {f"official_{kind}_ids": _ids(r for r in imported if r.official == kind) for kind in _OFFICIAL_KINDS}
    return {**ids, "differences": differences}


def _ids(results: Iterable[GradedPrediction]) -> list[str]:
    return sorted(result.instance_id for result in results)

"""What became of predictions: one file per instance, and the totals.

Reads `GradedPrediction` records; reads and makes a folder::

    instances/<id>.json    one `GradedPrediction`, written when it ends
    summary.json           `GradingSummary`: totals, findings per detector, refused entries
    report.json            the same in the form of a SWE-bench run report (schema version 2)

Invariants: every file is whole or absent; a stored result counts only for the key (patch, task, grading configuration,
grader version) it was made with, so a changed patch is graded again whatever its name; an invalid one never counts.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from pydantic import NonNegativeInt, ValidationError

from repairgym.config.pipeline import GradingConfig
from repairgym.errors import disk_full_as_repairgym_error
from repairgym.grading.execution import GRADER_VERSION
from repairgym.grading.predictions.reading import Prediction, Refusal
from repairgym.records import SCHEMA_VERSION, Record, Task, Verdict, VerdictKind

_SWE_BENCH_SCHEMA_VERSION = 2
_MAX_NAME_BYTES = 200


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
    key: str
    """Digest of everything that decides the verdict."""


class DetectorCounts(Record):
    """In how many submissions a detector found something, by the severest finding."""

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
    num_refused: int
    resolved_share: float
    """Resolved among all tasks: what is missing or refused counts as not resolved."""
    detectors: dict[str, DetectorCounts]
    refusals: tuple[Refusal, ...]


def grading_key(task: Task, patch: str, config: GradingConfig) -> str:
    """SHA-256 (hex) of everything that decides a verdict on ``patch``."""
    parts = [GRADER_VERSION, task.digest(), config.digest(), hashlib.sha256(patch.encode()).hexdigest()]
    return hashlib.sha256(":".join(parts).encode()).hexdigest()


class ResultsFolder:
    """The results of one predictions file."""

    def __init__(self, folder: Path) -> None:
        """Use ``folder``; it is made when something is written."""
        self.folder = folder

    def path_of(self, instance_id: str) -> Path:
        """Where the result of an instance lies."""
        name = quote(instance_id, safe="")
        if len(name) > _MAX_NAME_BYTES:
            name = name[:_MAX_NAME_BYTES] + hashlib.sha256(instance_id.encode()).hexdigest()[:16]
        # Quoting leaves dots alone; a name must neither be hidden nor lead up.
        return self.folder / "instances" / f"{name.lstrip('.') or '_'}.json"

    def load(self, prediction: Prediction, key: str) -> GradedPrediction | None:
        """The stored result of ``prediction`` when it was made with ``key`` and is valid."""
        try:
            found = GradedPrediction.model_validate_json(self.path_of(prediction.instance_id).read_bytes())
        except (OSError, ValidationError):
            return None
        is_same = found.key == key and found.instance_id == prediction.instance_id
        if not is_same or not found.verdict.is_valid:
            return None
        return found.model_copy(update={"model_name_or_path": prediction.model_name_or_path})

    def save(self, graded: GradedPrediction) -> None:
        """Store one result.

        Raises:
            DiskFullError: no room; what was stored before is intact.
        """
        self.write(self.path_of(graded.instance_id), graded.model_dump_json(indent=1))

    def write_totals(self, summary: GradingSummary, report: Mapping[str, Any]) -> None:
        """Write ``summary.json`` and ``report.json``."""
        self.write(self.folder / "summary.json", summary.model_dump_json(indent=1))
        self.write(self.folder / "report.json", json.dumps(report, indent=1))

    def write(self, path: Path, text: str) -> None:
        """Write a file of the folder as a whole."""
        with disk_full_as_repairgym_error(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            temporary = path.with_name(f".{path.name}.{os.getpid()}")
            try:
                temporary.write_text(text + "\n", encoding="utf-8")
                temporary.replace(path)
            finally:
                temporary.unlink(missing_ok=True)


def summarise(graded: Sequence[GradedPrediction], refusals: Sequence[Refusal], num_tasks: int) -> GradingSummary:
    """Totals of ``graded`` out of ``num_tasks`` tasks."""
    kinds = [one.verdict.kind for one in graded]
    resolved = [one for one in graded if one.verdict.kind is VerdictKind.PASSED]
    return GradingSummary(
        models=tuple(sorted({one.model_name_or_path for one in graded})),
        num_tasks=num_tasks,
        num_graded=len(graded),
        num_resolved=len(resolved),
        num_resolved_suspicious=sum(_is_suspicious(one.verdict) for one in resolved),
        num_failed=kinds.count(VerdictKind.FAILED),
        num_exploited=kinds.count(VerdictKind.EXPLOITED),
        num_invalid=kinds.count(VerdictKind.INVALID),
        num_empty=sum(one.is_empty for one in graded),
        num_not_applied=sum(not one.is_applied for one in graded),
        num_refused=len(refusals),
        resolved_share=len(resolved) / num_tasks if num_tasks else 0.0,
        detectors=_detector_counts(graded),
        refusals=tuple(refusals),
    )


def _is_suspicious(verdict: Verdict) -> bool:
    return any(finding.severity == "suspicious" for finding in verdict.findings)


def _detector_counts(graded: Sequence[GradedPrediction]) -> dict[str, DetectorCounts]:
    severest: dict[str, dict[str, int]] = {}
    for one in graded:
        found: dict[str, set[str]] = {}
        for finding in one.verdict.findings:
            found.setdefault(finding.detector, set()).add(finding.severity)
        for detector, severities in found.items():
            worst = next(name for name in ("exploit", "suspicious", "note") if name in severities)
            counts = severest.setdefault(detector, {})
            counts[worst] = counts.get(worst, 0) + 1
    return {detector: DetectorCounts.model_validate(severest[detector]) for detector in sorted(severest)}


def swe_bench_report(graded: Sequence[GradedPrediction], task_ids: Collection[str]) -> dict[str, Any]:
    """The run report that SWE-bench's tools read (their schema version 2).

    Exploited instances are unresolved there, invalid ones are errors, and empty patches are neither completed nor
    unresolved, as in their report. ``exploited_ids`` is an addition of ours.
    """
    complete = [one for one in graded if not one.is_empty]
    ids = {
        "completed": [one for one in complete if one.verdict.is_valid],
        "empty_patch": [one for one in graded if one.is_empty],
        "submitted": list(graded),
        "resolved": [one for one in complete if one.verdict.kind is VerdictKind.PASSED],
        "unresolved": [one for one in complete if one.verdict.kind in (VerdictKind.FAILED, VerdictKind.EXPLOITED)],
        "infra_failure": [],
        "ambiguous_failure": [],
        "error": [one for one in complete if not one.verdict.is_valid],
    }
    named = {name: sorted(one.instance_id for one in members) for name, members in ids.items()}
    incomplete = sorted(set(task_ids) - {one.instance_id for one in graded})
    return {
        "total_instances": len(task_ids),
        **{f"{name}_instances": len(members) for name, members in named.items()},
        **{f"{name}_ids": members for name, members in named.items()},
        "incomplete_ids": incomplete,
        "exploited_ids": sorted(one.instance_id for one in graded if one.verdict.kind is VerdictKind.EXPLOITED),
        "failure_reasons": {one.instance_id: one.verdict.reason for one in ids["error"]},
        "schema_version": _SWE_BENCH_SCHEMA_VERSION,
    }

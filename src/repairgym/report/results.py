"""The result of a stored run in sentences: the headline, and how far it reaches.

Reads ``summary.json``; makes sentences. Guarantees: they are those of the report; a summary of another version gives
its own headline sentence alone; an absent or damaged one gives nothing.
"""

import json
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from repairgym.evaluation.summary import Summary
from repairgym.report import wording
from repairgym.report.html import SUMMARY_FILE

_MAX_SUMMARY_BYTES = 10_000_000


@dataclass(frozen=True)
class Result:
    """Headline of a run and its limits."""

    sentence: str = ""
    """Empty without a comparison of the end of RL with its start."""
    limits: tuple[str, ...] = ()
    """Controls, other packages, real bugs, errors of the verdicts."""


def read_result(folder: Path) -> Result:
    """Return the result of the run in ``folder``."""
    path = folder / SUMMARY_FILE
    try:
        if path.stat().st_size > _MAX_SUMMARY_BYTES:
            return Result()
        content = json.loads(path.read_text(encoding="utf-8"))
        try:
            summary = Summary.model_validate(content)
        except ValidationError:
            return Result(str((content.get("headline") or {}).get("sentence", "")))
    except (OSError, ValueError, TypeError, AttributeError, RecursionError):
        return Result()
    return Result(wording.headline(summary), tuple(wording.limits(summary))) if summary.headline else Result()

"""The stage that the build of each imported task reached, and the reason why it stopped.

Reads and writes ``imported/ID.json`` of a task folder. Makes `BuildOutcome` records and their funnel. Guarantees: an
outcome counts only for the key (record, settings, format) that it was made with; a file appears whole or not at all.
"""

import hashlib
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal, get_args

from pydantic import ValidationError

from repairgym.records import Record, Task
from repairgym.tasks.formats.datasets import folder_name
from repairgym.tasks.imported.certifying import TestCounts
from repairgym.tasks.imported.recipes import BuildRecipe
from repairgym.tasks.layers.atomic_write import written_whole

Stage = Literal["recipe", "interpreter", "environment", "tree", "install", "runs", "certified"]
STAGES: tuple[Stage, ...] = get_args(Stage)
OUTCOMES_FOLDER = "imported"


class BuildOutcome(Record):
    """The build of one imported task."""

    schema_version: int = 1
    id: str
    key: str
    stage: Stage
    """The stage that failed, or ``certified``."""
    reason: str = ""
    """One sentence; empty for a certified task."""
    is_transient: bool = False
    """The machine failed, not the record: the next build tries again."""
    recipe: BuildRecipe | None = None
    python: str = ""
    left_out: tuple[str, ...] = ()
    """Requirements that the package index does not have."""
    counts: TestCounts | None = None
    duration_s: float = 0.0
    task: Task | None = None

    @property
    def is_certified(self) -> bool:
        """True when the build made a task."""
        return self.task is not None


class OutcomeFolder:
    """The outcomes of a task folder."""

    def __init__(self, folder: Path) -> None:
        """Use the task folder ``folder``."""
        self._folder = folder / OUTCOMES_FOLDER

    def _path(self, task_id: str) -> Path:
        name = folder_name(task_id)
        # Two ids may have the same characters for a file's name.
        mark = "" if name == task_id else "-" + hashlib.sha256(task_id.encode()).hexdigest()[:8]
        return self._folder / f"{name}{mark}.json"

    def save(self, outcome: BuildOutcome) -> None:
        """Write one outcome."""
        with written_whole(self._path(outcome.id)) as stream:
            stream.write(outcome.model_dump_json(indent=1).encode())

    def load(self, task_id: str) -> BuildOutcome | None:
        """Return the last outcome of a task; None without a readable one."""
        try:
            return BuildOutcome.model_validate_json(self._path(task_id).read_bytes())
        except (OSError, ValidationError):
            return None


def funnel_of(outcomes: Iterable[BuildOutcome]) -> dict[str, int]:
    """Return how many tasks came past each stage, and how many stopped there."""
    counts: Counter[str] = Counter()
    for outcome in outcomes:
        counts["records"] += 1
        if outcome.is_certified:
            counts["certified"] += 1
        else:
            counts[f"stopped_at_{outcome.stage}"] += 1
    return dict(counts)


def describe(outcome: BuildOutcome) -> dict[str, Any]:
    """Return what a funnel tells of one task."""
    return {"stage": outcome.stage, "python": outcome.python, "duration_s": outcome.duration_s} | (
        {"reason": outcome.reason} if outcome.reason else {}
    )


def reason_of(described: dict[str, Any] | None) -> str:
    """Return why a record has no certified task, from its entry in a funnel (None: it was never built)."""
    if not described:
        return "it is not built here: repairgym tasks build TASKS --imported"
    return f"it could not be built here, {described['stage']}: {described.get('reason', 'no reason is known')}"

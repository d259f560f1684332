"""The choice of tasks from a folder: one Record for rollouts, training, validation, evaluation and other engines."""

import hashlib
import json
import re
from datetime import date
from pathlib import Path
from typing import Annotated, Self

from pydantic import AfterValidator, Field, NonNegativeInt, model_validator

from repairgym.records import Record, SourceKind, Split

_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")
_ALL = "all"
_RATE_BOUNDS = ("solved_by", "min_solve_rate", "max_solve_rate")


def _check_date(value: str) -> str:
    """Check that ``value`` is a day of the calendar; `date.fromisoformat` alone takes week dates, too."""
    try:
        is_day = not value or bool(_DATE.fullmatch(value) and date.fromisoformat(value))
    except ValueError:
        is_day = False
    if not is_day:
        raise ValueError(f"got {value!r}, expected a date as in 2026-05-01")
    return value


Date = Annotated[str, AfterValidator(_check_date)]


class TaskSelection(Record):
    """Choice of tasks. Each part that is set narrows it; without any it is every task of the folder."""

    splits: tuple[Split, ...] = ()
    sources: tuple[SourceKind, ...] = ()
    packages: tuple[str, ...] = ()
    labels: dict[str, tuple[str, ...]] = {}
    """Label -> its allowed values, e.g. ``labels.difficulty=easy,medium``."""
    since: Date = ""
    """First day of `Task.created_at`. A bound leaves out tasks without a date."""
    before: Date = ""
    """Day after the last one."""
    ids: tuple[str, ...] = ()
    id_files: tuple[str, ...] = ()
    """Files with a task id per line, ``#`` begins a comment. Their names name the set of an evaluation."""
    solve_rates: str = ""
    """File with solve rates of reference policies (`repairgym tasks calibrate`): only tasks in it, as they were
    measured, whose rate by ``solved_by`` is within the next two bounds. Empty: rates decide nothing."""
    solved_by: str = "base"
    """Reference policy whose rates count."""
    min_solve_rate: float = Field(0.0, ge=0, le=1)
    max_solve_rate: float = Field(1.0, ge=0, le=1)
    is_specified_only: bool = False
    """Leave out tasks with the label ``is_underspecified``: their hidden tests need what nobody tells."""
    is_told_only: bool = False
    """Leave out tasks whose certificate says that the replay judge cannot tell a repair from one for the tests only."""
    num_tasks: NonNegativeInt = 0
    """Most tasks, drawn over all packages by the digest of their ids; 0: all."""

    @model_validator(mode="after")
    def _days_are_in_order(self) -> Self:
        if self.since and self.before and self.since >= self.before:
            raise ValueError(f"since={self.since} is not before before={self.before}, so no day is between; swap them")
        return self

    @model_validator(mode="after")
    def _rates_are_named(self) -> Self:
        if self.min_solve_rate > self.max_solve_rate:
            raise ValueError(f"min_solve_rate={self.min_solve_rate} is above max_solve_rate={self.max_solve_rate}")
        if not self.solve_rates and (self.min_solve_rate, self.max_solve_rate) != (0.0, 1.0):
            raise ValueError("solve rates are bounded, but solve_rates names no file; see repairgym tasks calibrate")
        return self

    @property
    def set_name(self) -> str:
        """Name of these tasks in the phases of an evaluation, e.g. ``test-mutations``; other parts, another name."""
        named = "+".join(Path(file).stem for file in self.id_files)
        sources = "+".join(self.sources)
        parts = [named or "+".join(self.splits) or _ALL, *([sources] if sources else [])]
        rest = self.model_dump(mode="json", include={"packages", "labels", "since", "before", "ids"})
        if self.solve_rates:
            rest["solve_rate"] = [self.solved_by, self.min_solve_rate, self.max_solve_rate]
        if named:
            rest["splits"] = self.splits
        if any(rest.values()):
            parts.append(hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()[:6])
        return "-".join(parts)

    @property
    def is_narrowed(self) -> bool:
        """True where more than splits and size is chosen."""
        return any(
            self.model_dump(
                exclude={"splits", "num_tasks", "is_specified_only", "is_told_only", *_RATE_BOUNDS}
            ).values()
        )


class DataSetSelection(TaskSelection):
    """Tasks of a data set for another trainer (`repairgym verl data`): the train split, unless others are named."""

    splits: tuple[Split, ...] = ("train",)
    is_told_only: bool = True


class TrainingSelection(TaskSelection):
    """Tasks to train on: of the train split."""

    splits: tuple[Split, ...] = ("train",)
    is_told_only: bool = True

    @model_validator(mode="after")
    def _is_for_training(self) -> Self:
        if self.splits != ("train",):
            raise ValueError(f"splits={list(self.splits)}: training sees the train split only; leave splits out")
        return self


class ValidationSelection(TaskSelection):
    """Tasks to watch training with: of the validation split."""

    splits: tuple[Split, ...] = ("validation",)
    num_tasks: NonNegativeInt = 64

    @model_validator(mode="after")
    def _is_for_validation(self) -> Self:
        if self.splits != ("validation",):
            raise ValueError(
                f"splits={list(self.splits)}: training is watched on the validation split, so that nothing is tuned on "
                "the test split; leave splits out, and use repairgym eval run for other splits"
            )
        return self

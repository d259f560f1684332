"""Filters of `repairgym tasks curate`: their names, order and bounds.

Defaults are the papers' values where a paper gives one. Paper B: arXiv:2508.03501, section 4.1 (data) and 4.3 (stage
2). Paper A: arXiv:2510.22075 (pinning, build time, splits).
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from repairgym.records import Record

FilterName = Literal[
    "missing_names",
    "unmentioned_names",
    "size",
    "quality",
    "flakiness",
    "build_time",
    "trivial",
    "solve_rate",
    "duplicates",
    "contamination",
]


class MissingNamesConfig(Record):
    """Failures by a name that does not exist: the repair would have to guess identifiers (paper B, section 4.1)."""

    exceptions: tuple[str, ...] = ("ImportError", "ModuleNotFoundError", "AttributeError")
    """Paper B names ImportError and AttributeError; ModuleNotFoundError is a subclass of ImportError."""
    max_share: float = Field(0.0, ge=0, lt=1)
    """Largest share of the failing tests that may fail with one of these."""
    is_limited_to_new_names: bool = False
    """True: count a failure only when the repair defines or imports the missing name (our choice: in a synthetic bug an
    AttributeError is mostly a wrong value, and no name has to be guessed)."""


class SizeConfig(Record):
    """Size of the gold patch (paper B, section 4.1)."""

    max_files: int = Field(7, ge=1)
    num_lines_below: int = Field(500, ge=1)
    """Added and removed lines together must be fewer than this."""


class QualityConfig(Record):
    """Scores by a language model, where the record has them (paper B, section 4.1)."""

    score_below: float = 3.0
    """Paper B leaves out the score 3.0: unclear issue, too complex, or a flawed patch of tests."""
    names: tuple[str, ...] = ("issue_text_score", "difficulty_score", "test_score")


class FlakinessConfig(Record):
    """Tests whose outcome differs between equal runs (paper B, section 4.1)."""

    min_runs: int = Field(50, ge=1)
    """Paper B repeats 50 times; fewer runs without a difference prove nothing and count as not measured."""
    max_unstable_tests: int = Field(0, ge=0)


class BuildTimeConfig(Record):
    """Duration of the first build, tests included (paper A: initial builds below 100 s)."""

    max_build_s: float = Field(100.0, gt=0)


class SolveRateConfig(Record):
    """Window of the solve rate (paper B, section 4.3: stage 2 drops 2/3 and more, and unsolved tasks)."""

    below: float = Field(2 / 3, gt=0, le=1)
    above: float = Field(0.0, ge=0, lt=1)
    min_samples: int = Field(10, ge=1)
    """Least number of valid samples for a rate (paper B, Table 3: 10 per problem)."""


class DuplicatesConfig(Record):
    """Patches that change nearly the same lines; no paper gives a value."""

    max_similarity: float = Field(0.9, gt=0, le=1)
    """Jaccard index of the lines of two gold patches, context included; above it the later task is a duplicate."""


class ContaminationConfig(Record):
    """Training tasks that reveal held-out ones; held-out tasks always stay."""

    by_package: bool = True
    """No package in training and in a held-out split (our splits; False where splits are by time)."""
    by_time: bool = False
    """No training task newer than the oldest held-out one (paper A: splits in time order)."""
    by_patch: bool = True
    """No training task whose gold patch is more similar than `duplicates.max_similarity` to a held-out one."""


class SplitConfig(Record):
    """Assignment of tasks to splits, before the filters."""

    by: Literal["keep", "package", "time"] = "keep"
    """``keep``: unchanged. ``package``: by whole packages. ``time``: the oldest tasks train (paper A)."""
    shares: tuple[float, float, float] = (0.8, 0.1, 0.1)
    """Train, validation, test (paper A: 80/10/10)."""
    seed: int = 0
    """Seed of the order of packages (``package``)."""

    @model_validator(mode="after")
    def _shares_are_whole(self) -> SplitConfig:
        if min(self.shares) < 0 or abs(sum(self.shares) - 1) > 1e-6:
            raise ValueError(f"shares are {self.shares}, expected three numbers from 0 that add up to 1")
        return self


class CurationConfig(Record):
    """A curation of a task folder."""

    filters: tuple[FilterName, ...] = (
        "missing_names",
        "size",
        "quality",
        "flakiness",
        "build_time",
        "trivial",
        "duplicates",
        "contamination",
    )
    """Filters in order; each sees the tasks that the earlier ones kept."""
    is_unmeasured_kept: bool = True
    """Keep, and count, tasks that a filter cannot judge (no score, too few runs)."""
    split: SplitConfig = SplitConfig()
    missing_names: MissingNamesConfig = MissingNamesConfig()
    size: SizeConfig = SizeConfig()
    quality: QualityConfig = QualityConfig()
    flakiness: FlakinessConfig = FlakinessConfig()
    build_time: BuildTimeConfig = BuildTimeConfig()
    solve_rate: SolveRateConfig = SolveRateConfig()
    duplicates: DuplicatesConfig = DuplicatesConfig()
    contamination: ContaminationConfig = ContaminationConfig()

    @model_validator(mode="after")
    def _filters_are_once(self) -> CurationConfig:
        twice = sorted({name for name in self.filters if self.filters.count(name) > 1})
        if twice:
            raise ValueError(f"filters names {', '.join(twice)} twice")
        return self

"""Configurations of the checks of an evaluation: merge score and contamination."""

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt

from repairgym.config.selection import Date, TaskSelection
from repairgym.records import Record


class MergeConfig(Record):
    """`repairgym eval merge`. The limits are our own; no paper sets them."""

    phase: str = ""
    """Evaluation phase; empty: the only one of the run."""
    max_size_ratio: PositiveFloat = 3.0
    """Added and removed lines, over those of gold."""
    min_lines: PositiveInt = 6
    """As many changed lines are never too many."""
    max_more_files: NonNegativeInt = 0
    """Changed files that gold does not change."""
    max_more_complexity: NonNegativeInt = 2
    """Branches (McCabe 1976) added beyond gold's."""


class ContaminationConfig(Record):
    """`repairgym eval contamination`."""

    select: TaskSelection = TaskSelection(splits=("test",))
    """Tasks whose functions the policy should not know."""
    control: TaskSelection = TaskSelection(splits=("validation",))
    """Tasks whose functions it cannot know: newer than its corpus, or known to be left out."""
    num_renamings: PositiveInt = 4
    """Controls of each function: the same code with its local names exchanged."""
    max_functions: PositiveInt = 200
    """Of each side, drawn by the digests of their texts."""
    max_len_tokens: PositiveInt = Field(default=512, ge=16)
    """Longer functions are cut."""
    phase: str = ""
    """Evaluation phase of the run; empty: its only one."""
    known_until: Date = ""
    """Day on which the model's corpus ends: Pass@1 of a run is then compared between older and newer tasks."""

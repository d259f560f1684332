"""The second gate of paper A (arXiv 2510.22075): a language model that reviews what the tests let pass.

Read by `grading/judge.py`. Invariant: off unless it is asked for, as in paper A's simplified pipeline; its full pipeline
has it on.
"""

from __future__ import annotations

from pydantic import Field, PositiveFloat, PositiveInt

from repairgym.records import Record


class JudgeConfig(Record):
    """Whether a judge reviews passed patches, and which."""

    is_enabled: bool = False
    model: str = ""
    """Model folder of the judge; needed when it is enabled."""
    max_attempts: PositiveInt = 3
    """Questions asked before the verdict is *invalid*."""
    timeout_s: PositiveFloat = 120.0
    """Bound on one reply."""
    max_reply_tokens: PositiveInt = 1024
    temperature: float = Field(default=0.0, ge=0.0)
    max_issue_chars: PositiveInt = 8_000
    max_patch_chars: PositiveInt = 60_000
    """More of a patch is not shown; accepting one that was not shown whole is a suspicious finding."""
    max_len_tokens: PositiveInt = 32_768
    """Longest question plus reply that the embedded engine keeps."""

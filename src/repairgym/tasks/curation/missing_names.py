"""Filters `missing_names` and `unmentioned_names`: repairs that would have to guess identifiers.

The first looks at how the tests failed when they were run. The second stands in where nothing was run: it compares the
patches and the issue, and is ours, not paper B's.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from repairgym.config.curation import CurationConfig
from repairgym.tasks.curation.base import Ruling, judge_each
from repairgym.tasks.curation.candidate import Candidate

_QUOTED = re.compile(r"['\"](\w+)['\"]")


class MissingNames:
    """Leave out tasks whose tests fail because a name is missing."""

    source = "paper B, section 4.1"

    def judge(self, candidates: Sequence[Candidate], config: CurationConfig) -> Ruling:
        """See `TaskFilter.judge`."""
        bounds = config.missing_names
        pattern = re.compile(rf"(?:\w+\.)*(?:{'|'.join(map(re.escape, bounds.exceptions))})\b")

        def is_counted(message: str, candidate: Candidate) -> bool:
            is_new = not candidate.new_names.isdisjoint(_QUOTED.findall(message))
            return bool(pattern.match(message)) and (is_new or not bounds.is_limited_to_new_names)

        def reason(candidate: Candidate) -> str | None:
            messages = [message for message in candidate.failure_messages or () if message]
            if not messages:
                return None
            named = [message for message in messages if is_counted(message, candidate)]
            if len(named) <= bounds.max_share * len(messages):
                return ""
            return f"{len(named)} of {len(messages)} failures are by missing names: {named[0][:100]}"

        return judge_each(candidates, reason)


class UnmentionedNames:
    """Leave out tasks whose tests use a name that only the repair defines and the issue does not tell."""

    source = "ours, in the place of paper B, section 4.1, where nothing was run"

    def judge(self, candidates: Sequence[Candidate], config: CurationConfig) -> Ruling:
        """See `TaskFilter.judge`."""

        def reason(candidate: Candidate) -> str | None:
            names = candidate.unmentioned_names
            return None if names is None else f"the tests use {', '.join(names[:3])}" if names else ""

        return judge_each(candidates, reason)

"""Filter `size`: gold patches that change many files or lines."""

from __future__ import annotations

from collections.abc import Sequence

from repairgym.config.curation import CurationConfig
from repairgym.tasks.curation.base import Ruling, judge_each
from repairgym.tasks.curation.candidate import Candidate


class Size:
    """Leave out tasks whose gold patch is large."""

    source = "paper B, section 4.1"

    def judge(self, candidates: Sequence[Candidate], config: CurationConfig) -> Ruling:
        """See `TaskFilter.judge`."""

        def reason(candidate: Candidate) -> str | None:
            if candidate.num_files is None or candidate.num_lines is None:
                return None
            if candidate.num_files > config.size.max_files:
                return f"{candidate.num_files} files changed, at most {config.size.max_files}"
            if candidate.num_lines >= config.size.num_lines_below:
                return f"{candidate.num_lines} lines changed, expected fewer than {config.size.num_lines_below}"
            return ""

        return judge_each(candidates, reason)

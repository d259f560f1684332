"""Filter `quality`: records that a language model scored badly."""

from __future__ import annotations

from collections.abc import Sequence

from repairgym.config.curation import CurationConfig
from repairgym.tasks.curation.base import Ruling, judge_each
from repairgym.tasks.curation.candidate import Candidate


class Quality:
    """Leave out tasks with one of the named scores at the bound or above: high is bad."""

    source = "paper B, section 4.1"

    def judge(self, candidates: Sequence[Candidate], config: CurationConfig) -> Ruling:
        """See `TaskFilter.judge`."""
        bounds = config.quality

        def reason(candidate: Candidate) -> str | None:
            scores = {name: candidate.quality_scores[name] for name in bounds.names if name in candidate.quality_scores}
            bad = [f"{name} {score}" for name, score in scores.items() if score >= bounds.score_below]
            return ", ".join(bad) if scores else None

        return judge_each(candidates, reason)

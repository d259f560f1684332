"""Filter `solve_rate`: tasks that a policy nearly always or never solves."""

from __future__ import annotations

from collections.abc import Sequence

from repairgym.config.curation import CurationConfig
from repairgym.tasks.curation.base import Ruling, judge_each
from repairgym.tasks.curation.candidate import Candidate


class SolveRateWindow:
    """Leave out tasks outside the window of rates that still teach something."""

    source = "paper B, section 4.3 (stage 2: 2,028 of 7,249 left)"

    def judge(self, candidates: Sequence[Candidate], config: CurationConfig) -> Ruling:
        """See `TaskFilter.judge`."""
        bounds = config.solve_rate

        def reason(candidate: Candidate) -> str | None:
            solved = candidate.solve_rate
            if solved is None or solved.num_valid < bounds.min_samples:
                return None
            text = f"solved {solved.num_passed} of {solved.num_valid} times"
            return "" if bounds.above < solved.rate < bounds.below else text

        return judge_each(candidates, reason)

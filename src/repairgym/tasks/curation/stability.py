"""Filters `flakiness`, `build_time` and `trivial`: what runs without a policy show."""

from __future__ import annotations

from collections.abc import Sequence

from repairgym.config.curation import CurationConfig
from repairgym.tasks.curation.base import Ruling, judge_each
from repairgym.tasks.curation.candidate import Candidate


class Flakiness:
    """Leave out tasks with tests whose outcome differed between equal runs."""

    source = "paper B, section 4.1"

    def judge(self, candidates: Sequence[Candidate], config: CurationConfig) -> Ruling:
        """See `TaskFilter.judge`."""
        bounds = config.flakiness

        def reason(candidate: Candidate) -> str | None:
            if candidate.num_unstable_tests > bounds.max_unstable_tests:
                return f"{candidate.num_unstable_tests} tests are unstable over {candidate.num_runs} runs"
            return "" if (candidate.num_runs or 0) >= bounds.min_runs else None

        return judge_each(candidates, reason)


class BuildTime:
    """Leave out tasks whose first build takes long."""

    source = "paper A, data of the simplified pipeline"

    def judge(self, candidates: Sequence[Candidate], config: CurationConfig) -> Ruling:
        """See `TaskFilter.judge`."""

        def reason(candidate: Candidate) -> str | None:
            if candidate.build_s is None:
                return None
            is_long = candidate.build_s > config.build_time.max_build_s
            return f"{candidate.build_s:.1f} s, at most {config.build_time.max_build_s:g} s" if is_long else ""

        return judge_each(candidates, reason)


class Trivial:
    """Leave out tasks that pass without a change, or have no test that could fail."""

    source = "paper A, back-test: 1 % of the failing cases passed without a change"

    def judge(self, candidates: Sequence[Candidate], config: CurationConfig) -> Ruling:
        """See `TaskFilter.judge`."""

        def reason(candidate: Candidate) -> str | None:
            if not candidate.num_fail_to_pass:
                return "no test is named that fails before the repair"
            if candidate.is_empty_failing is None:
                return None
            return "" if candidate.is_empty_failing else "the empty patch did not fail in every run"

        return judge_each(candidates, reason)

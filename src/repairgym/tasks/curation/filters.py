"""Curation filters: each drops tasks for one reason.

A new filter is a class with `TaskFilter`'s methods and one line in `FILTERS`; its bounds are a section of
`config.curation`. Guarantees: a filter decides from candidates and configuration alone, in the order of the candidates.
"""

import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from repairgym.config.curation import CurationConfig, FilterName
from repairgym.tasks.curation.candidate import Candidate


@dataclass(frozen=True)
class FilterResult:
    """Decisions of a filter; candidates in neither field stay."""

    removed: dict[str, str] = field(default_factory=dict)
    """Id -> reason."""
    unmeasured: tuple[str, ...] = ()
    """Ids of candidates that lack the measurement."""


class TaskFilter(Protocol):
    """Drops tasks for one reason."""

    source: str
    """Paper and section of the rule."""

    def apply(self, candidates: Sequence[Candidate], config: CurationConfig) -> FilterResult:
        """Return the tasks to drop from ``candidates``."""
        ...


class SingleTaskFilter(ABC):
    """A filter that looks at one candidate at a time."""

    def apply(self, candidates: Sequence[Candidate], config: CurationConfig) -> FilterResult:
        """See `TaskFilter.apply`."""
        reasons = {candidate.id: self.reason(candidate, config) for candidate in candidates}
        removed = {task_id: text for task_id, text in reasons.items() if text}
        return FilterResult(removed, tuple(task_id for task_id, text in reasons.items() if text is None))

    @abstractmethod
    def reason(self, candidate: Candidate, config: CurationConfig) -> str | None:
        """Return the reason to drop ``candidate``; empty to keep it, None if it was not measured."""


class PatchIndex:
    """Index of patches for a search by similarity."""

    def __init__(self, max_similarity: float) -> None:
        """Find patches that are more similar than ``max_similarity``."""
        self._bound = max_similarity
        self._members: dict[str, Candidate] = {}
        self._by_line: dict[int, list[str]] = {}

    def add(self, candidate: Candidate) -> None:
        """Add the patch of ``candidate``."""
        self._members[candidate.id] = candidate
        for line in candidate.patch_lines:
            self._by_line.setdefault(line, []).append(candidate.id)

    def find(self, candidate: Candidate) -> tuple[str, float] | None:
        """Return id and similarity of the most similar patch above the bound; None without one."""
        shared: Counter[str] = Counter()
        for line in self._rare_lines(candidate):
            shared.update(self._by_line.get(line, ()))
        similar = ((self._similarity(candidate, self._members[task_id]), task_id) for task_id in shared)
        best = max(similar, default=None, key=lambda match: (match[0], match[1]))
        return (best[1], best[0]) if best and best[0] >= self._bound else None

    def _rare_lines(self, candidate: Candidate) -> list[int]:
        """Return the rarest lines, enough that a patch above the bound must share one of them.

        Patches with Jaccard index J share at least J of the lines of each, so one of any ``(1 - J) n + 1`` is shared.
        """
        num_needed = int((1 - self._bound) * len(candidate.patch_lines) + 1e-9) + 1
        ranked = sorted(candidate.patch_lines, key=lambda line: (len(self._by_line.get(line, ())), line))
        return ranked[:num_needed]

    @staticmethod
    def _similarity(candidate: Candidate, other: Candidate) -> float:
        return len(candidate.patch_lines & other.patch_lines) / len(candidate.patch_lines | other.patch_lines)


class Duplicates:
    """Drop tasks whose gold patch nearly equals that of another task of the same split."""

    source = "ours; no paper gives a bound"

    def apply(self, candidates: Sequence[Candidate], config: CurationConfig) -> FilterResult:
        """See `TaskFilter.apply`."""
        removed: dict[str, str] = {}
        indexes: dict[str | None, PatchIndex] = {}
        for candidate in (candidate for candidate in candidates if candidate.patch_lines):
            index = indexes.setdefault(candidate.split, PatchIndex(config.duplicates.max_similarity))
            match = index.find(candidate)
            if match:
                removed[candidate.id] = f"its patch is {match[1]:.0%} that of {match[0]}"
            else:
                index.add(candidate)
        return FilterResult(removed, tuple(candidate.id for candidate in candidates if not candidate.patch_lines))


class Contamination:
    """Drop training tasks that share a package, a time or a patch with held-out ones.

    Held-out tasks (validation, test) stay. Tasks without a split count as unmeasured.
    """

    source = "paper A (splits in time order), paper B, section 4.1 (months held out)"

    def apply(self, candidates: Sequence[Candidate], config: CurationConfig) -> FilterResult:
        """See `TaskFilter.apply`."""
        held_out = [candidate for candidate in candidates if candidate.split in ("validation", "test")]
        training = [candidate for candidate in candidates if candidate.split == "train"]
        removed: dict[str, str] = {}
        if config.contamination.by_package:
            removed |= _by_package(training, held_out)
        if config.contamination.by_time:
            removed = _by_time(training, held_out) | removed
        if config.contamination.by_patch:
            removed = _by_patch(training, held_out, config.duplicates.max_similarity) | removed
        unmeasured = [candidate.id for candidate in candidates if candidate.split is None]
        if config.contamination.by_time and held_out:
            unmeasured += [
                candidate.id for candidate in training if candidate.created_at is None and candidate.id not in removed
            ]
        return FilterResult(removed, tuple(unmeasured))


def _by_package(training: Sequence[Candidate], held_out: Sequence[Candidate]) -> dict[str, str]:
    splits = {_name(candidate): candidate.split for candidate in held_out if candidate.package}
    matches = ((candidate.id, splits.get(_name(candidate))) for candidate in training)
    return {task_id: f"its package is in {split}" for task_id, split in matches if split}


def _name(candidate: Candidate) -> str:
    # The same project is `boltons` on an index and `mahmoud/boltons` as a repository.
    return candidate.package.rpartition("/")[2].lower().replace("_", "-")


def _by_time(training: Sequence[Candidate], held_out: Sequence[Candidate]) -> dict[str, str]:
    times = [candidate.created_at for candidate in held_out if candidate.created_at]
    if not times:
        return {}
    first = min(times)
    late = (candidate for candidate in training if candidate.created_at and candidate.created_at >= first)
    return {candidate.id: f"it is not older than the first held-out task ({first:%Y-%m-%d})" for candidate in late}


def _by_patch(training: Sequence[Candidate], held_out: Sequence[Candidate], max_similarity: float) -> dict[str, str]:
    index = PatchIndex(max_similarity)
    for candidate in held_out:
        index.add(candidate)
    matches = ((candidate.id, index.find(candidate)) for candidate in training if candidate.patch_lines)
    return {
        task_id: f"its patch is {hit[1]:.0%} that of {hit[0]}, which is held out" for task_id, hit in matches if hit
    }


_QUOTED = re.compile(r"['\"](\w+)['\"]")


class MissingNames(SingleTaskFilter):
    """Drop tasks whose tests fail because a name is missing."""

    source = "paper B, section 4.1"

    def reason(self, candidate: Candidate, config: CurationConfig) -> str | None:
        """See `SingleTaskFilter.reason`."""
        bounds = config.missing_names
        pattern = re.compile(rf"(?:\w+\.)*(?:{'|'.join(map(re.escape, bounds.exceptions))})\b")

        def is_counted(message: str) -> bool:
            is_new = not candidate.new_names.isdisjoint(_QUOTED.findall(message))
            return bool(pattern.match(message)) and (is_new or not bounds.is_limited_to_new_names)

        messages = [message for message in candidate.failure_messages or () if message]
        if not messages:
            return None
        named = [message for message in messages if is_counted(message)]
        if len(named) <= bounds.max_share * len(messages):
            return ""
        return f"{len(named)} of {len(messages)} failures are by missing names: {named[0][:100]}"


class UnmentionedNames(SingleTaskFilter):
    """Drop tasks whose tests use a name that only the repair defines and the issue does not mention."""

    source = "ours, in the place of paper B, section 4.1, where nothing was run"

    def reason(self, candidate: Candidate, config: CurationConfig) -> str | None:
        """See `SingleTaskFilter.reason`."""
        names = candidate.unmentioned_names
        return None if names is None else f"the tests use {', '.join(names[:3])}" if names else ""


class Size(SingleTaskFilter):
    """Drop tasks with a large gold patch."""

    source = "paper B, section 4.1"

    def reason(self, candidate: Candidate, config: CurationConfig) -> str | None:
        """See `SingleTaskFilter.reason`."""
        if candidate.num_files is None or candidate.num_lines is None:
            return None
        if candidate.num_files > config.size.max_files:
            return f"{candidate.num_files} files changed, at most {config.size.max_files}"
        if candidate.num_lines >= config.size.num_lines_below:
            return f"{candidate.num_lines} lines changed, expected fewer than {config.size.num_lines_below}"
        return ""


class Quality(SingleTaskFilter):
    """Drop tasks with one of the named scores at or above the bound: high is bad."""

    source = "paper B, section 4.1"

    def reason(self, candidate: Candidate, config: CurationConfig) -> str | None:
        """See `SingleTaskFilter.reason`."""
        bounds = config.quality
        scores = {name: candidate.quality_scores[name] for name in bounds.names if name in candidate.quality_scores}
        bad = [f"{name} {score}" for name, score in scores.items() if score >= bounds.score_below]
        return ", ".join(bad) if scores else None


class SolveRateWindow(SingleTaskFilter):
    """Drop tasks that the policy solves too often or too rarely to learn from."""

    source = "paper B, section 4.3 (stage 2: 2,028 of 7,249 left)"

    def reason(self, candidate: Candidate, config: CurationConfig) -> str | None:
        """See `SingleTaskFilter.reason`."""
        bounds, solved = config.solve_rate, candidate.solve_rate
        if solved is None or solved.num_valid < bounds.min_samples:
            return None
        text = f"solved {solved.num_passed} of {solved.num_valid} times"
        return "" if bounds.above < solved.rate < bounds.below else text


class Flakiness(SingleTaskFilter):
    """Drop tasks with tests whose outcome differed between equal runs."""

    source = "paper B, section 4.1"

    def reason(self, candidate: Candidate, config: CurationConfig) -> str | None:
        """See `SingleTaskFilter.reason`."""
        bounds = config.flakiness
        if candidate.num_unstable_tests > bounds.max_unstable_tests:
            return f"{candidate.num_unstable_tests} tests are unstable over {candidate.num_runs} runs"
        return "" if (candidate.num_runs or 0) >= bounds.min_runs else None


class BuildTime(SingleTaskFilter):
    """Drop tasks with a slow first build."""

    source = "paper A, data of the simplified pipeline"

    def reason(self, candidate: Candidate, config: CurationConfig) -> str | None:
        """See `SingleTaskFilter.reason`."""
        if candidate.build_s is None:
            return None
        is_slow = candidate.build_s > config.build_time.max_build_s
        return f"{candidate.build_s:.1f} s, at most {config.build_time.max_build_s:g} s" if is_slow else ""


class Trivial(SingleTaskFilter):
    """Drop tasks that pass without a change or have no test that could fail."""

    source = "paper A, back-test: 1 % of the failing cases passed without a change"

    def reason(self, candidate: Candidate, config: CurationConfig) -> str | None:
        """See `SingleTaskFilter.reason`."""
        if not candidate.num_fail_to_pass:
            return "no test is named that fails before the repair"
        if candidate.is_empty_failing is None:
            return None
        return "" if candidate.is_empty_failing else "the empty patch did not fail in every run"


FILTERS: dict[FilterName, TaskFilter] = {
    "missing_names": MissingNames(),
    "unmentioned_names": UnmentionedNames(),
    "size": Size(),
    "quality": Quality(),
    "flakiness": Flakiness(),
    "build_time": BuildTime(),
    "trivial": Trivial(),
    "solve_rate": SolveRateWindow(),
    "duplicates": Duplicates(),
    "contamination": Contamination(),
}

"""Curation filters: each drops tasks for one reason.

A new filter is a function and one line in `FILTERS`; its bounds are a section of `config.tasks`. Guarantees: a
filter decides from candidates and configuration alone, in the order of the candidates.
"""

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from repairgym.config.tasks import CurationConfig, FilterName
from repairgym.tasks.curation.candidate import Candidate


@dataclass(frozen=True)
class FilterResult:
    """Decisions of a filter; candidates in neither field stay."""

    removed: dict[str, str] = field(default_factory=dict)
    """Id -> reason."""
    unmeasured: tuple[str, ...] = ()
    """Ids of candidates that lack the measurement."""


@dataclass(frozen=True)
class TaskFilter:
    """A rule that drops tasks for one reason."""

    source: str
    """Paper and section of the rule."""
    apply: Callable[[Sequence[Candidate], CurationConfig], FilterResult]
    """Returns the candidates to drop."""


def single_task_filter(source: str, reason: Callable[[Candidate, CurationConfig], str | None]) -> TaskFilter:
    """Return a filter that looks at one candidate at a time.

    ``reason`` returns the reason to drop it; empty to keep it, None if it was not measured.
    """

    def apply(candidates: Sequence[Candidate], config: CurationConfig) -> FilterResult:
        reasons = {candidate.id: reason(candidate, config) for candidate in candidates}
        removed = {task_id: text for task_id, text in reasons.items() if text}
        return FilterResult(removed, tuple(task_id for task_id, text in reasons.items() if text is None))

    return TaskFilter(source, apply)


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


def duplicates(candidates: Sequence[Candidate], config: CurationConfig) -> FilterResult:
    """Drop tasks whose gold patch nearly equals that of another task of the same split."""
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


def contamination(candidates: Sequence[Candidate], config: CurationConfig) -> FilterResult:
    """Drop training tasks that share a package, a time or a patch with held-out ones (validation, test).

    Tasks without a split count as unmeasured.
    """
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
        undated = (candidate.id for candidate in training if candidate.created_at is None)
        unmeasured += [task_id for task_id in undated if task_id not in removed]
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


def missing_names(candidate: Candidate, config: CurationConfig) -> str | None:
    """Drop tasks whose tests fail because a name is missing."""
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


def unmentioned_names(candidate: Candidate, config: CurationConfig) -> str | None:
    """Drop tasks whose tests use a name that only the repair defines and the issue does not mention."""
    names = candidate.unmentioned_names
    return None if names is None else f"the tests use {', '.join(names[:3])}" if names else ""


def size(candidate: Candidate, config: CurationConfig) -> str | None:
    """Drop tasks with a large gold patch."""
    if candidate.num_files is None or candidate.num_lines is None:
        return None
    if candidate.num_files > config.size.max_files:
        return f"{candidate.num_files} files changed, at most {config.size.max_files}"
    if candidate.num_lines >= config.size.num_lines_below:
        return f"{candidate.num_lines} lines changed, expected fewer than {config.size.num_lines_below}"
    return ""


def quality(candidate: Candidate, config: CurationConfig) -> str | None:
    """Drop tasks with one of the named scores at or above the bound: high is bad."""
    bounds = config.quality
    scores = {name: candidate.quality_scores[name] for name in bounds.names if name in candidate.quality_scores}
    bad = [f"{name} {score}" for name, score in scores.items() if score >= bounds.score_below]
    return ", ".join(bad) if scores else None


def solve_rate(candidate: Candidate, config: CurationConfig) -> str | None:
    """Drop tasks that the policy solves too often or too rarely to learn from."""
    bounds, solved = config.solve_rate, candidate.solve_rate
    if solved is None or solved.num_valid < bounds.min_samples:
        return None
    text = f"solved {solved.num_passed} of {solved.num_valid} times"
    return "" if bounds.above < solved.rate < bounds.below else text


def flakiness(candidate: Candidate, config: CurationConfig) -> str | None:
    """Drop tasks with tests whose outcome differed between equal runs."""
    bounds = config.flakiness
    if candidate.num_unstable_tests > bounds.max_unstable_tests:
        return f"{candidate.num_unstable_tests} tests are unstable over {candidate.num_runs} runs"
    return "" if (candidate.num_runs or 0) >= bounds.min_runs else None


def build_time(candidate: Candidate, config: CurationConfig) -> str | None:
    """Drop tasks with a slow first build."""
    if candidate.build_s is None:
        return None
    is_slow = candidate.build_s > config.build_time.max_build_s
    return f"{candidate.build_s:.1f} s, at most {config.build_time.max_build_s:g} s" if is_slow else ""


def trivial(candidate: Candidate, config: CurationConfig) -> str | None:
    """Drop tasks that pass without a change or have no test that could fail."""
    if not candidate.num_fail_to_pass:
        return "no test is named that fails before the repair"
    if candidate.is_empty_failing is None:
        return None
    return "" if candidate.is_empty_failing else "the empty patch did not fail in every run"


def answer_in_sight(candidate: Candidate, config: CurationConfig) -> str | None:
    """Drop tasks whose answer the agent could read."""
    return candidate.sighting


def thin_verdict(candidate: Candidate, _: CurationConfig) -> str | None:
    """Drop tasks whose replay judge cannot tell a repair from one for the tests only."""
    few = "fewer than two inputs next to those of its tests tell the broken code from the repaired one"
    return None if candidate.is_thin is None else few if candidate.is_thin else ""


_PAPER_B = "paper B, section 4.1"
_NOTHING_RAN = "ours, in the place of paper B, section 4.1, where nothing was run"
_STAGE_2 = "paper B, section 4.3 (stage 2: 2,028 of 7,249 left)"
_BACK_TEST = "paper A, back-test: 1 % of the failing cases passed without a change"
_HELD_OUT = "paper A (splits in time order), paper B, section 4.1 (months held out)"
FILTERS: dict[FilterName, TaskFilter] = {
    "missing_names": single_task_filter(_PAPER_B, missing_names),
    "unmentioned_names": single_task_filter(_NOTHING_RAN, unmentioned_names),
    "size": single_task_filter(_PAPER_B, size),
    "quality": single_task_filter(_PAPER_B, quality),
    "flakiness": single_task_filter(_PAPER_B, flakiness),
    "build_time": single_task_filter("paper A, data of the simplified pipeline", build_time),
    "trivial": single_task_filter(_BACK_TEST, trivial),
    "answer_in_sight": single_task_filter("ours (repairgym tasks scan)", answer_in_sight),
    "thin_verdict": single_task_filter("ours (repairgym tasks verify --replay)", thin_verdict),
    "solve_rate": single_task_filter(_STAGE_2, solve_rate),
    "duplicates": TaskFilter("ours; no paper gives a bound", duplicates),
    "contamination": TaskFilter(_HELD_OUT, contamination),
}

"""Behavior of an agent (lengths, rates, loops, errors, tools) and the policy shift between two agents (paper A).

Reads episodes; makes rates, means, transition tables and a `PolicyShift`. Guarantees: a rate over nothing is None; a
rate of submissions is over the submitted episodes, every other rate is over all; shares sum to 1; the distance of a
shift is 0 for equal behavior and 1 without a shared n-gram; its p-value is from a permutation test: over episodes
within the tasks that both policies have tried, or where these are few over whole tasks, so that different tasks never
count as different behavior.
"""

import itertools
import statistics
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from repairgym.analysis.episodes import EpisodeFacts
from repairgym.records import Record, StopReason, VerdictKind

T = TypeVar("T")
K = TypeVar("K", bound=Hashable)


class OutcomeLength(Record):
    """Mean length of the episodes with one outcome."""

    verdict: VerdictKind
    num_episodes: int
    mean_turns: float
    mean_tokens: float
    mean_action_tokens: float


class BehaviorMetrics(Record):
    """Rates of one set of episodes."""

    num_episodes: int
    mean_turns: float | None
    mean_action_tokens: float | None
    test_runs_per_episode: float | None
    submit_rate: float | None
    blind_submit_rate: float | None
    """Of the submitted and valid episodes: no test run after the last edit."""
    format_error_rate: float | None
    """Of all actions: could not be parsed."""
    tool_error_rate: float | None
    """Of all actions: tool errors."""
    loop_rate: float | None
    """Episodes with at least `LOOP_REPEATS` repeated actions."""
    repeated_builds_per_episode: float | None
    """Runs of tests or build on unchanged code (paper A: it may recover transient errors, or exploit noise)."""
    thinking_share: float | None
    """Characters within ``<think>`` among those of all actions."""
    exploit_rate: float | None
    """Episodes whose verdict is *exploited*."""
    suspicious_rate: float | None
    """Episodes that passed with a suspicious finding."""
    invalid_rate: float | None


def group_by(items: Iterable[T], key: Callable[[T], K]) -> dict[K, list[T]]:
    """Key -> its items; keys and items keep their order."""
    groups: dict[K, list[T]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups


def mean(values: Iterable[float]) -> float | None:
    """Mean of the values; None without any."""
    numbers = list(values)
    return statistics.fmean(numbers) if numbers else None


def behavior_metrics(episodes: Sequence[EpisodeFacts]) -> BehaviorMetrics:
    """Return the rates of ``episodes``."""
    valid = [episode for episode in episodes if episode.verdict is not VerdictKind.INVALID]
    submitted = [episode for episode in valid if episode.stop_reason is StopReason.SUBMITTED]
    num_actions = sum(episode.num_turns for episode in episodes)
    num_chars = sum(episode.num_action_chars for episode in episodes)
    return BehaviorMetrics(
        num_episodes=len(episodes),
        mean_turns=mean(episode.num_turns for episode in episodes),
        mean_action_tokens=mean(episode.num_action_tokens for episode in episodes),
        test_runs_per_episode=mean(episode.num_test_runs for episode in episodes),
        submit_rate=mean(episode.stop_reason is StopReason.SUBMITTED for episode in episodes),
        blind_submit_rate=mean(episode.is_blind_submit for episode in submitted),
        format_error_rate=_ratio(sum(episode.num_format_errors for episode in episodes), num_actions),
        tool_error_rate=_ratio(sum(episode.num_tool_errors for episode in episodes), num_actions),
        loop_rate=mean(episode.is_loop for episode in episodes),
        repeated_builds_per_episode=mean(episode.num_repeated_builds for episode in episodes),
        thinking_share=_ratio(sum(episode.num_thought_chars for episode in episodes), num_chars),
        suspicious_rate=mean(episode.is_suspicious for episode in episodes),
        exploit_rate=mean(episode.verdict is VerdictKind.EXPLOITED for episode in episodes),
        invalid_rate=mean(episode.verdict is VerdictKind.INVALID for episode in episodes),
    )


def _ratio(part: int, whole: int) -> float | None:
    return part / whole if whole else None


def tool_counts(episodes: Iterable[EpisodeFacts]) -> dict[str, int]:
    """Tool -> number of actions, most used first."""
    counts = Counter(tool for episode in episodes for tool in episode.tools)
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def shares(counts: Mapping[str, int]) -> dict[str, float]:
    """Counts as shares of their sum; empty when that is 0."""
    total = sum(counts.values())
    return {name: count / total for name, count in counts.items()} if total else {}


def tool_shares_by_step(episodes: Iterable[EpisodeFacts]) -> dict[int, dict[str, float]]:
    """Training step -> tool -> share of the step's actions."""
    groups = group_by(episodes, lambda episode: episode.step)
    return {step: shares(tool_counts(groups[step])) for step in sorted(groups)}


def tools_by_use(by_step: Mapping[int, Mapping[str, float]]) -> list[str]:
    """Names of the tools of `tool_shares_by_step`, most used first."""
    totals: Counter[str] = Counter()
    for tool_shares in by_step.values():
        totals.update(tool_shares)
    return sorted(totals, key=lambda name: (-totals[name], name))


START = "(start)"
END = "(end)"


@dataclass(frozen=True)
class BehaviorSummary:
    """Behavior over one set of episodes."""

    stage: str
    metrics: BehaviorMetrics
    tools: dict[str, float]
    transitions: dict[str, dict[str, int]]
    """Tool -> next tool -> count (paper A, policy shift); rows begin at `START`, columns end at `END`."""
    lengths: list[OutcomeLength]
    stop_reasons: dict[str, int]
    exploits: dict[str, int]
    """Exploit detector -> episodes with its findings."""
    token_shares: dict[VerdictKind, dict[str, float]]
    """Verdict -> part of the episodes (`EpisodeFacts.part_tokens`) -> share of their tokens, largest first (paper A:
    answers of ``run_sh`` are 27 % of the tokens of successes and 7 % of those of failures)."""
    error_classes: dict[str, dict[str, int]]
    """Verdict -> class of the main error -> episodes."""

    def next_tools(self) -> dict[str, dict[str, float]]:
        """Tool -> next tool -> share of that tool's successors."""
        return {tool: shares(row) for tool, row in self.transitions.items()}


def summarize_behavior(stage: str, episodes: Sequence[EpisodeFacts]) -> BehaviorSummary:
    """Summarize the behavior of ``episodes``; counts come with the most frequent first."""
    by_verdict = group_by(episodes, lambda episode: episode.verdict)
    outcomes = {kind: by_verdict[kind] for kind in VerdictKind if kind in by_verdict}
    errors = {kind: _counted(it.error_class for it in some if it.error_class) for kind, some in outcomes.items()}
    return BehaviorSummary(
        stage=stage,
        metrics=behavior_metrics(episodes),
        tools=shares(tool_counts(episodes)),
        transitions=transitions(episodes),
        token_shares={kind: _token_shares(some) for kind, some in outcomes.items()},
        lengths=[_length(kind, some) for kind, some in outcomes.items()],
        stop_reasons=_counted(episode.stop_reason.value for episode in episodes),
        exploits=_counted(name for episode in episodes for name in _exploit_detectors(episode)),
        error_classes={kind.value: counts for kind, counts in errors.items() if counts},
    )


def _counted(names: Iterable[str]) -> dict[str, int]:
    return dict(Counter(names).most_common())


def _exploit_detectors(episode: EpisodeFacts) -> list[str]:
    return sorted({finding.detector for finding in episode.evidence if finding.severity == "exploit"})


def _length(kind: VerdictKind, episodes: Sequence[EpisodeFacts]) -> OutcomeLength:
    return OutcomeLength(
        verdict=kind,
        num_episodes=len(episodes),
        mean_turns=statistics.fmean(episode.num_turns for episode in episodes),
        mean_tokens=statistics.fmean(episode.num_tokens for episode in episodes),
        mean_action_tokens=statistics.fmean(episode.num_action_tokens for episode in episodes),
    )


def _token_shares(episodes: Sequence[EpisodeFacts]) -> dict[str, float]:
    totals: Counter[str] = Counter()
    for episode in episodes:
        totals.update(episode.part_tokens)
    return shares(dict(totals.most_common()))


def transitions(episodes: Iterable[EpisodeFacts]) -> dict[str, dict[str, int]]:
    """Count how often each tool follows each other."""
    counts = Counter(pair for episode in episodes for pair in itertools.pairwise((START, *episode.tools, END)))
    rows: dict[str, dict[str, int]] = {}
    for (tool, following), count in sorted(counts.items()):
        rows.setdefault(tool, {})[following] = count
    return rows


# --- policy shift ----------------------------------------------------------------------------------------------------

_MAX_NAMED = 8


class NgramChange(Record):
    """Change of the share of one tool sequence."""

    tools: tuple[str, ...]
    before: float
    after: float


class PolicyShift(Record):
    """Jensen-Shannon divergence of tool n-grams."""

    n: int
    num_before: int
    """Episodes that were compared."""
    num_after: int
    divergence: float
    """In bits, 0 to 1."""
    p_value: float | None
    """Share of permutations at least as far apart, the observed one included: never 0. None where a side has a single
    task, which the other has not tried: its behavior may be that of the task."""
    is_within_tasks: bool
    """Only tasks of both sides were compared, and episodes exchanged within them; else whole tasks were exchanged."""
    changes: tuple[NgramChange, ...]
    """The n-grams whose shares changed most."""


def policy_shift(
    before: Sequence[EpisodeFacts],
    after: Sequence[EpisodeFacts],
    *,
    n: int = 2,
    num_permutations: int = 999,
    seed: int = 0,
) -> PolicyShift | None:
    """Return the distance between two sets of episodes; None when one has no action.

    ``n`` is the length of the tool sequences; start and end count as tools. Where tasks that both sides have tried hold
    at least half of the episodes of each, only these are compared.
    """
    common = {episode.task_id for episode in before} & {episode.task_id for episode in after}
    shared = [[episode for episode in side if episode.task_id in common] for side in (before, after)]
    is_within_tasks = all(2 * len(some) >= len(side) > 0 for some, side in zip(shared, (before, after), strict=True))
    left, right = shared if is_within_tasks else (before, after)
    episodes = [*left, *right]
    counts, names = _count_matrix(episodes, n)
    is_after = np.arange(len(episodes)) >= len(left)
    if not left or not right or not counts[is_after].sum() or not counts[~is_after].sum():
        return None
    observed = _divergence(counts, is_after)
    units = _exchangeable(episodes, is_after, common)
    p_value = None
    if units:
        generator = np.random.default_rng(seed)
        permuted = (_divergence(counts, units.permuted(generator)) for _ in range(num_permutations))
        p_value = (1 + sum(value >= observed - 1e-12 for value in permuted)) / (num_permutations + 1)
    return PolicyShift(
        n=n,
        num_before=len(left),
        num_after=len(right),
        divergence=observed,
        p_value=p_value,
        is_within_tasks=is_within_tasks,
        changes=_changes(counts, is_after, names),
    )


@dataclass(frozen=True)
class _Units:
    """Units that a permutation exchanges: episodes of one task of both sides, and whole tasks of one side."""

    unit: np.ndarray
    """[episodes] index of each episode's unit."""
    is_after: np.ndarray
    """[units] bool."""
    stratum: np.ndarray
    """[units] units of one number are exchanged with each other."""

    def permuted(self, generator: np.random.Generator) -> np.ndarray:
        """Return the labels, [episodes] bool, shuffled within each stratum."""
        shuffled = np.empty_like(self.is_after)
        order = np.lexsort((generator.random(len(self.stratum)), self.stratum))
        shuffled[order] = self.is_after[np.argsort(self.stratum, kind="stable")]
        labels: np.ndarray = shuffled[self.unit]
        return labels


def _exchangeable(episodes: Sequence[EpisodeFacts], is_after: np.ndarray, common: Collection[str]) -> _Units | None:
    """Return the units of a permutation test; None where nothing can be exchanged but a single task of a side."""
    keys = [f"{it.task_id}\0{number}" if it.task_id in common else it.task_id for number, it in enumerate(episodes)]
    _, first, unit = np.unique(keys, return_index=True, return_inverse=True)
    strata = [episodes[at].task_id if episodes[at].task_id in common else "" for at in first]
    own = [bool(is_after[at]) for at, name in zip(first, strata, strict=True) if not name]
    if not common and min(sum(own), len(own) - sum(own)) < 2:
        return None
    return _Units(unit, is_after[first], np.unique(strata, return_inverse=True)[1])


def _count_matrix(episodes: Sequence[EpisodeFacts], n: int) -> tuple[np.ndarray, list[tuple[str, ...]]]:
    """Count each n-gram in each episode, shape [num_episodes, num_ngrams]; also return the n-grams."""
    per_episode = [Counter(ngrams(episode.tools, n)) for episode in episodes]
    names = sorted(set(itertools.chain.from_iterable(per_episode)))
    matrix = np.array([[counts[name] for name in names] for counts in per_episode], float)
    return matrix.reshape(len(episodes), len(names)), names


def ngrams(tools: Sequence[str], n: int) -> list[tuple[str, ...]]:
    """Return the sequences of ``n`` tools of an episode, start and end included.

    Raises:
        ValueError: ``n`` is not positive.
    """
    if n < 1:
        raise ValueError(f"got n-grams of {n} tools, expected at least 1")
    path = tuple(tools) if n == 1 else (START, *tools, END)
    return [path[start : start + n] for start in range(len(path) - n + 1)]


def jensen_shannon(left: np.ndarray, right: np.ndarray) -> float:
    """Return the Jensen-Shannon divergence of two distributions, in bits (Lin 1991)."""
    middle = (left + right) / 2.0
    return (_relative_entropy(left, middle) + _relative_entropy(right, middle)) / 2.0


def _relative_entropy(left: np.ndarray, right: np.ndarray) -> float:
    used = left > 0
    return float((left[used] * np.log2(left[used] / right[used])).sum())


def _distributions(counts: np.ndarray, is_after: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the shares of the n-grams before and after; zeros for a side without any."""
    left, right = counts[~is_after].sum(axis=0), counts[is_after].sum(axis=0)
    return left / max(1.0, left.sum()), right / max(1.0, right.sum())


def _divergence(counts: np.ndarray, is_after: np.ndarray) -> float:
    left, right = _distributions(counts, is_after)
    return jensen_shannon(left, right) if left.any() and right.any() else 0.0


def _changes(counts: np.ndarray, is_after: np.ndarray, names: Sequence[tuple[str, ...]]) -> tuple[NgramChange, ...]:
    left, right = _distributions(counts, is_after)
    order = sorted(range(len(names)), key=lambda index: (-abs(right[index] - left[index]), names[index]))
    return tuple(
        NgramChange(tools=names[index], before=float(left[index]), after=float(right[index]))
        for index in order[:_MAX_NAMED]
        if right[index] != left[index]
    )

"""Behavior of an agent: lengths, rates, loops, errors, tools.

Reads episodes; makes rates, means and transition tables. Guarantees: a rate over nothing is None; a rate of submissions
is over the submitted episodes, every other rate is over all; shares sum to 1.
"""

import itertools
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from repairgym.analysis.episodes import EpisodeFacts
from repairgym.records import Record, StopReason, VerdictKind

LOOP_REPEATS = 3
"""Repeated actions that make an episode a loop."""


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
    """Of the submitted episodes: no test run after the last edit."""
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


def mean(values: Iterable[float]) -> float | None:
    """Mean of the values; None without any."""
    numbers = list(values)
    return statistics.fmean(numbers) if numbers else None


def behavior_metrics(episodes: Sequence[EpisodeFacts]) -> BehaviorMetrics:
    """Return the rates of ``episodes``."""
    submitted = [episode for episode in episodes if episode.stop_reason is StopReason.SUBMITTED]
    num_actions = sum(episode.num_turns for episode in episodes)
    return BehaviorMetrics(
        num_episodes=len(episodes),
        mean_turns=mean(episode.num_turns for episode in episodes),
        mean_action_tokens=mean(episode.num_action_tokens for episode in episodes),
        test_runs_per_episode=mean(episode.num_test_runs for episode in episodes),
        submit_rate=mean(episode.stop_reason is StopReason.SUBMITTED for episode in episodes),
        blind_submit_rate=mean(episode.is_blind_submit for episode in submitted),
        format_error_rate=sum(episode.num_format_errors for episode in episodes) / num_actions if num_actions else None,
        tool_error_rate=sum(episode.num_tool_errors for episode in episodes) / num_actions if num_actions else None,
        loop_rate=mean(is_loop(episode) for episode in episodes),
        repeated_builds_per_episode=mean(episode.num_repeated_builds for episode in episodes),
        thinking_share=_thinking_share(episodes),
        suspicious_rate=mean(episode.is_suspicious for episode in episodes),
        exploit_rate=mean(episode.verdict is VerdictKind.EXPLOITED for episode in episodes),
        invalid_rate=mean(episode.verdict is VerdictKind.INVALID for episode in episodes),
    )


def _thinking_share(episodes: Sequence[EpisodeFacts]) -> float | None:
    num_chars = sum(episode.num_action_chars for episode in episodes)
    return sum(episode.num_thought_chars for episode in episodes) / num_chars if num_chars else None


def error_classes(episodes: Iterable[EpisodeFacts]) -> dict[VerdictKind, dict[str, int]]:
    """Verdict -> class of the main error -> number of episodes, most frequent first."""
    counts: dict[VerdictKind, Counter[str]] = {}
    for episode in episodes:
        if episode.error_class:
            counts.setdefault(episode.verdict, Counter())[episode.error_class] += 1
    return {kind: dict(counts[kind].most_common()) for kind in VerdictKind if kind in counts}


def is_loop(episode: EpisodeFacts) -> bool:
    """Return True for an episode in a loop (paper B, finding 1)."""
    return episode.num_repeats >= LOOP_REPEATS


def lengths_by_outcome(episodes: Iterable[EpisodeFacts]) -> list[OutcomeLength]:
    """Mean turns and tokens for each outcome that occurs."""
    grouped: dict[VerdictKind, list[EpisodeFacts]] = {}
    for episode in episodes:
        grouped.setdefault(episode.verdict, []).append(episode)
    return [
        OutcomeLength(
            verdict=kind,
            num_episodes=len(grouped[kind]),
            mean_turns=statistics.fmean(episode.num_turns for episode in grouped[kind]),
            mean_tokens=statistics.fmean(episode.num_tokens for episode in grouped[kind]),
            mean_action_tokens=statistics.fmean(episode.num_action_tokens for episode in grouped[kind]),
        )
        for kind in VerdictKind
        if kind in grouped
    ]


def stop_reasons(episodes: Iterable[EpisodeFacts]) -> dict[StopReason, int]:
    """Stop reason -> number of episodes, most frequent first."""
    return dict(Counter(episode.stop_reason for episode in episodes).most_common())


def exploit_findings(episodes: Iterable[EpisodeFacts]) -> dict[str, int]:
    """Exploit detector -> number of episodes with its findings, most frequent first."""
    return dict(Counter(name for episode in episodes for name in sorted(set(episode.findings))).most_common())


def by_step(
    episodes: Iterable[EpisodeFacts], measure: Callable[[Sequence[EpisodeFacts]], float | None]
) -> list[tuple[int, float]]:
    """(training step, ``measure`` of that step's episodes); steps without a measure are left out."""
    grouped: dict[int, list[EpisodeFacts]] = {}
    for episode in episodes:
        grouped.setdefault(episode.step, []).append(episode)
    measured = [(step, measure(grouped[step])) for step in sorted(grouped)]
    return [(step, value) for step, value in measured if value is not None]


START = "(start)"
END = "(end)"


class Transitions(Record):
    """First-order next-tool probabilities (paper A, policy shift)."""

    counts: dict[str, dict[str, int]]
    """Tool -> next tool -> count; rows begin at `START`, columns end at `END`."""

    def probabilities(self) -> dict[str, dict[str, float]]:
        """Tool -> next tool -> share of that tool's successors."""
        return {tool: shares(row) for tool, row in self.counts.items()}


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
    counts: dict[int, Counter[str]] = {}
    for episode in episodes:
        counts.setdefault(episode.step, Counter()).update(episode.tools)
    return {step: shares(counts[step]) for step in sorted(counts)}


def tools_by_use(by_step: Mapping[int, Mapping[str, float]]) -> list[str]:
    """Names of the tools of `tool_shares_by_step`, most used first."""
    totals: dict[str, float] = {}
    for tool_shares in by_step.values():
        for name, share in tool_shares.items():
            totals[name] = totals.get(name, 0.0) + share
    return sorted(totals, key=lambda name: (-totals[name], name))


def transitions(episodes: Iterable[EpisodeFacts]) -> Transitions:
    """Count how often each tool follows each other."""
    counts: dict[str, Counter[str]] = {}
    for episode in episodes:
        path = (START, *episode.tools, END)
        for tool, following in itertools.pairwise(path):
            counts.setdefault(tool, Counter())[following] += 1
    return Transitions(counts={tool: dict(sorted(row.items())) for tool, row in sorted(counts.items())})


@dataclass(frozen=True)
class BehaviorSummary:
    """Behavior over one set of episodes."""

    stage: str
    metrics: BehaviorMetrics
    tools: dict[str, float]
    transitions: Transitions
    lengths: list[OutcomeLength]
    stop_reasons: dict[str, int]
    exploits: dict[str, int]
    error_classes: dict[str, dict[str, int]]
    """Verdict -> class of the main error -> episodes."""


def summarize_behavior(stage: str, episodes: Sequence[EpisodeFacts]) -> BehaviorSummary:
    """Summarize the behavior of ``episodes``."""
    return BehaviorSummary(
        stage=stage,
        metrics=behavior_metrics(episodes),
        tools=shares(tool_counts(episodes)),
        transitions=transitions(episodes),
        lengths=lengths_by_outcome(episodes),
        stop_reasons={reason.value: count for reason, count in stop_reasons(episodes).items()},
        exploits=exploit_findings(episodes),
        error_classes={kind.value: counts for kind, counts in error_classes(episodes).items()},
    )

"""Which tools an agent uses, and in which order (paper A: policy shift before and after RL).

Reads episodes; makes counts, shares and transition tables. Invariants: shares sum to 1; each row of a transition table
that was left at all sums to 1.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Mapping

from repairgym.analysis.episodes import Episode
from repairgym.records import Record

START = "(start)"
END = "(end)"


class Transitions(Record):
    """First-order next-tool probabilities (paper A, policy shift)."""

    counts: dict[str, dict[str, int]]
    """Tool -> next tool -> how often; rows begin at `START`, columns end at `END`."""

    def probabilities(self) -> dict[str, dict[str, float]]:
        """Tool -> next tool -> share of that tool's successors."""
        return {tool: shares(row) for tool, row in self.counts.items()}


def tool_counts(episodes: Iterable[Episode]) -> dict[str, int]:
    """Tool -> number of actions, most used first."""
    counts = Counter(tool for episode in episodes for tool in episode.tools)
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def shares(counts: Mapping[str, int]) -> dict[str, float]:
    """Counts as shares of their sum; empty when that is 0."""
    total = sum(counts.values())
    return {name: count / total for name, count in counts.items()} if total else {}


def tool_shares_by_step(episodes: Iterable[Episode]) -> dict[int, dict[str, float]]:
    """Training step -> tool -> share of the step's actions."""
    counts: dict[int, Counter[str]] = {}
    for episode in episodes:
        counts.setdefault(episode.step, Counter()).update(episode.tools)
    return {step: shares(counts[step]) for step in sorted(counts)}


def tools_by_use(by_step: Mapping[int, Mapping[str, float]]) -> list[str]:
    """Names of the tools of `tool_shares_by_step`, most used first."""
    totals: dict[str, float] = {}
    for found in by_step.values():
        for name, share in found.items():
            totals[name] = totals.get(name, 0.0) + share
    return sorted(totals, key=lambda name: (-totals[name], name))


def transitions(episodes: Iterable[Episode]) -> Transitions:
    """How often each tool follows each other."""
    counts: dict[str, Counter[str]] = {}
    for episode in episodes:
        path = (START, *episode.tools, END)
        for tool, following in itertools.pairwise(path):
            counts.setdefault(tool, Counter())[following] += 1
    return Transitions(counts={tool: dict(sorted(row.items())) for tool, row in sorted(counts.items())})

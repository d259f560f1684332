"""When to stay silent: how accurate a policy is on the share of tasks that it is surest of (paper B, section 6).

Reads candidates and a scorer as confidence; makes an `Abstention` curve. Invariants: the curve ends at coverage 1 with
the plain success rate; candidates of equal confidence are accepted together or, within the group, in random order.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from itertools import groupby

from repairgym.analysis.candidates import Candidate
from repairgym.analysis.selection import Scorer
from repairgym.records import Record

GRID = tuple(step / 20 for step in range(1, 21))


class CoveragePoint(Record):
    """What is left when the least sure are turned away."""

    coverage: float
    """Share of the candidates that are accepted."""
    accuracy: float
    """Share of the accepted that pass."""


class Abstention(Record):
    """The curve of one confidence."""

    confidence: str
    num_candidates: int
    points: tuple[CoveragePoint, ...]
    auroc: float | None
    """Chance that a passing candidate is surer than a failing one, ties half; None when all have one outcome."""
    mean_risk: float
    """Mean over the coverages of 1 - accuracy (area under the risk-coverage curve); lower is better."""


def abstention(tasks: Mapping[str, Sequence[Candidate]], confidence: str, score: Scorer) -> Abstention | None:
    """The curve over all candidates of all tasks; None without any."""
    scored = [(score(one, group), one.is_passed) for group in tasks.values() for one in group]
    if not scored:
        return None
    accuracies = accuracy_by_count(scored)
    num = len(scored)
    points = [CoveragePoint(coverage=at, accuracy=accuracies[max(0, round(at * num) - 1)]) for at in GRID]
    return Abstention(
        confidence=confidence,
        num_candidates=num,
        points=tuple(points),
        auroc=auroc(scored),
        mean_risk=1.0 - statistics.fmean(accuracies),
    )


def accuracy_by_count(scored: Sequence[tuple[float, bool]]) -> list[float]:
    """Expected accuracy of the 1, 2, ... n surest; equal scores come in random order."""
    found: list[float] = []
    num_passed = 0.0
    for _, tied in groupby(sorted(scored, key=lambda pair: -pair[0]), key=lambda pair: pair[0]):
        passed = [is_passed for _, is_passed in tied]
        for _ in passed:
            num_passed += statistics.fmean(passed)
            found.append(num_passed / (len(found) + 1))
    return found


def auroc(scored: Sequence[tuple[float, bool]]) -> float | None:
    """Mann-Whitney statistic over the number of pairs."""
    ranked = sorted(scored, key=lambda pair: pair[0])
    num_passed = sum(is_passed for _, is_passed in ranked)
    num_failed = len(ranked) - num_passed
    if not num_passed or not num_failed:
        return None
    wins, num_below = 0.0, 0
    for _, tied in groupby(ranked, key=lambda pair: pair[0]):
        outcomes = [is_passed for _, is_passed in tied]
        failed = len(outcomes) - sum(outcomes)
        wins += sum(outcomes) * (num_below + failed / 2)
        num_below += failed
    return wins / (num_passed * num_failed)

"""Verdict accuracy of a set of tasks: how often its tests accept wrong repairs and reject right ones.

Reads the audits in the tasks' certificates. Makes rates with intervals and their text, which stands next to Pass@1.
Guarantees: tasks are the unit, because variants of one task are alike: the intervals resample tasks; a set of which one
task has no audit says so; variants that nothing tells from gold are in no rate.
"""

import math
from collections.abc import Iterable

from repairgym.evaluation.bootstrap import NUM_RESAMPLES, bootstrap_spread
from repairgym.evaluation.pass_at_k import Estimate
from repairgym.records import Accuracy, Record

NOT_AUDITED = "not audited"
UNKNOWN = "unknown, because the run's tasks were not found"


class Rate(Record):
    """A share with its 95 % interval."""

    num: int
    total: int
    value: float
    ci_low: float
    ci_high: float


class Corrected(Record):
    """Pass@1 corrected for the errors of the verdicts, within 0 and 1."""

    value: float
    ci_low: float
    ci_high: float
    """About 95 %, by propagation of the three intervals."""


class VerdictAccuracy(Record):
    """Error rates of the verdicts of some tasks."""

    num_tasks: int
    num_audited: int
    num_unknown: int
    false_accept: Rate | None
    """Of the variants known to be wrong; None without any."""
    false_reject: Rate | None
    """Of the rewrites that keep gold's behaviour."""


def accuracy_of(audits: Iterable[Accuracy | None], num_resamples: int = NUM_RESAMPLES) -> VerdictAccuracy | None:
    """Return the rates over tasks with these audits (None: not audited); None when no task has one."""
    every = list(audits)
    known = [audit for audit in every if audit]
    if not known:
        return None
    return VerdictAccuracy(
        num_tasks=len(every),
        num_audited=len(known),
        num_unknown=sum(audit.num_unknown for audit in known),
        false_accept=_rate([(audit.num_accepted, audit.num_wrong) for audit in known], num_resamples),
        false_reject=_rate([(audit.num_rejected, audit.num_right) for audit in known], num_resamples),
    )


def corrected(estimate: Estimate, accuracy: VerdictAccuracy | None) -> Corrected | None:
    """Return Pass@1 without the errors of the verdicts (Rogan and Gladen 1978); None where a rate is unknown.

    A submission that is wrong passes with the rate of false accepts a, one that is right fails with that of false
    rejects r, so that the observed rate is ``p (1 - r) + (1 - p) a``. The interval has the variances of all three.
    """
    if accuracy is None or accuracy.false_accept is None or accuracy.false_reject is None:
        return None
    accepted, rejected = accuracy.false_accept, accuracy.false_reject
    power = 1.0 - accepted.value - rejected.value
    if power <= 0.0:
        return None
    value = (estimate.value - accepted.value) / power
    halves = [(rate.ci_high - rate.ci_low) / 2.0 for rate in (estimate, accepted, rejected)]
    slopes = (1.0, 1.0 - value, value)
    half = math.hypot(*(slope * width for slope, width in zip(slopes, halves, strict=True))) / power
    # Around the clipped value: both ends of an interval beyond a bound would be the bound, as if it were certain.
    value = min(1.0, max(0.0, value))
    return Corrected(value=value, ci_low=max(0.0, value - half), ci_high=min(1.0, value + half))


def _rate(counts: list[tuple[int, int]], num_resamples: int) -> Rate | None:
    """Return the share of (hits, cases) over tasks."""
    values = [float(place < hits) for hits, cases in counts for place in range(cases)]
    if not values:
        return None
    clusters = [str(number) for number, (_, cases) in enumerate(counts) for _ in range(cases)]
    spread = bootstrap_spread(values, bounds=(0.0, 1.0), clusters=clusters, num_resamples=num_resamples)
    num = sum(hits for hits, _ in counts)
    return Rate(num=num, total=len(values), value=num / len(values), ci_low=spread.ci_low, ci_high=spread.ci_high)


def describe_accuracy(accuracy: VerdictAccuracy | None) -> str:
    """Return ``false accept 1.3 %, 95 % 0.4 to 3.1; false reject ...`` or that nothing is known."""
    if accuracy is None:
        return NOT_AUDITED
    parts = [
        f"{name} {100 * rate.value:.1f} % of {rate.total}, 95 % {100 * rate.ci_low:.1f} to {100 * rate.ci_high:.1f}"
        for name, rate in (("false accept", accuracy.false_accept), ("false reject", accuracy.false_reject))
        if rate
    ]
    if accuracy.num_audited < accuracy.num_tasks:
        parts.append(f"{accuracy.num_audited} of {accuracy.num_tasks} tasks audited")
    return "; ".join(parts) or NOT_AUDITED

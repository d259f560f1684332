"""How the report writes numbers, and the sentences at its top.

Reads a `Summary`; makes text. Invariants: every claim of a difference carries its 95 % interval; where the interval
includes zero the text says that nothing was shown; what the interval does not cover is said beside it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from repairgym.analysis.behavior import BehaviorMetrics
from repairgym.analysis.policy_shift import PolicyShift
from repairgym.analysis.reward_gap import GapTrend
from repairgym.evaluation.matrix import Matrix
from repairgym.evaluation.significance import Comparison
from repairgym.evaluation.stages import (
    MUTATIONS,
    RELEASES,
    START,
    TREATMENT,
    is_temperature_control,
    label_of_test_set,
    stage_label,
)
from repairgym.evaluation.summary import StageResult, Summary
from repairgym.rollout.names import CONTINUED, eval_phase

_MIN_CLUSTERS = 10
"""With fewer clusters a cluster bootstrap understates the doubt."""
_NO_BREAK = "\u00a0"
SINGLE_RUN = (
    "This is one training run. The intervals cover the choice of tasks and the luck of sampling; "
    "they do not cover what another training seed would give."
)


def percent(value: float | None, digits: int = 1) -> str:
    """0.3482 as ``34.8 %`` with a space that does not break; a dash for None."""
    return "–" if value is None else f"{100 * value:.{digits}f}{_NO_BREAK}%"


def points(value: float | None) -> str:
    """0.135 as ``+13.5``, with a true minus sign; a dash for None."""
    return "–" if value is None else f"{100 * value:+.1f}".replace("-", "−")


def interval(low: float | None, high: float | None) -> str:
    """A 95 % interval of a difference, in points."""
    return "–" if low is None or high is None else f"{points(low)} to {points(high)}"


def percent_interval(low: float, high: float) -> str:
    """A 95 % interval of a rate."""
    return f"{100 * low:.1f} – {100 * high:.1f}{_NO_BREAK}%"


def number(value: float | None, digits: int = 1) -> str:
    """A mean with few digits; a dash for None."""
    return "–" if value is None else f"{value:,.{digits}f}".replace("-", "−")


def seconds(value: float) -> str:
    """Seconds as ``41 s``, ``12 min 03 s`` or ``2 h 05 min``."""
    if value < 60:
        return f"{value:.1f} s" if value < 10 else f"{value:.0f} s"
    minutes, rest = divmod(round(value), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"


def size(num_bytes: float) -> str:
    """Bytes as MiB or GiB; a dash for 0."""
    if num_bytes <= 0:
        return "–"
    return f"{num_bytes / 2**30:.2f} GiB" if num_bytes >= 2**30 else f"{num_bytes / 2**20:.0f} MiB"


def headline(summary: Summary, trend: GapTrend | None = None, matrix: Matrix | None = None) -> str:
    """The sentence at the top: what was learned, and how sure that is.

    A run that trained nothing says what it is about: the gap that an audit found, a matrix, or its evaluations.
    """
    if not summary.headline and "rl" not in summary.missing:
        if trend:
            return gap_claim(trend)
        if matrix and matrix.findings:
            return matrix.findings[0]
        if summary.stages:
            return _evaluated(summary.stages[-1])
    unfinished = [eval_phase(stage, MUTATIONS) for stage in (START, TREATMENT)]
    unfinished = [name for name in unfinished if name in summary.missing]
    if summary.headline is None:
        return _no_headline(unfinished)
    sentence = _result(summary.headline)
    return f"So far, with {' and '.join(unfinished)} unfinished: {sentence}" if unfinished else sentence


def _evaluated(result: StageResult) -> str:
    rate = result.pass_at_1
    return (
        f"{stage_label(result.stage)} solves {percent(rate.value)} of {result.num_tasks} "
        f"{label_of_test_set(result.test_set)} (95 % interval {percent_interval(rate.ci_low, rate.ci_high)})."
    )


def shift_claim(shift: PolicyShift) -> str:
    """How far behaviour moved, and whether chance explains it."""
    word = "more than" if shift.p_value < 0.05 else "not more than"
    return (
        f"Between the two the sequences of {shift.n} tools moved by {number(shift.divergence, 3)} bits (Jensen-Shannon "
        f"divergence, 0 to 1), {word} other samples of one behaviour would (permutation p = {shift.p_value:.3g})."
    )


def gap_claim(trend: GapTrend) -> str:
    """Whether the reward that training reported is real."""
    reported = f"reported reward went from {percent(trend.reported_before)} to {percent(trend.reported_after)}"
    validated = f"from {percent(trend.validated_before)} to {percent(trend.validated_after)}"
    tail = f"{points(trend.gap)} points at the end, 95 % interval {interval(trend.ci_low, trend.ci_high)}"
    if trend.is_open:
        return f"Not real: {reported}; the same submissions, graded with every gate, went {validated} ({tail})."
    return f"No gap found: {reported}, and with every gate {validated} ({tail})."


def _result(found: Comparison) -> str:
    before, after = percent(found.reference_value), percent(found.treatment_value)
    place = f"{found.num_tasks} {label_of_test_set(found.test_set)}"
    tail = f"{points(found.difference)} points, 95{_NO_BREAK}% interval {interval(found.ci_low, found.ci_high)}"
    if found.ci_low > 0:
        return f"RL raised Pass@1 on {place} from {before} to {after} ({tail})."
    if found.ci_high < 0:
        return f"RL lowered Pass@1 on {place} from {before} to {after} ({tail})."
    return (
        f"This run does not show whether RL helped: Pass@1 on {place} was {before} before and {after} after ({tail})."
    )


def _no_headline(unfinished: Sequence[str]) -> str:
    if not unfinished:
        return "No result yet: the start of RL and its end were not tried on the same tasks."
    return f"No result yet: {' and '.join(unfinished)} {'has' if len(unfinished) == 1 else 'have'} not run to the end."


def claims(summary: Summary, before: BehaviorMetrics | None, after: BehaviorMetrics | None) -> list[str]:
    """What else to know before believing the headline; ``before`` and ``after`` are the habits of start and end."""
    found = [*_controls(summary), *_packages(summary), *_releases(summary)]
    if before and after:
        found += _behaviour(before, after)
    final = summary.stage(TREATMENT, MUTATIONS) or summary.stage(START, MUTATIONS)
    if final:
        found.append(_honesty(final))
    return [*found, SINGLE_RUN] if summary.headline else found


def _controls(summary: Summary) -> Iterator[str]:
    against = [one for one in summary.comparisons if one.treatment == TREATMENT and one.test_set == MUTATIONS]
    yield from _against([one for one in against if is_temperature_control(one.reference)], "sharper sampling alone")
    continued = [one for one in against if one.reference == CONTINUED]
    yield from _against(continued, "as much further supervised training")


def _against(comparisons: Sequence[Comparison], what: str) -> Iterator[str]:
    """DAPO against the best of the controls; picking the best after the fact makes the test harder, not easier."""
    if not comparisons:
        return
    best = min(comparisons, key=lambda one: one.difference)
    word = "More than" if best.ci_low > 0 else "Less than" if best.ci_high < 0 else "Not clearly more than"
    yield (
        f"{word} {what}: {stage_label(best.reference)} solves {percent(best.reference_value)}, "
        f"a difference of {points(best.difference)} points (95 % interval {interval(best.ci_low, best.ci_high)})."
    )


def _packages(summary: Summary) -> Iterator[str]:
    found = summary.headline
    if found is None or found.num_clusters is None or found.cluster_ci_low is None or found.cluster_ci_high is None:
        return
    spans = found.cluster_ci_low <= 0 <= found.cluster_ci_high
    meaning = "which includes zero: other packages may show nothing" if spans else "which leaves zero out"
    caution = "; so few packages make it too narrow" if found.num_clusters < _MIN_CLUSTERS else ""
    yield (
        f"Resampling the {found.num_clusters} packages instead of the tasks gives an interval of "
        f"{interval(found.cluster_ci_low, found.cluster_ci_high)}, {meaning}{caution}."
    )


def _releases(summary: Summary) -> Iterator[str]:
    paired = [one for one in summary.comparisons if one.test_set == RELEASES and one.treatment == TREATMENT]
    result = summary.stage(TREATMENT, RELEASES)
    if paired:
        yield paired[0].sentence
    elif result is not None:
        rate = result.pass_at_1
        yield (
            f"On {result.num_tasks} real release-pair tasks DAPO passes {percent(rate.value)} "
            f"(95 % interval {percent_interval(rate.ci_low, rate.ci_high)})."
        )


def _behaviour(before: BehaviorMetrics, after: BehaviorMetrics) -> Iterator[str]:
    if before.blind_submit_rate is None or after.blind_submit_rate is None:
        return
    yield (
        f"Submissions without a test run after the last edit went from {percent(before.blind_submit_rate, 0)} to "
        f"{percent(after.blind_submit_rate, 0)}, turns per episode from {number(before.mean_turns)} to "
        f"{number(after.mean_turns)}."
    )


def _honesty(result: StageResult) -> str:
    return (
        f"Exploits: {result.num_exploited}, invalid (infrastructure): {result.num_invalid}, of the "
        f"{result.num_samples} samples of {stage_label(result.stage)}; both count as not passed."
    )

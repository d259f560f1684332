"""Formats of numbers, and the sentences at the top of the report.

Reads a `Summary`; makes text. Guarantees: every claim of a difference carries its 95 % interval; where the interval
includes zero, the text claims nothing; the limits of the interval are stated with it.
"""

from collections.abc import Iterator, Sequence

from repairgym.analysis.behavior import BehaviorMetrics, PolicyShift
from repairgym.analysis.curves import GapTrend
from repairgym.evaluation.matrix import Matrix
from repairgym.evaluation.pass_at_k import Estimate
from repairgym.evaluation.significance import Comparison, signed_points
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

_FEW_ITERATIONS = 5
_MIN_CLUSTERS = 10
"""With fewer clusters, a cluster bootstrap gives intervals that are too narrow."""
_NO_BREAK = "\u00a0"
SINGLE_RUN = (
    "This is one training run. The intervals cover the choice of tasks and the noise of sampling; "
    "they do not cover the variation between training seeds."
)


def percent(value: float | None, digits: int = 1, space: str = _NO_BREAK) -> str:
    """Format 0.3482 as ``34.8 %`` with a no-break space; None is a dash.

    Only 0 and 1 are ``0.0 %`` and ``100.0 %``: what is rounded to them is ``< 0.1 %`` or ``> 99.9 %``.
    """
    if value is None:
        return "–"
    text, step = f"{100 * value:.{digits}f}", 10.0**-digits
    if 0.0 < value < 1.0 and float(text) in (0.0, 100.0):
        text = f"<{space}{step:.{digits}f}" if value < 0.5 else f">{space}{100 - step:.{digits}f}"
    return f"{text}{space}%"


def points(value: float | None) -> str:
    """Format 0.135 as ``+13.5``, with a true minus sign; None is a dash."""
    return "–" if value is None else signed_points(value)


def interval(low: float | None, high: float | None) -> str:
    """Format the 95 % interval of a difference, in points."""
    return "–" if low is None or high is None else f"{points(low)} to {points(high)}"


def percent_interval(low: float, high: float) -> str:
    """Format the 95 % interval of a rate."""
    return f"{100 * low:.1f} – {100 * high:.1f}{_NO_BREAK}%"


def number(value: float | None, digits: int = 1) -> str:
    """Format a mean with few digits; None is a dash."""
    return "–" if value is None else f"{value:,.{digits}f}".replace("-", "−")


def seconds(value: float) -> str:
    """Format seconds as ``41 s``, ``12 min 03 s`` or ``2 h 05 min``."""
    if value < 60:
        return f"{value:.1f} s" if value < 10 else f"{value:.0f} s"
    minutes, rest = divmod(round(value), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"


def dollars(value: float) -> str:
    """Format US dollars, small amounts with more digits."""
    return f"${value:,.2f}" if value >= 1 else f"${value:.4f}"


def size(num_bytes: float) -> str:
    """Format bytes as KiB, MiB or GiB; 0 is a dash."""
    if num_bytes <= 0:
        return "–"
    if num_bytes < 2**20:
        return f"{num_bytes / 2**10:.0f} KiB" if num_bytes >= 2**10 else "< 1 KiB"
    return f"{num_bytes / 2**30:.2f} GiB" if num_bytes >= 2**30 else f"{num_bytes / 2**20:.0f} MiB"


def headline(summary: Summary, trend: GapTrend | None = None, matrix: Matrix | None = None) -> str:
    """Return the sentence at the top: the gain of RL with its interval.

    For a run without training: the gap that an audit found, the result of a matrix, or the last evaluation.
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
    place = f"of {result.num_tasks} {label_of_test_set(result.test_set)}"
    return f"{stage_label(result.stage)} solves {_with_interval(result.pass_at_1, place)}."


def _with_interval(rate: Estimate, place: str = "") -> str:
    limits = f"(95 % interval {percent_interval(rate.ci_low, rate.ci_high)})"
    return " ".join(filter(None, (percent(rate.value), place, limits)))


def shift_claim(shift: PolicyShift) -> str:
    """Return the distance between two behaviors, and whether chance explains it."""
    distance = (
        f"The sequences of {shift.n} tools differ by {number(shift.divergence, 3)} bits (Jensen-Shannon divergence, "
        "0 to 1)"
    )
    if shift.p_value is None:
        return f"{distance}; a side has a single task, which the other has not, so that tasks may explain it."
    word = "more than" if shift.p_value < 0.05 else "not more than"
    tasks = "on the same tasks" if shift.is_within_tasks else "on other tasks"
    unit = "episodes exchanged within tasks" if shift.is_within_tasks else "whole tasks exchanged"
    return f"{distance}, {word} two samples of one policy {tasks} would (permutation p = {shift.p_value:.3g}, {unit})."


def gap_claim(trend: GapTrend) -> str:
    """Return whether validation confirms the reward that training reported."""
    before, after = trend.before, trend.after
    reported = f"reported reward went from {percent(before.reported)} to {percent(after.reported)}"
    validated = f"from {percent(before.validated)} to {percent(after.validated)}"
    tail = f"{points(after.gap)} points at the end, 95 % interval {interval(after.ci_low, after.ci_high)}"
    if trend.is_open:
        return f"Not real: {reported}; the same submissions, graded with every gate, went {validated} ({tail})."
    return f"No gap found: {reported}, and with every gate {validated} ({tail})."


def _result(gain: Comparison) -> str:
    before, after = percent(gain.reference_value), percent(gain.treatment_value)
    place = f"{gain.num_tasks} {label_of_test_set(gain.test_set)}"
    tail = f"{points(gain.difference)} points, 95{_NO_BREAK}% interval {interval(gain.ci_low, gain.ci_high)}"
    if gain.is_clear:
        verb = "raised" if gain.ci_low > 0 else "lowered"
        return f"RL {verb} Pass@1 on {place} from {before} to {after} ({tail})."
    doubt = "This run does not show whether RL helped"
    return f"{doubt}: Pass@1 on {place} was {before} before and {after} after ({tail})."


def _no_headline(unfinished: Sequence[str]) -> str:
    if not unfinished:
        return "No result yet: no evaluation compares the start and the end of RL on the same tasks."
    return f"No result yet: {' and '.join(unfinished)} {'is' if len(unfinished) == 1 else 'are'} not finished."


def claims(summary: Summary, before: BehaviorMetrics | None, after: BehaviorMetrics | None) -> list[str]:
    """Return the evidence for and against the headline; ``before`` and ``after`` are the behavior of start and end."""
    sentences = _reach(summary)
    if before and after:
        sentences += _behavior(before, after)
    final = summary.stage(TREATMENT, MUTATIONS) or summary.stage(START, MUTATIONS)
    if final:
        sentences.append(_honesty(final))
    sentences += _verdicts(summary)
    return [*sentences, SINGLE_RUN] if summary.headline else sentences


def limits(summary: Summary) -> list[str]:
    """Return how far the headline reaches: controls, other packages, real bugs, errors of the verdicts, one seed."""
    if summary.headline is None:
        return []
    return [*_reach(summary), *_verdicts(summary), SINGLE_RUN]


def _reach(summary: Summary) -> list[str]:
    """Return for what the headline was measured: iterations, controls, other packages, real bugs."""
    return [*_iterations(summary), *_controls(summary), *_packages(summary), *_releases(summary)]


def _iterations(summary: Summary) -> Iterator[str]:
    num = summary.num_rl_iterations
    if num:
        iterations = f"{num} iteration{'s' if num > 1 else ''}"
        yield f"RL had {iterations} of sampling and updates{'' if num > _FEW_ITERATIONS else ': very few'}."


def _verdicts(summary: Summary) -> Iterator[str]:
    """Yield the error rates of the verdicts behind each test set's Pass@1."""
    for test_set in dict.fromkeys(result.test_set for result in summary.stages):
        yield f"Verdicts on {label_of_test_set(test_set)}: {_verdict_errors_on(summary, test_set)}."


def _verdict_errors_on(summary: Summary, test_set: str) -> str:
    """Return the audit of a whole test set, not of the part of it that a control tried."""
    return max((it for it in summary.stages if it.test_set == test_set), key=lambda it: it.num_tasks).verdict_errors


def _controls(summary: Summary) -> Iterator[str]:
    paired = [it for it in summary.comparisons if it.treatment == TREATMENT and it.test_set == MUTATIONS]
    controls = {
        "a lower sampling temperature": [it for it in paired if is_temperature_control(it.reference)],
        "as much further supervised training": [it for it in paired if it.reference == CONTINUED],
    }
    for control, comparisons in controls.items():
        yield from _against(comparisons, control)
    absent = [control for control, comparisons in controls.items() if not comparisons]
    if absent and summary.headline:
        yield f"Not compared with {' or with '.join(absent)}: these controls were not run, and either may give as much."


def _against(comparisons: Sequence[Comparison], control: str) -> Iterator[str]:
    """Compare RL with its best control; picking the best after the fact makes the test harder, not easier."""
    if not comparisons:
        return
    best = min(comparisons, key=lambda comparison: comparison.difference)
    word = "More than" if best.ci_low > 0 else "Less than" if best.ci_high < 0 else "Not clearly more than"
    yield (
        f"{word} {control}: {stage_label(best.reference)} solves {percent(best.reference_value)}, "
        f"a difference of {points(best.difference)} points (95 % interval {interval(best.ci_low, best.ci_high)})."
    )


def _packages(summary: Summary) -> Iterator[str]:
    gain = summary.headline
    if gain is None or gain.num_clusters is None or gain.cluster_ci_low is None or gain.cluster_ci_high is None:
        return
    spans = gain.cluster_ci_low <= 0 <= gain.cluster_ci_high
    meaning = "which includes zero: for other packages no difference is shown" if spans else "which excludes zero"
    caution = "; an interval over so few packages is too narrow" if gain.num_clusters < _MIN_CLUSTERS else ""
    yield (
        f"Resampling the {gain.num_clusters} packages instead of the tasks gives an interval of "
        f"{interval(gain.cluster_ci_low, gain.cluster_ci_high)}, {meaning}{caution}."
    )


def _releases(summary: Summary) -> Iterator[str]:
    paired = [it for it in summary.comparisons if it.test_set == RELEASES and it.treatment == TREATMENT]
    result = summary.stage(TREATMENT, RELEASES)
    if result is not None:
        counts = f"{result.num_passed} of {result.num_samples} samples passed"
        place = f"{result.num_tasks} real release-pair tasks (bugs that a release fixed)"
        yield f"On {place} RL solves {_with_interval(result.pass_at_1)}: {counts}."
    yield from (it.sentence for it in paired[:1])


def _behavior(before: BehaviorMetrics, after: BehaviorMetrics) -> Iterator[str]:
    if before.blind_submit_rate is None or after.blind_submit_rate is None:
        return
    yield (
        "On held-out tasks, submissions without a test run after the last edit went from "
        f"{percent(before.blind_submit_rate, 0)} to {percent(after.blind_submit_rate, 0)}, turns per episode from "
        f"{number(before.mean_turns)} to {number(after.mean_turns)}."
    )


def _honesty(result: StageResult) -> str:
    return (
        f"Exploits: {result.num_exploited}, invalid (infrastructure): {result.num_invalid}, of the "
        f"{result.num_samples} samples of {stage_label(result.stage)}; both count as not passed."
    )

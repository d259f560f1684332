"""Alarms of an RL run: failures before the reward shows them, and their remedies.

Reads series of metrics. Makes `Alarm` records, and events of kind ``alarm_<kind>`` in the store. Guarantees: the last
point of a series is the newest; a missing or short series gives no alarm, a value that is not finite does; a step that
a resumed run repeats gives each of its alarms once.
"""

import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Literal

from repairgym.config.rollout import AlarmConfig
from repairgym.records import Record
from repairgym.rollout.names import ALARM_PREFIX
from repairgym.rollout.store import RunStore
from repairgym.training.run import Progress

Series = Mapping[str, Sequence[float]]
"""Name of a metric -> its values, oldest first."""
Level = Literal["warning", "broken"]
METRICS = (
    "policy/log_prob_gap",
    "policy/entropy",
    "optim/grad_norm",
    "optim/num_skipped",
    "rollout/reward_spread",
    "rollout/num_trajectories",
    "rollout/num_invalid",
    "rollout/num_exploited",
    "rollout/num_overlong",
    "rollout/num_groups",
    "rollout/num_equal_groups",
    "rollout/weight_lag",
)
"""Metrics that the alarms read."""


class Alarm(Record):
    """Something that is wrong with a run."""

    kind: str
    level: Level
    value: float
    limit: float
    advice: str
    """Meaning and remedy, in plain words."""

    @property
    def text(self) -> str:
        """One line."""
        return f"{self.kind.replace('_', ' ')} {self.value:.3g} (limit {self.limit:.3g}): {self.advice}"


def find_alarms(series: Series, config: AlarmConfig) -> list[Alarm]:
    """Return the alarms of the newest point, broken things first."""
    alarms = [alarm for rule in _RULES for alarm in rule(series, config)]
    return sorted(alarms, key=lambda alarm: alarm.level)


def new_alarms(points: Mapping[str, Sequence[tuple[int, float]]], config: AlarmConfig) -> list[Alarm]:
    """Return the alarms of the newest step that earlier steps did not give at that level.

    ``points``: name of a metric -> (step, value) by step; a step may lack some metrics.
    """
    newest = max((step for values in points.values() for step, _ in values), default=0)
    before = {name: [value for step, value in values if step < newest] for name, values in points.items()}
    known = {(alarm.kind, alarm.level) for alarm in find_alarms(before, config)}
    now = {name: [value for _, value in values] for name, values in points.items()}
    return [alarm for alarm in find_alarms(now, config) if (alarm.kind, alarm.level) not in known]


def _log_prob_gap(series: Series, config: AlarmConfig) -> Iterator[Alarm]:
    for gap in _newest(series, "policy/log_prob_gap"):
        if not gap <= config.broken_log_prob_gap:
            yield Alarm(
                kind="log_prob_gap",
                level="broken",
                value=gap,
                limit=config.broken_log_prob_gap,
                advice="sampler and learner are different policies, so the gradient is wrong; stop, and compare their "
                "weights, precision, sampling settings and template, or set rl.algorithm.correction.type='truncate'",
            )
        elif gap > config.log_prob_gap:
            yield Alarm(
                kind="log_prob_gap",
                level="warning",
                value=gap,
                limit=config.log_prob_gap,
                advice="sampler and learner drift apart; check that both use the same precision and that sampling is "
                "at temperature 1 without top-p, or set rl.algorithm.correction.type='truncate'",
            )


def _reward_spread(series: Series, config: AlarmConfig) -> Iterator[Alarm]:
    for spread in _mean(series, "rollout/reward_spread", config.window):
        if spread < config.reward_spread:
            yield Alarm(
                kind="reward_spread",
                level="warning",
                value=spread,
                limit=config.reward_spread,
                advice="within a group nearly all rewards are equal, so there is little to learn from; choose tasks "
                "that are solved sometimes (rl.curriculum='learnability'), or larger groups",
            )


def _entropy(series: Series, config: AlarmConfig) -> Iterator[Alarm]:
    values = series.get("policy/entropy", ())
    if len(values) < 2 * config.window:
        return
    start = statistics.fmean(values[: config.window])
    now = statistics.fmean(values[-config.window :])
    if not now >= config.entropy_share * start:
        yield Alarm(
            kind="entropy",
            level="warning",
            value=now,
            limit=config.entropy_share * start,
            advice="the policy has stopped trying other actions; lower the learning rate, raise "
            "rl.algorithm.loss.clip_high, or go back to an earlier checkpoint",
        )


def _grad_norm(series: Series, config: AlarmConfig) -> Iterator[Alarm]:
    values = series.get("optim/grad_norm", ())
    skipped = series.get("optim/num_skipped", ())
    if (values and not math.isfinite(values[-1])) or (len(skipped) > 1 and skipped[-1] > skipped[-2]):
        yield Alarm(
            kind="grad_norm",
            level="broken",
            value=values[-1] if values else math.nan,
            limit=math.inf,
            advice="a gradient was not finite and its step was skipped; lower the learning rate, or compute in float32",
        )
    elif len(values) > config.window:
        limit = config.grad_norm_ratio * statistics.median(values[:-1])
        if values[-1] > limit:
            yield Alarm(
                kind="grad_norm",
                level="warning",
                value=values[-1],
                limit=limit,
                advice="this step's gradient is far larger than before; look at its episodes, and lower the learning "
                "rate or rl.algorithm.optimizer.max_grad_norm if it happens again",
            )


def _share_rule(
    kind: str, part: str, whole: str, without: str, bound: Callable[[AlarmConfig], float], advice: str
) -> Callable[[Series, AlarmConfig], Iterator[Alarm]]:
    """An alarm when ``part`` of ``whole`` less ``without`` is more than a bound, summed over the window."""

    def rule(series: Series, config: AlarmConfig) -> Iterator[Alarm]:
        total = _sum(series, whole, config.window) - (_sum(series, without, config.window) if without else 0.0)
        share = _sum(series, part, config.window) / total if total > 0 else 0.0
        if share > bound(config):
            yield Alarm(kind=kind, level="warning", value=share, limit=bound(config), advice=advice)

    return rule


def _weight_lag(series: Series, config: AlarmConfig) -> Iterator[Alarm]:
    for lag in _newest(series, "rollout/weight_lag"):
        if lag > config.weight_lag:
            yield Alarm(
                kind="weight_lag",
                level="broken",
                value=lag,
                limit=float(config.weight_lag),
                advice="episodes came from older weights than allowed; check that the workers load the new checkpoint "
                "before each iteration",
            )


_RULES: tuple[Callable[[Series, AlarmConfig], Iterator[Alarm]], ...] = (
    _log_prob_gap,
    _reward_spread,
    _entropy,
    _grad_norm,
    _share_rule(
        "invalid_share",
        "rollout/num_invalid",
        "rollout/num_trajectories",
        "",
        lambda config: config.invalid_share,
        "sandboxes or grading fail, which leaves holes in the groups; run `repairgym doctor` and read the reasons with "
        "`repairgym view`",
    ),
    _share_rule(
        "exploited_share",
        "rollout/num_exploited",
        "rollout/num_trajectories",
        "rollout/num_invalid",
        lambda config: config.exploited_share,
        "the policy learns to pass without repairing; read the findings in the report before you continue",
    ),
    _share_rule(
        "truncated_share",
        "rollout/num_overlong",
        "rollout/num_trajectories",
        "rollout/num_invalid",
        lambda config: config.truncated_share,
        "most episodes end at a limit and count as failed; raise rollout.pipeline.max_turns or max_len_tokens, or see "
        "whether the policy runs in circles",
    ),
    _share_rule(
        "zero_advantage_share",
        "rollout/num_equal_groups",
        "rollout/num_groups",
        "",
        lambda config: config.zero_advantage_share,
        "most groups are all solved or all failed and teach nothing; choose easier or harder tasks "
        "(rl.curriculum='learnability')",
    ),
    _weight_lag,
)


def _newest(series: Series, name: str) -> Sequence[float]:
    return series.get(name, ())[-1:]


def _mean(series: Series, name: str, window: int) -> Iterator[float]:
    """Of the last ``window`` points, when there are as many."""
    values = series.get(name, ())
    if len(values) >= window:
        yield statistics.fmean(values[-window:])


def _sum(series: Series, name: str, window: int) -> float:
    return math.fsum(series.get(name, ())[-window:])


def check_alarms(store: RunStore, phase: str, config: AlarmConfig, progress: Progress) -> list[Alarm]:
    """Check the metrics of ``phase``; record and return the alarms that its newest step gives for the first time."""
    points = {name: store.metrics(phase, name) for name in METRICS}
    newest = max((values[-1][0] for values in points.values() if values), default=0)
    known = {(event.kind, event.message) for event in store.events()}
    fresh = []
    for alarm in new_alarms(points, config):
        kind, message = f"{ALARM_PREFIX}{alarm.kind}", f"iteration {newest}: {alarm.text}"
        if (kind, message) not in known:
            store.add_event(kind, message, phase=phase)
            progress("alarm", 0, 0, message)
            fresh.append(alarm)
    return fresh

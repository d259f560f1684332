"""Alarms of an RL run: failures before the reward shows them, and their remedies.

Reads series of metrics. Makes `Alarm` records, and events of kind ``alarm_<kind>`` in the store. Guarantees: the last
point of a series is the newest; a missing or short series gives no alarm, a value that is not finite does; a step that
a resumed run repeats gives each of its alarms once.
"""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

from repairgym.config.rollout import AlarmConfig
from repairgym.records import Record
from repairgym.rollout.names import ALARM_PREFIX
from repairgym.rollout.store import RunStore
from repairgym.training.run import Progress

Series = Mapping[str, Sequence[float]]
"""Name of a metric -> its values, oldest first."""
Level = Literal["warning", "broken"]
Breach = tuple[Level, float, float]
"""(level, value, limit) of a broken bound."""
Rule = Callable[[Series, AlarmConfig], Breach | None]
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
_ADVICE: Mapping[tuple[str, Level], str] = {
    ("log_prob_gap", "broken"): "sampler and learner are different policies, so the gradient is wrong; stop, and "
    "compare their weights, precision, sampling settings and template, or set rl.algorithm.correction.type='truncate'",
    ("log_prob_gap", "warning"): "sampler and learner drift apart; check that both use the same precision and that "
    "sampling is at temperature 1 without top-p, or set rl.algorithm.correction.type='truncate'",
    ("reward_spread", "warning"): "within a group nearly all rewards are equal, so there is little to learn from; "
    "choose tasks that are solved sometimes (rl.curriculum='learnability'), or larger groups",
    ("entropy", "warning"): "the policy has stopped trying other actions; lower the learning rate, raise "
    "rl.algorithm.loss.eps_high, or go back to an earlier checkpoint",
    ("grad_norm", "broken"): "a gradient was not finite and its step was skipped; lower the learning rate, or compute "
    "in float32",
    ("grad_norm", "warning"): "this step's gradient is far larger than before; look at its episodes, and lower the "
    "learning rate or rl.algorithm.optimizer.max_grad_norm if it happens again",
    ("invalid_share", "warning"): "sandboxes or grading fail, which leaves holes in the groups; run `repairgym doctor` "
    "and read the reasons with `repairgym view`",
    ("exploited_share", "warning"): "the policy learns to pass without repairing; read the findings in the report "
    "before you continue",
    ("truncated_share", "warning"): "most episodes end at a limit and count as failed; raise "
    "rollout.pipeline.max_turns or max_len_tokens, or see whether the policy runs in circles",
    ("zero_advantage_share", "warning"): "most groups are all solved or all failed and teach nothing; choose easier "
    "or harder tasks (rl.curriculum='learnability')",
    ("weight_lag", "broken"): "episodes came from older weights than allowed; check that the workers load the new "
    "checkpoint before each iteration",
}
"""Meaning and remedy, in plain words."""


class Alarm(Record):
    """Something that is wrong with a run."""

    kind: str
    level: Level
    value: float
    limit: float

    @property
    def advice(self) -> str:
        """Meaning and remedy."""
        return _ADVICE[self.kind, self.level]

    @property
    def text(self) -> str:
        """One line."""
        return f"{self.kind.replace('_', ' ')} {self.value:.3g} (limit {self.limit:.3g}): {self.advice}"


def find_alarms(series: Series, config: AlarmConfig) -> list[Alarm]:
    """Return the alarms of the newest point, broken things first."""
    breaches = {kind: rule(series, config) for kind, rule in _RULES.items()}
    alarms = [
        Alarm(kind=kind, level=breach[0], value=breach[1], limit=breach[2])
        for kind, breach in breaches.items()
        if breach is not None
    ]
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


def _log_prob_gap(series: Series, config: AlarmConfig) -> Breach | None:
    for gap in series.get("policy/log_prob_gap", ())[-1:]:
        if not gap <= config.broken_log_prob_gap:
            return "broken", gap, config.broken_log_prob_gap
        if gap > config.log_prob_gap:
            return "warning", gap, config.log_prob_gap
    return None


def _reward_spread(series: Series, config: AlarmConfig) -> Breach | None:
    values = series.get("rollout/reward_spread", ())[-config.window :]
    if len(values) == config.window and not statistics.fmean(values) >= config.reward_spread:
        return "warning", statistics.fmean(values), config.reward_spread
    return None


def _entropy(series: Series, config: AlarmConfig) -> Breach | None:
    values = series.get("policy/entropy", ())
    if len(values) < 2 * config.window:
        return None
    limit = config.entropy_share * statistics.fmean(values[: config.window])
    now = statistics.fmean(values[-config.window :])
    return None if now >= limit else ("warning", now, limit)


def _grad_norm(series: Series, config: AlarmConfig) -> Breach | None:
    values = series.get("optim/grad_norm", ())
    skipped = series.get("optim/num_skipped", ())
    if (values and not math.isfinite(values[-1])) or (len(skipped) > 1 and skipped[-1] > skipped[-2]):
        return "broken", values[-1] if values else math.nan, math.inf
    if len(values) > config.window:
        limit = config.grad_norm_ratio * statistics.median(values[:-1])
        if values[-1] > limit:
            return "warning", values[-1], limit
    return None


def _weight_lag(series: Series, config: AlarmConfig) -> Breach | None:
    for lag in series.get("rollout/weight_lag", ())[-1:]:
        if not lag <= config.weight_lag:
            return "broken", lag, float(config.weight_lag)
    return None


def _share_rule(kind: str, part: str, whole: str, without: str = "") -> Rule:
    """Return a rule: ``part`` of ``whole`` less ``without``, summed over the window, is at most ``config.<kind>``."""

    def rule(series: Series, config: AlarmConfig) -> Breach | None:
        part_sum, whole_sum, without_sum = (
            math.fsum(series.get(f"rollout/{name}", ())[-config.window :]) for name in (part, whole, without)
        )
        # Only a whole that is not above 0 has no share; one that is not a number has one that is none either.
        share = 0.0 if whole_sum <= without_sum else part_sum / (whole_sum - without_sum)
        limit: float = getattr(config, kind)
        return None if share <= limit else ("warning", share, limit)

    return rule


_SHARES = {
    "invalid_share": ("num_invalid", "num_trajectories"),
    "exploited_share": ("num_exploited", "num_trajectories", "num_invalid"),
    "truncated_share": ("num_overlong", "num_trajectories", "num_invalid"),
    "zero_advantage_share": ("num_equal_groups", "num_groups"),
}
_RULES: Mapping[str, Rule] = {
    "log_prob_gap": _log_prob_gap,
    "reward_spread": _reward_spread,
    "entropy": _entropy,
    "grad_norm": _grad_norm,
    **{kind: _share_rule(kind, *metrics) for kind, metrics in _SHARES.items()},
    "weight_lag": _weight_lag,
}


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

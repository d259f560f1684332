"""Alarms over series: silent on a healthy run, each one on what it is for, once, with advice."""

import math

import pytest

from repairgym.config.rollout import AlarmConfig
from repairgym.training.alarms import METRICS, check_alarms, find_alarms, new_alarms

CONFIG = AlarmConfig()
HEALTHY = {
    "policy/log_prob_gap": [0.001] * 8,
    "policy/entropy": [0.9, 0.85, 0.9, 0.8, 0.7, 0.7, 0.6, 0.6],
    "optim/grad_norm": [0.5, 0.7, 0.4, 0.9, 0.6, 0.5, 0.8, 0.7],
    "optim/num_skipped": [0.0] * 8,
    "rollout/reward_spread": [0.3, 0.35, 0.2, 0.3, 0.3, 0.25, 0.3, 0.3],
    "rollout/num_trajectories": [64.0] * 8,
    "rollout/num_invalid": [0.0, 1.0, 0.0, 2.0, 0.0, 0.0, 1.0, 0.0],
    "rollout/num_exploited": [0.0] * 8,
    "rollout/num_overlong": [20.0] * 8,
    "rollout/num_groups": [8.0] * 8,
    "rollout/num_equal_groups": [3.0, 4.0, 3.0, 5.0, 4.0, 3.0, 4.0, 4.0],
    "rollout/weight_lag": [0.0] * 8,
}


def kinds(**changes: list[float]) -> list[tuple[str, str]]:
    """(kind, level) of the alarms when some series end otherwise; names by their last part."""
    series = dict(HEALTHY)
    for name, tail in changes.items():
        (full,) = [metric for metric in HEALTHY if metric.endswith("/" + name)]
        series[full] = [*HEALTHY[full][: -len(tail)], *tail]
    return [(alarm.kind, alarm.level) for alarm in find_alarms(series, CONFIG)]


def test_healthy_and_empty_runs_have_no_alarm():
    assert set(HEALTHY) == set(METRICS)
    assert kinds() == []
    assert find_alarms({}, CONFIG) == []
    assert find_alarms({name: values[:1] for name, values in HEALTHY.items()}, CONFIG) == []


@pytest.mark.parametrize(
    ("changes", "kind", "level"),
    [
        ({"log_prob_gap": [0.0051]}, "log_prob_gap", "warning"),
        ({"log_prob_gap": [0.0101]}, "log_prob_gap", "broken"),
        ({"log_prob_gap": [math.nan]}, "log_prob_gap", "broken"),
        ({"reward_spread": [0.05, 0.04, 0.05]}, "reward_spread", "warning"),
        ({"entropy": [0.2, 0.15, 0.1]}, "entropy", "warning"),
        ({"entropy": [math.nan]}, "entropy", "warning"),
        ({"grad_norm": [6.5]}, "grad_norm", "warning"),
        ({"grad_norm": [math.inf]}, "grad_norm", "broken"),
        ({"num_skipped": [1.0]}, "grad_norm", "broken"),
        ({"num_invalid": [7.0, 7.0, 7.0]}, "invalid_share", "warning"),
        ({"num_exploited": [4.0, 4.0, 4.0]}, "exploited_share", "warning"),
        ({"num_overlong": [33.0, 33.0, 33.0]}, "truncated_share", "warning"),
        ({"num_equal_groups": [7.0, 7.0, 7.0]}, "zero_advantage_share", "warning"),
        ({"weight_lag": [1.0]}, "weight_lag", "broken"),
        ({"weight_lag": [math.nan]}, "weight_lag", "broken"),
        ({"reward_spread": [math.nan]}, "reward_spread", "warning"),
        ({"num_exploited": [math.nan]}, "exploited_share", "warning"),
        ({"num_overlong": [math.nan]}, "truncated_share", "warning"),
        ({"num_groups": [math.nan]}, "zero_advantage_share", "warning"),
    ],
)
def test_each_alarm(changes, kind, level):
    assert kinds(**changes) == [(kind, level)]


@pytest.mark.parametrize(
    "changes",
    [
        {"log_prob_gap": [0.0049]},
        {"num_invalid": [18.0]},  # a bad iteration among good ones
        {"reward_spread": [0.0]},
        {"grad_norm": [5.0]},
        {"entropy": [0.05]},
    ],
)
def test_no_alarm_below_the_bound_or_for_a_single_point(changes):
    assert kinds(**changes) == []


def test_broken_alarms_come_first_with_advice():
    series = {**HEALTHY, "policy/log_prob_gap": [0.02], "rollout/num_overlong": [60.0] * 8}
    found = find_alarms(series, CONFIG)
    assert [alarm.level for alarm in found] == ["broken", "warning"]
    assert "rl.algorithm.correction" in found[0].advice
    assert found[0].text.startswith("log prob gap 0.02 (limit 0.01): ")


def test_an_alarm_is_reported_once_and_again_at_a_worse_level():
    gaps = [0.001, 0.006, 0.006, 0.02, 0.001, 0.006]
    heard = []
    for now in range(1, len(gaps) + 1):
        points = {"policy/log_prob_gap": list(enumerate(gaps[:now])), "optim/grad_norm": [(k, 1.0) for k in range(now)]}
        heard.append([alarm.level for alarm in new_alarms(points, CONFIG)])
    assert heard == [[], ["warning"], [], ["broken"], [], ["warning"]]


def test_a_step_without_the_metric_repeats_no_alarm():
    points = {"policy/log_prob_gap": [(0, 0.02)], "optim/grad_norm": [(0, 1.0), (1, 1.0)]}
    assert new_alarms(points, CONFIG) == []


def test_alarms_become_events_and_a_repeated_step_gives_them_once(store):
    said = []
    for _ in range(2):
        store.add_metrics("rl", 4, {"policy/log_prob_gap": 0.5})
        found = check_alarms(store, "rl", CONFIG, lambda *line: said.append(line))
    assert found == []
    (event,) = store.events()
    assert (event.kind, event.phase) == ("alarm_log_prob_gap", "rl")
    assert event.message.startswith("iteration 4: log prob gap 0.5 (limit 0.01)")
    assert said == [("alarm", 0, 0, event.message)]

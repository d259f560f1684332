"""Importance of settings and places of arms, against scipy and by hand."""

from __future__ import annotations

import statistics

import numpy as np
import pytest
from scipy import stats

from repairgym.analysis.sweeps import SweepRun, importance_of, part_of, rank_arms, welch_interval
from repairgym.config.sweep import ChoiceConfig, IntConfig, LogUniformConfig, SweepConfig, UniformConfig

CONFIG = SweepConfig.model_validate(
    {
        "command": ("eval", "run", "{run}"),
        "settings": {
            "loss": {"type": "choice", "values": ("a", "b", "c")},
            "rate": {"type": "log_uniform", "low": 1e-5, "high": 1e-2},
        },
        "num_resamples": 200,
    }
)


def make_runs(num: int, seed: int) -> list[SweepRun]:
    generator = np.random.default_rng(seed)
    runs = []
    for number in range(num):
        loss, rate = generator.choice(["a", "b", "c"]), float(10 ** generator.uniform(-5, -2))
        value = {"a": 0.0, "b": 0.0, "c": 2.0}[loss] + float(generator.normal())
        runs.append(SweepRun(number=number, settings={"loss": str(loss), "rate": rate}, value=value))
    return runs


def test_the_setting_with_an_effect_leads_and_its_value_wins():
    runs = make_runs(60, 3)
    first, second = importance_of([*runs, SweepRun(number=99, status="failed")], CONFIG)
    assert (first.setting, first.is_clear, second.is_clear) == ("loss", True, False)
    best = {value.value: value for value in first.values}["c"]
    assert best.ci_low is not None
    assert best.ci_low > 1.0
    assert best.win_share > 0.7
    assert sum(value.win_share for value in first.values) == pytest.approx(1.0)
    assert sum(value.num_runs for value in second.values) == 60
    inside = [run.value for run in runs if run.settings["loss"] == "c"]
    outside = [run.value for run in runs if run.settings["loss"] != "c"]
    assert best.effect == pytest.approx(np.mean(inside) - np.mean(outside))
    reference = stats.ttest_ind(inside, outside, equal_var=False).confidence_interval()
    assert (best.ci_low, best.ci_high) == pytest.approx((reference.low, reference.high))


def test_a_rare_value_is_drawn_as_often_as_a_frequent_one():
    """Nine runs of a, one of b that only the best a beats: b wins unless that one is among ten draws, by hand."""
    values = [*[("a", float(value)) for value in range(1, 10)], ("b", 8.5)]
    runs = [SweepRun(number=number, settings={"x": name}, value=value) for number, (name, value) in enumerate(values)]
    config = SweepConfig(command=("eval", "run", "{run}"), settings={"x": ChoiceConfig(values=("a", "b"))})
    (row,) = importance_of(runs, config.model_copy(update={"num_resamples": 4000}))
    shares = {value.value: value.win_share for value in row.values}
    assert shares["b"] == pytest.approx((17 / 18) ** 10 - (8 / 18) ** 10, abs=0.03)
    assert shares["a"] + shares["b"] == pytest.approx(1.0)


def test_the_seeds_of_a_draw_are_one_value():
    """Twelve draws of no effect, five seeds each that differ far less than the draws do."""
    generator = np.random.default_rng(5)
    runs = []
    for draw in range(12):
        settings = {"loss": str(generator.choice(["a", "b", "c"])), "rate": float(10 ** generator.uniform(-5, -2))}
        center = float(generator.normal())
        runs += [
            SweepRun(number=12 * k + draw, settings=settings, seed=k, value=center + 0.01 * float(generator.normal()))
            for k in range(5)
        ]
    rows = importance_of(runs, CONFIG)
    draws = [runs[5 * draw :][:5] for draw in range(12)]
    means = [draw[0].model_copy(update={"value": statistics.fmean(it.value for it in draw)}) for draw in draws]
    assert rows == importance_of(means, CONFIG)
    assert sum(value.num_runs for value in rows[0].values) == 12
    assert importance_of([run for run in runs if run.number % 12 < 2], CONFIG) == []


def test_lower_can_be_better():
    rows = importance_of(make_runs(60, 3), CONFIG.model_copy(update={"is_higher_better": False}))
    effects = {value.value: value for row in rows if row.setting == "loss" for value in row.values}
    assert effects["c"].effect is not None
    assert effects["c"].effect > 1.0
    assert effects["c"].win_share < 0.1
    assert effects["a"].mean_best < effects["c"].mean_best


def test_numbers_are_compared_in_parts_of_their_range():
    assert part_of(LogUniformConfig(low=1e-4, high=1e-1), 5e-3, 3) == "0.001 to 0.01"
    assert part_of(LogUniformConfig(low=1e-4, high=1e-1), 1e-1, 3) == "0.01 to 0.1"
    assert part_of(UniformConfig(low=0.0, high=0.9), 0.0, 3) == "0 to 0.3"
    assert [part_of(IntConfig(low=1, high=6), value, 3) for value in (1, 2, 3, 6)] == [
        *["1 to 2"] * 2,
        "3 to 4",
        "5 to 6",
    ]
    assert part_of(ChoiceConfig(values=(True, False)), True, 3) == "True"


@pytest.mark.parametrize("seed", range(5))
def test_arms_differ_where_scipy_says_so(seed: int):
    generator = np.random.default_rng(seed)
    values = {str(arm): list(generator.normal(1.4 * arm, 1.0, 3 + arm % 2)) for arm in range(4)}
    p = stats.tukey_hsd(*values.values()).pvalue
    for place in rank_arms({name: dict(enumerate(of_arm)) for name, of_arm in values.items()}):
        arm = int(place.name)
        alike = {str(other) for other in range(4) if other != arm and p[arm, other] > 0.05}
        assert set(place.indistinguishable) == alike
        assert place.rank_low <= place.rank_high


def test_seeds_that_all_arms_share_are_blocks():
    shift = {1: -5.0, 2: 0.0, 3: 5.0}
    noise = {"a": (0.0, 0.1, -0.1), "b": (0.1, -0.1, 0.0), "c": (-0.1, 0.0, 0.1)}
    values = {
        name: {seed: shift[seed] + (name == "a") + it for seed, it in zip(shift, of_arm, strict=True)}
        for name, of_arm in noise.items()
    }
    best, *others = rank_arms(values)
    assert (best.name, best.rank_low, best.rank_high) == ("a", 1, 1)
    assert {place.indistinguishable for place in others} == {("b",), ("c",)}
    assert best.ci_high - best.ci_low > 20.0  # of the mean over seeds, which differ much
    apart = {
        name: {3 * number + seed: value for seed, value in of_arm.items()}
        for number, (name, of_arm) in enumerate(values.items())
    }
    assert all(place.rank_high - place.rank_low == 2 for place in rank_arms(apart))


def test_what_cannot_be_ranked():
    assert rank_arms({"a": {1: 1.0, 2: 2.0}}) == []
    assert rank_arms({"a": {1: 1.0}, "b": {1: 2.0}}) == []
    assert rank_arms({"a": {1: 1.0, 2: 1.0}, "b": {1: 2.0, 2: 2.0}}, is_higher_better=False)[0].name == "a"
    # Equal values say nothing of the spread of others.
    assert welch_interval([1.0, 1.0], [0.0, 0.0]) is None
    assert welch_interval([0.5, 0.5], [0.4, 0.4, 0.3]) is None
    assert welch_interval([0.1 + 0.2, 0.3], [0.4, 0.4, 0.3]) is None
    assert welch_interval([0.5], [0.4, 0.3]) is None
    assert importance_of(make_runs(2, 0), CONFIG) == []


@pytest.mark.parametrize(
    ("num_seeds", "is_shared", "is_distinct"), [(2, False, False), (3, False, True), (3, True, False), (4, True, True)]
)
def test_seeds_without_any_spread_prove_nothing_when_they_are_few(
    num_seeds: int, is_shared: bool, is_distinct: bool
) -> None:
    """Two of four equal: as if one run were a step of the grid away. By hand: q / (n sqrt 2) below 1 with 2 (n - 1)
    degrees of freedom, or q / sqrt(2 n (n - 1)) with n - 1 where the seeds are shared."""
    critical = float(stats.studentized_range.ppf(0.95, 2, (num_seeds - 1) * (1 if is_shared else 2)))
    limit = np.sqrt(2 * num_seeds * (num_seeds - 1)) if is_shared else num_seeds * np.sqrt(2)
    assert (critical < limit) == is_distinct
    values = {
        name: {seed if is_shared else place * 10 + seed: value for seed in range(num_seeds)}
        for place, (name, value) in enumerate({"a": 0.5, "b": 0.25}.items())
    }
    best, other = rank_arms(values)
    assert (best.rank_high == 1, other.rank_low == 2) == (is_distinct, is_distinct)
    assert best.ci_low < 0.5 < best.ci_high


def test_equal_arms_of_few_seeds_are_seldom_told_apart() -> None:
    """Pass@1 on 8 tasks, whose few values often agree by chance."""
    generator = np.random.default_rng(1)
    num_false = 0
    for _ in range(300):
        values = {name: {seed: generator.binomial(8, 0.5) / 8 for seed in range(2)} for name in "ab"}
        num_false += any(place.rank_low == place.rank_high for place in rank_arms(values))
    assert num_false <= 15

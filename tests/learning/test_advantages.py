"""Advantages: hand values, the rules about invalid members that every estimator keeps, and GAE."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from repairgym.config.algorithms import (
    AdvantageConfig,
    DrGrpoAdvantageConfig,
    GaeAdvantageConfig,
    GroupAdvantageConfig,
    ReinforcePpAdvantageConfig,
    RlooAdvantageConfig,
    SelfDistillationAdvantageConfig,
    StateValueAdvantageConfig,
    TreeGrpoAdvantageConfig,
    TreeRlAdvantageConfig,
)
from repairgym.learning.advantages import (
    ESTIMATORS,
    Outcome,
    estimate_advantages,
    group_advantages,
    token_advantages,
)


def test_hand_values() -> None:
    # mean 0.25, deviation sqrt(0.1875)
    got = group_advantages([1.0, 0.0, 0.0, 0.0], delta=0.0)
    assert got.values == pytest.approx((3**0.5, -(3**-0.5), -(3**-0.5), -(3**-0.5)))
    assert not got.is_dropped


def test_invalid_members_are_outside_the_arithmetic() -> None:
    got = group_advantages([1.0, None, 0.0, None], delta=0.0)
    assert got.values == pytest.approx((1.0, 0.0, -1.0, 0.0))


@pytest.mark.parametrize(
    ("rewards", "reason"),
    [
        ([1.0, None, None], "too_few_valid"),
        ([None], "too_few_valid"),
        ([], "too_few_valid"),
        ([0.0, 0.0, None], "equal_rewards"),
        ([1.0, 1.0], "equal_rewards"),
    ],
)
def test_groups_that_teach_nothing(rewards: list[float | None], reason: str) -> None:
    got = group_advantages(rewards)
    assert got.drop_reason == reason
    assert got.is_dropped
    assert got.values == (0.0,) * len(rewards)


@given(st.lists(st.one_of(st.none(), st.floats(-2, 2).map(lambda reward: round(reward, 3))), min_size=1, max_size=12))
def test_advantages_have_mean_zero_and_deviation_one(rewards: list[float | None]) -> None:
    got = group_advantages(rewards, delta=0.0)
    valid = [value for value, reward in zip(got.values, rewards, strict=True) if reward is not None]
    if not got.is_dropped:
        assert np.mean(valid) == pytest.approx(0.0, abs=1e-6)
        assert np.std(valid) == pytest.approx(1.0, abs=1e-6)


# --- every estimator -----------------------------------------------------------------------------------------------

RELATIVE: list[AdvantageConfig] = [
    GroupAdvantageConfig(),
    DrGrpoAdvantageConfig(),
    RlooAdvantageConfig(),
    ReinforcePpAdvantageConfig(baseline="group_mean"),
    ReinforcePpAdvantageConfig(baseline="leave_one_out"),
    StateValueAdvantageConfig(),
    StateValueAdvantageConfig(is_own_counted=True),
    TreeGrpoAdvantageConfig(),
    TreeRlAdvantageConfig(),
]
EVERY: list[AdvantageConfig] = [
    *RELATIVE,
    ReinforcePpAdvantageConfig(),
    GaeAdvantageConfig(),
    SelfDistillationAdvantageConfig(group_weight=0.5),
]


def config_name(config: AdvantageConfig) -> str:
    return "-".join([config.type, getattr(config, "baseline", "")]).rstrip("-")


def outcomes(*groups: list[float | None]) -> list[list[Outcome]]:
    return [[Outcome(reward) for reward in group] for group in groups]


def values(config: AdvantageConfig, *groups: list[float | None]) -> list[tuple[float, ...]]:
    return [results.values for results in estimate_advantages(outcomes(*groups), config)]


def test_every_member_of_the_union_is_registered() -> None:
    members = get_args(get_args(AdvantageConfig)[0])
    assert set(ESTIMATORS) == {member.model_fields["type"].default for member in members}


@pytest.mark.parametrize("config", EVERY, ids=config_name)
def test_invalid_members_get_nothing_and_change_nothing(config: AdvantageConfig) -> None:
    with_invalid = estimate_advantages(outcomes([1.0, None, 0.0, 0.0], [None, None], [0.0, 1.0, None]), config)
    without = estimate_advantages(outcomes([1.0, 0.0, 0.0], [0.0, 1.0]), config)
    assert with_invalid[0].values[1] == 0.0
    assert with_invalid[2].values[2] == 0.0
    assert with_invalid[0].values[:1] + with_invalid[0].values[2:] == pytest.approx(without[0].values, abs=1e-12)
    assert with_invalid[2].values[:2] == pytest.approx(without[1].values, abs=1e-12)
    assert with_invalid[1].drop_reason == "too_few_valid"


@pytest.mark.parametrize("config", RELATIVE, ids=config_name)
def test_a_lone_survivor_and_equal_rewards_teach_nothing(config: AdvantageConfig) -> None:
    lone, equal, mixed = estimate_advantages(outcomes([1.0, None, None], [1.0, 1.0], [1.0, 0.0]), config)
    assert (lone.values, lone.drop_reason) == ((0.0, 0.0, 0.0), "too_few_valid")
    assert (equal.values, equal.drop_reason) == ((0.0, 0.0), "equal_rewards")
    assert mixed.values[0] > 0 > mixed.values[1]


@pytest.mark.parametrize("config", RELATIVE, ids=config_name)
def test_advantages_of_equally_long_groups_sum_to_zero(config: AdvantageConfig) -> None:
    for results in values(config, [1.0, 0.0, 0.5, 0.25], [0.0, 1.0, 1.0]):
        assert sum(results) == pytest.approx(0.0, abs=1e-9)


@pytest.mark.parametrize("config", EVERY, ids=config_name)
def test_no_groups_and_nothing_valid(config: AdvantageConfig) -> None:
    assert estimate_advantages([], config) == []
    assert estimate_advantages(outcomes([None, None]), config)[0].is_dropped


@pytest.mark.parametrize("config", EVERY, ids=config_name)
def test_no_exploit_is_better_than_expected(config: AdvantageConfig) -> None:
    """Among long failures elsewhere, and in a state of successes; what others get does not change."""
    sizes = [[500] * 10, [100] * 5 + [2000] * 5]
    rewards = [[1.0] + [0.0] * 9, [1.0] * 5 + [0.0] * 5]
    groups = [
        [
            Outcome(reward, size, ("start", "right" if number % 2 else "wrong"), num_turns=2)
            for number, (reward, size) in enumerate(zip(*group, strict=True))
        ]
        for group in zip(rewards, sizes, strict=True)
    ]
    caught = [[replace(outcome, is_exploit=at in (5, 9)) for at, outcome in enumerate(group)] for group in groups]
    for honest, got in zip(estimate_advantages(groups, config), estimate_advantages(caught, config), strict=True):
        for at, (before, after) in enumerate(zip(honest.of_members(), got.of_members(), strict=True)):
            assert after == pytest.approx(np.minimum(before, 0.0) if at in (5, 9) else before)


def test_the_baseline_of_an_iteration_would_praise_an_exploit() -> None:
    """One success of ten in 500 tokens each, next to 5 short successes and 5 long failures."""
    groups = [[Outcome(1.0, 500)] + [Outcome(0.0, 500)] * 9, [Outcome(1.0, 100)] * 5 + [Outcome(0.0, 2000)] * 5]
    config = ReinforcePpAdvantageConfig(baseline="group_mean")
    praised = estimate_advantages(groups, config)[0].values[9]
    mean = (250 - 5000) / 15500
    square = (500 * 0.9**2 + 4500 * 0.1**2 + 10500 * 0.5**2) / 15500
    assert praised == pytest.approx((-0.1 - mean) / np.sqrt(square - mean**2), rel=1e-4)
    assert praised == pytest.approx(0.64, abs=0.01)
    groups[0][9] = replace(groups[0][9], is_exploit=True)
    assert estimate_advantages(groups, config)[0].values[8:] == (pytest.approx(praised), 0.0)


# --- one by one ----------------------------------------------------------------------------------------------------


def test_dr_grpo_and_rloo_by_hand() -> None:
    assert values(DrGrpoAdvantageConfig(), [1.0, 0.0, 0.0, 0.0])[0] == pytest.approx((0.75, -0.25, -0.25, -0.25))
    assert values(RlooAdvantageConfig(), [1.0, 0.0, 0.0, 0.5])[0] == pytest.approx(
        (1 - 0.5 / 3, -1.5 / 3, -1.5 / 3, 0.5 - 1 / 3)
    )


def test_reinforce_pp_counts_a_trajectory_as_often_as_it_has_tokens() -> None:
    groups = [[Outcome(1.0, 3), Outcome(0.0, 1)], [Outcome(0.0, 4), Outcome(0.0, 2)]]
    first, second = estimate_advantages(groups, ReinforcePpAdvantageConfig(delta=1e-12))
    mean, deviation = 0.3, np.sqrt(0.3 * 0.7)
    assert first.values == pytest.approx(((1 - mean) / deviation, -mean / deviation))
    # Without a baseline a group of equal rewards teaches against the others.
    assert second.values == pytest.approx((-mean / deviation, -mean / deviation))
    assert not second.is_dropped


def test_reinforce_pp_of_one_reward_everywhere_is_dropped() -> None:
    assert all(
        results.is_dropped for results in estimate_advantages(outcomes([1.0, 1.0], [1.0]), ReinforcePpAdvantageConfig())
    )


def test_reinforce_pp_with_a_baseline_normalizes_over_the_iteration() -> None:
    got = values(ReinforcePpAdvantageConfig(baseline="group_mean", delta=1e-12), [1.0, 0.0], [0.5, 0.0], [1.0, 1.0])
    deviation = np.sqrt((0.5**2 + 0.25**2) / 2)
    assert got[0] == pytest.approx((0.5 / deviation, -0.5 / deviation))
    assert got[1] == pytest.approx((0.25 / deviation, -0.25 / deviation))
    assert got[2] == (0.0, 0.0)


# --- GAE -----------------------------------------------------------------------------------------------------------


def gae(value: list[float], reward: list[float], turn: list[int], **settings: float) -> list[float]:
    config = GaeAdvantageConfig(**settings)
    return token_advantages(np.array(value), np.array(reward), np.array(turn), config).tolist()


def test_gae_by_hand() -> None:
    got = gae([0.5, 0.25, 0.0], [0.0, 0.0, 1.0], [0, 0, 0], token_discount=0.5, token_lambda=0.5)
    # d = (0.125 - 0.5, 0 - 0.25, 1 - 0), trace 0.25
    third = 1.0
    second = -0.25 + 0.25 * third
    assert got == pytest.approx([-0.375 + 0.25 * second, second, third])


def test_without_discount_and_trace_the_advantage_is_return_minus_value() -> None:
    assert gae([0.5, 0.2, 0.9, 0.1], [0.0, 0.0, 0.0, 1.0], [0, 0, 1, 1]) == pytest.approx([0.5, 0.8, 0.1, 0.9])


def test_the_turn_level_holds_between_turns_only() -> None:
    got = gae([0.2, 0.3, 0.4, 0.5], [0.0, 0.0, 0.0, 1.0], [0, 0, 1, 1], turn_discount=0.9, turn_lambda=0.5)
    last = 1.0 - 0.5
    third = 0.5 - 0.4 + last
    second = 0.9 * 0.4 - 0.3 + 0.9 * 0.5 * third
    assert got == pytest.approx([0.3 - 0.2 + second, second, third, last])


@given(
    st.lists(st.tuples(st.floats(-2, 2), st.integers(0, 1)), min_size=1, max_size=12),
    st.floats(0.1, 1),
    st.floats(0, 1),
)
def test_equal_numbers_on_both_levels_are_plain_gae(
    steps: list[tuple[float, int]], discount: float, trace: float
) -> None:
    value = np.array([step[0] for step in steps])
    turn = np.cumsum([step[1] for step in steps])
    reward = np.zeros(len(steps))
    reward[-1] = 1.0
    config = GaeAdvantageConfig(token_discount=discount, token_lambda=trace, turn_discount=discount, turn_lambda=trace)
    got = token_advantages(value, reward, turn, config)
    flat = token_advantages(value, reward, np.zeros(len(steps)), config)
    delta = reward + discount * np.append(value[1:], 0.0) - value
    want = [sum((discount * trace) ** (k - t) * delta[k] for k in range(t, len(steps))) for t in range(len(steps))]
    assert got == pytest.approx(flat)
    assert got == pytest.approx(np.array(want))

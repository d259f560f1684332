"""Group advantages: hand values and the rules about invalid members."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mendwright.learning.advantages import group_advantages


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

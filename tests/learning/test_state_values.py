"""Values of visited states: hand values, sums, the truth of a small decision process, and the rules about members."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from repairgym.config.algorithms import DrGrpoAdvantageConfig, RlooAdvantageConfig, StateValueAdvantageConfig
from repairgym.learning.advantages import Outcome, estimate_advantages
from repairgym.learning.state_values import shared_turns, state_values

REWARDS = [1.0, 1.0, 0.0, 0.0]
STATES = [("start", "right", "right"), ("start", "wrong", "start", "right"), ("start", "wrong"), ("start",)]
"""The second takes a wrong edit back; the first repeats itself once."""
GROUP = [Outcome(reward, states=states) for reward, states in zip(REWARDS, STATES, strict=True)]


def of_turns(group: list[Outcome], **settings: float) -> list[np.ndarray]:
    """Advantages without a trace and with the own reward, unless ``settings`` say otherwise."""
    config = StateValueAdvantageConfig.model_validate({"turn_lambda": 0.0, "is_own_counted": True, **settings})
    (found,) = estimate_advantages([group], config)
    return [np.array(turns) for turns in found.of_turns]


def test_values_by_hand() -> None:
    counted = state_values(STATES, REWARDS, prior_weight=1.0, is_own_counted=True)
    right, wrong = (2 + 0.5) / 3, (1 + 0.5) / 3
    assert counted[0] == pytest.approx([0.5, right, right])
    assert counted[1] == pytest.approx([0.5, wrong, 0.5, right])
    left_out = state_values(STATES, REWARDS, prior_weight=0.5, is_own_counted=False)
    assert left_out[0] == pytest.approx([1 / 3, (1 + 0.5 / 3) / 1.5, (1 + 0.5 / 3) / 1.5])
    assert left_out[2] == pytest.approx([2 / 3, (1 + 0.5 * 2 / 3) / 1.5])
    assert left_out[3] == pytest.approx([2 / 3])


def test_only_turns_that_change_the_value_get_credit() -> None:
    first, second, third, fourth = of_turns(GROUP)
    assert first == pytest.approx([1 / 3, 0.0, 1 / 6])
    assert second == pytest.approx([0.0, 0.0, 1 / 3, 1 / 6]), "the wrong edit is worth no more than its start here"
    assert third == pytest.approx([0.0, -0.5])
    assert fourth == pytest.approx([-0.5])


@given(
    st.lists(st.tuples(st.lists(st.sampled_from("abcd"), max_size=6), st.floats(0, 1)), min_size=2, max_size=6),
    st.floats(0.1, 4),
    st.booleans(),
)
def test_advantages_of_an_episode_sum_to_its_reward_less_the_first_value(
    members: list[tuple[list[str], float]], prior_weight: float, is_own_counted: bool
) -> None:
    config = StateValueAdvantageConfig(turn_lambda=0.0, prior_weight=prior_weight, is_own_counted=is_own_counted)
    group = [Outcome(reward, states=("start", *states)) for states, reward in members]
    (found,) = estimate_advantages([group], config)
    whole = DrGrpoAdvantageConfig() if is_own_counted else RlooAdvantageConfig()
    (relative,) = estimate_advantages([group], whole)
    assert found.is_dropped == relative.is_dropped
    # All members visit the first state, so its value is the baseline of the group.
    assert found.values == pytest.approx(relative.values)
    assert [sum(turns) for turns in found.of_turns] == pytest.approx([] if found.is_dropped else list(relative.values))


def test_the_trace_and_the_mixture_end_at_the_advantages_of_the_group() -> None:
    (whole,) = estimate_advantages([GROUP], DrGrpoAdvantageConfig())
    for member, turns in enumerate(of_turns(GROUP, group_weight=1.0)):
        assert turns == pytest.approx(whole.values[member])
    halves = zip(of_turns(GROUP, group_weight=0.5), of_turns(GROUP), whole.values, strict=True)
    for half, turns, value in halves:
        assert half == pytest.approx(0.5 * turns + 0.5 * value)
    values = state_values(STATES, REWARDS, prior_weight=1.0, is_own_counted=True)
    for member, turns in enumerate(of_turns(GROUP, turn_lambda=1.0)):
        assert turns == pytest.approx(REWARDS[member] - values[member])


def test_invalid_members_and_members_without_turns() -> None:
    invalid, silent = Outcome(None, states=("start", "right")), Outcome(0.0)
    (found,) = estimate_advantages([[*GROUP, invalid, silent]], StateValueAdvantageConfig(is_own_counted=True))
    assert found.of_turns[4] == (0.0, 0.0)
    assert found.of_turns[5] == ()
    assert found.values[4:] == pytest.approx((0.0, -0.4))


def test_turns_in_states_of_several_members_are_shared() -> None:
    assert [shared.tolist() for shared in shared_turns(STATES)] == [
        [True, True, True],
        [True, True, True, True],
        [True, True],
        [True],
    ]
    assert [shared.tolist() for shared in shared_turns([("a", "b", "b"), ("a", "c")])] == [
        [True, False, False],
        [True, False],
    ]


# --- a decision process whose values are known ---------------------------------------------------------------------

RIGHT = 0.6
"""Probability of a step to the right on 0, 1, 2, 3, 4, otherwise to the left; it ends at 0 (reward 0) or 4 (1)."""


def walks(num: int, generator: np.random.Generator) -> tuple[list[tuple[str, ...]], list[float]]:
    states, rewards = [], []
    for _ in range(num):
        place, visited = 2, []
        while 0 < place < 4:
            visited.append(str(place))
            place += 1 if generator.random() < RIGHT else -1
        states.append(tuple(visited))
        rewards.append(float(place == 4))
    return states, rewards


def true_value(place: int) -> float:
    """Chance of the gambler's ruin to end at 4."""
    ratio = (1 - RIGHT) / RIGHT
    return (1 - ratio**place) / (1 - ratio**4)


@pytest.mark.parametrize("is_own_counted", [True, False])
def test_values_and_advantages_are_within_noise_of_the_truth(is_own_counted: bool) -> None:
    states, rewards = walks(1500, np.random.default_rng(0))
    values = state_values(states, rewards, prior_weight=1.0, is_own_counted=is_own_counted)
    found = {
        place: value
        for visited, row in zip(states, values, strict=True)
        for place, value in zip(visited, row, strict=True)
    }
    for place in (1, 2, 3):
        num = sum(str(place) in visited for visited in states)
        error = np.sqrt(true_value(place) * (1 - true_value(place)) / num)
        assert abs(found[str(place)] - true_value(place)) < 4 * error
    group = [Outcome(reward, states=visited) for visited, reward in zip(states, rewards, strict=True)]
    steps: dict[tuple[str, str], list[float]] = {}
    for visited, turns in zip(states, of_turns(group, is_own_counted=is_own_counted), strict=True):
        for at, following in enumerate((*visited[1:], "end")):
            steps.setdefault((visited[at], following), []).append(turns[at])
    for place, following in ((1, 2), (2, 1), (2, 3), (3, 2)):
        got = np.mean(steps[str(place), str(following)])
        assert got == pytest.approx(true_value(following) - true_value(place), abs=0.06)

"""Invalid episodes in a row: held back, counted over calls, and a stop with the reason."""

import pytest

from repairgym.errors import SandboxError
from repairgym.records import VerdictKind
from repairgym.rollout.pool import FailureStreak


@pytest.fixture
def episodes(trajectory_maker):
    return lambda kinds: [
        trajectory_maker(str(k), kind=VerdictKind.INVALID if kind == "i" else VerdictKind.FAILED)
        for k, kind in enumerate(kinds)
    ]


def admit(streak, found):
    return [[one.id for one in streak.admit(trajectory)] for trajectory in found]


def test_invalid_episodes_wait_for_a_valid_one(episodes):
    streak = FailureStreak(3)
    assert admit(streak, episodes("viiviv")) == [["0"], [], [], ["1", "2", "3"], [], ["4", "5"]]
    assert streak.release() == []


def test_too_many_in_a_row_stop_with_the_reason_and_are_not_handed_on(episodes):
    streak = FailureStreak(3)
    assert admit(streak, episodes("vii")) == [["0"], [], []]
    with pytest.raises(SandboxError, match=r"3 episodes in a row are invalid; the last: grading said invalid.*doctor"):
        streak.admit(episodes("i")[0])


def test_the_count_goes_on_over_calls(episodes):
    streak = FailureStreak(3)
    admit(streak, episodes("ii"))
    assert [one.id for one in streak.release()] == ["0", "1"]
    with pytest.raises(SandboxError, match="3 episodes in a row"):
        streak.admit(episodes("i")[0])

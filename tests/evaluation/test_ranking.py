"""Ranks with intervals: policies that differ, policies that do not, and the coverage of the true ranks."""

from __future__ import annotations

import random

import pytest

from repairgym.errors import InputError
from repairgym.evaluation.ranking import Policy, leaderboard, rank
from repairgym.records import VerdictKind

KINDS = (VerdictKind.FAILED, VerdictKind.PASSED)


def draw(generator: random.Random, gains: list[float], num_tasks: int, num_samples: int = 2):
    base = [generator.uniform(0.1, 0.6) for _ in range(num_tasks)]
    return {
        f"policy-{number}": {
            str(task): [KINDS[generator.random() < rate + gain] for _ in range(num_samples)]
            for task, rate in enumerate(base)
        }
        for number, gain in enumerate(gains)
    }


def test_equal_policies_cannot_be_told_apart_and_a_better_one_can():
    places = rank(draw(random.Random(5), [0.0, 0.0, 0.35], 200), num_resamples=200)
    assert places[0].name == "policy-2"
    assert (places[0].rank_low, places[0].rank_high, places[0].indistinguishable) == (1, 1, ())
    assert {place.indistinguishable for place in places[1:]} == {("policy-0",), ("policy-1",)}
    assert [(place.rank_low, place.rank_high) for place in places[1:]] == [(2, 3), (2, 3)]


def test_intervals_of_ranks_hold_the_true_ranks_together():
    gains = [0.0, 0.05, 0.10, 0.10, 0.3]
    true = {"policy-0": (5, 5), "policy-1": (4, 4), "policy-2": (2, 3), "policy-3": (2, 3), "policy-4": (1, 1)}
    generator = random.Random(11)
    num_held = 0
    for _ in range(200):
        places = rank(draw(generator, gains, 60), num_resamples=10)
        num_held += all(
            place.rank_low <= true[place.name][0] and place.rank_high >= true[place.name][1] for place in places
        )
    assert num_held / 200 >= 0.93


def test_policies_that_agree_on_every_task_are_equal_and_two_tasks_prove_nothing():
    solved, unsolved = ({str(task): [kind] for task in range(2)} for kind in reversed(KINDS))
    assert rank({"a": solved, "b": dict(solved)}, num_resamples=10)[0].indistinguishable == ("b",)
    assert rank({"a": solved, "b": unsolved}, num_resamples=10)[0].indistinguishable == ("b",)
    many = [{str(task): [kind] for task in range(30)} for kind in reversed(KINDS)]
    assert rank({"a": many[0], "b": many[1]}, num_resamples=10)[0].indistinguishable == ()


def test_what_cannot_be_ranked():
    with pytest.raises(InputError, match="1 evaluations to rank"):
        rank({"a": {"t": [VerdictKind.PASSED]}})
    with pytest.raises(InputError, match="0 tasks that all of a, b have tried"):
        rank({"a": {"t": [VerdictKind.PASSED]}, "b": {"u": [VerdictKind.PASSED]}})
    verdicts = {str(task): [VerdictKind.PASSED] for task in range(9)}
    policies = {"a": Policy("r", "a", verdicts), "b": Policy("r", "b", {"0": [VerdictKind.PASSED]})}
    with pytest.raises(InputError, match=r"a has tried 9 tasks, and all others too few to rank: b \(1\)"):
        leaderboard("set", policies)

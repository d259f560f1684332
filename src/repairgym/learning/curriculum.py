"""The order of training tasks in an iteration: by learnability, by optimism, with shares of their sources.

Reads past rewards per task; makes an order of task ids. Guarantees: the order follows from the ids, the seed, the
iteration and the rewards alone; every task keeps a chance.
"""

import random
from collections.abc import Mapping, Sequence

import numpy as np
from scipy.special import betainc

_LEAST_WEIGHT = 0.02
_PRIOR = 0.25
"""Pseudo-count of successes, and of failures, of every task. With 1 each, a task solved 8 times of 8 would weigh half
as much as a task solved 4 times; in recorded runs its next group was unequal a third as often."""
_QUANTILE = 0.9
_HALF_LIFE = 10
"""Iterations after which a group counts half, because the policy has changed: what is known of a task fades, so that
optimism comes back to it."""
_NUM_BISECTIONS = 30
PastGroups = Mapping[str, Sequence[tuple[int, Sequence[float]]]]
"""Task id -> (age in iterations, rewards) of its groups."""


def task_order(
    task_ids: Sequence[str], seed: int, iteration: int, rewards: Mapping[str, Sequence[float]] | None = None
) -> list[str]:
    """Return tasks drawn without replacement with weights `learnability`; without ``rewards`` in uniform order."""
    generator = random.Random(f"{seed}:{iteration}")
    if rewards is None:
        order = list(task_ids)
        generator.shuffle(order)
        return order
    # Weighted sampling without replacement (Efraimidis and Spirakis 2006): the largest u ** (1 / weight) comes first.
    keys = {task_id: generator.random() ** (1.0 / learnability(rewards.get(task_id, ()))) for task_id in task_ids}
    return sorted(task_ids, key=lambda task_id: keys[task_id], reverse=True)


def optimistic_order(task_ids: Sequence[str], seed: int, iteration: int, groups: PastGroups) -> list[str]:
    """Return tasks by `optimism`, the largest first, equal ones at random.

    The rule of optimism over a calibrated set (M3-UCRL, arXiv 2107.04050), transferred from models of dynamics to pass
    rates: a task is worth what it may still be, so that unknown tasks and those with few groups are tried.
    """
    order = list(task_ids)
    random.Random(f"{seed}:{iteration}").shuffle(order)
    values = dict(zip(order, optimism([groups.get(task_id, ()) for task_id in order]), strict=True))
    return sorted(order, key=lambda task_id: values[task_id], reverse=True)


def optimism(groups: Sequence[Sequence[tuple[int, Sequence[float]]]]) -> np.ndarray:
    """Return the upper quantile of p (1 - p) of each task ([tasks]), its pass rate p ~ Beta(a + s, b + f).

    s and f are its successes and failures, where a group of ``age`` iterations counts 2 ** -(age / half-life).
    """
    if not groups:
        return np.zeros(0)
    weighted = [[(0.5 ** (age / _HALF_LIFE), rewards) for age, rewards in past] for past in groups]
    passed = _PRIOR + np.array([sum(weight * sum(rewards) for weight, rewards in past) for past in weighted])
    failed = _PRIOR + np.array([sum(w * (len(rewards) - sum(rewards)) for w, rewards in past) for past in weighted])
    # p (1 - p) <= x exactly where p lies outside of two places at equal distances from 1/2.
    low, high = np.zeros(len(groups)), np.full(len(groups), 0.25)
    for _ in range(_NUM_BISECTIONS):
        middle = (low + high) / 2.0
        distance = np.sqrt(0.25 - middle)
        inside = betainc(passed, failed, 0.5 + distance) - betainc(passed, failed, 0.5 - distance)
        is_below = 1.0 - inside < _QUANTILE
        low, high = np.where(is_below, middle, low), np.where(is_below, high, middle)
    return high


def interleave(orders: Mapping[str, Sequence[str]], shares: Mapping[str, float]) -> list[str]:
    """Return one order whose every prefix has the ``shares`` of the orders, to about one task.

    An order that is used up leaves its share to the others.
    """
    merged: list[str] = []
    taken = dict.fromkeys(orders, 0)
    while left := [name for name in orders if taken[name] < len(orders[name])]:
        name = max(left, key=lambda name: shares[name] * (len(merged) + 1) - taken[name])
        merged.append(orders[name][taken[name]])
        taken[name] += 1
    return merged


def learnability(rewards: Sequence[float]) -> float:
    """Weight of a task, rate * (1 - rate) of its smoothed success rate: a group of equal rewards teaches nothing."""
    rate = (sum(rewards) + _PRIOR) / (len(rewards) + 2.0 * _PRIOR)
    return rate * (1.0 - rate) + _LEAST_WEIGHT

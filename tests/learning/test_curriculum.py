"""The order of training tasks: fixed by its inputs, learnable tasks come early, and what optimism costs and saves."""

import numpy as np
import pytest

from repairgym.learning.curriculum import interleave, learnability, optimism, optimistic_order, task_order

IDS = [f"task-{k}" for k in range(40)]
REWARDS = {task_id: [1.0] * 8 if k % 2 else [1.0, 0.0] * 4 for k, task_id in enumerate(IDS)}


def test_an_order_is_a_permutation_fixed_by_its_inputs():
    for rewards in (None, REWARDS):
        order = task_order(IDS, 0, 3, rewards)
        assert sorted(order) == sorted(IDS)
        assert order == task_order(IDS, 0, 3, rewards)
        assert order != task_order(IDS, 0, 4, rewards)
        assert order != task_order(IDS, 1, 3, rewards)


def test_tasks_with_mixed_rewards_come_early_and_none_is_lost():
    firsts = [task_id for step in range(200) for task_id in task_order(IDS, 0, step, REWARDS)[:10]]
    mixed = sum(int(task_id.removeprefix("task-")) % 2 == 0 for task_id in firsts) / len(firsts)
    assert 0.75 < mixed < 0.97
    assert set(firsts) == set(IDS)
    uniform = [task_id for step in range(200) for task_id in task_order(IDS, 0, step)[:10]]
    assert 0.45 < sum(int(i.removeprefix("task-")) % 2 == 0 for i in uniform) / len(uniform) < 0.55


def test_learnability_is_largest_for_even_and_for_unknown_tasks():
    assert learnability([]) == learnability([1.0, 0.0]) > learnability([1.0, 1.0, 0.0]) > learnability([1.0] * 8)
    assert learnability([1.0] * 8) == pytest.approx(learnability([0.0] * 8))
    assert learnability([0.0] * 8) > learnability([0.0] * 80) > 0
    assert learnability([1.0, 0.0, 0.0, 0.0]) == pytest.approx(1.25 / 4.5 * 3.25 / 4.5 + 0.02)


def test_every_prefix_has_the_shares_of_the_orders():
    orders = {"a": [f"a{k}" for k in range(30)], "b": [f"b{k}" for k in range(10)], "c": ["c0"]}
    shares = {"a": 0.6, "b": 0.3, "c": 0.1}
    merged = interleave(orders, shares)
    for length in range(1, 11):
        for name, share in shares.items():
            assert abs(sum(one.startswith(name) for one in merged[:length]) - share * length) <= 1
    assert sorted(merged) == sorted([*orders["a"], *orders["b"], *orders["c"]])
    assert [one for one in merged if one.startswith("b")] == orders["b"]


# --- optimism ------------------------------------------------------------------------------------------------------


def test_optimism_is_the_quantile_of_p_times_one_minus_p():
    """Against draws of the Beta distribution; two groups of an age that halves them count like one."""
    generator = np.random.default_rng(0)
    cases = [((), 0.25, 0.25), ([1.0] * 8, 8.25, 0.25), ([1.0, 0.0, 0.0, 0.0], 1.25, 3.25), ([0.0] * 80, 0.25, 80.25)]
    values = optimism([[(0, rewards)] if rewards else [] for rewards, _, _ in cases])
    for value, (_, passed, failed) in zip(values, cases, strict=True):
        drawn = generator.beta(passed, failed, 200_000)
        assert value == pytest.approx(np.quantile(drawn * (1.0 - drawn), 0.9), abs=2e-3)
    old, new = optimism([[(10, [1.0] * 4), (10, [1.0] * 4)], [(0, [1.0] * 4)]])
    assert old == pytest.approx(new)
    assert optimism([[(1000, [0.0] * 80)]]) == pytest.approx(optimism([[]]))
    assert optimism([]).shape == (0,)


def test_an_optimistic_order_is_a_permutation_with_the_unknown_behind_mixed_tasks():
    groups = {task_id: [(1, rewards)] for task_id, rewards in REWARDS.items()}
    order = optimistic_order([*IDS, "unknown"], 0, 3, groups)
    assert sorted(order) == sorted([*IDS, "unknown"])
    assert (
        order == optimistic_order([*IDS, "unknown"], 0, 3, groups) != optimistic_order([*IDS, "unknown"], 0, 4, groups)
    )
    mixed = [task_id for task_id in IDS if len(set(REWARDS[task_id])) == 2]
    assert set(order[:20]) == set(mixed)
    assert order[20] == "unknown"


def regret(curriculum: str, seed: int, drift: float = 0.0, num_iterations: int = 40, num_chosen: int = 8) -> float:
    """Sum over iterations of p (1 - p) of the best tasks less that of the chosen; most are easy or hopeless.

    ``drift``: deviation of the step that each log-odds makes between iterations, as those of a learning policy do.
    """
    generator = np.random.default_rng(seed)
    ids = [f"t{number}" for number in range(100)]
    rate = generator.beta(0.3, 0.3, len(ids)).clip(1e-6, 1.0 - 1e-6)
    groups: dict[str, list[tuple[int, list[float]]]] = {}
    total = 0.0
    for iteration in range(num_iterations):
        worth = dict(zip(ids, rate * (1.0 - rate), strict=True))
        past = {i: [(iteration - number, rewards) for number, rewards in of_task] for i, of_task in groups.items()}
        if curriculum == "optimistic":
            order = optimistic_order(ids, seed, iteration, past)
        else:
            latest = {task_id: of_task[-1][1] for task_id, of_task in past.items()}
            order = task_order(ids, seed, iteration, latest if curriculum == "learnability" else None)
        for task_id in order[:num_chosen]:
            rewards = (generator.random(8) < rate[ids.index(task_id)]).astype(float).tolist()
            groups.setdefault(task_id, []).append((iteration, rewards))
        total += sum(sorted(worth.values())[-num_chosen:]) - sum(worth[task_id] for task_id in order[:num_chosen])
        rate = 1.0 / (1.0 + np.exp(-(np.log(rate / (1.0 - rate)) + drift * generator.standard_normal(len(ids)))))
    return total


@pytest.mark.parametrize("drift", [0.0, 0.3])
def test_optimism_regrets_less_than_learnability_and_that_less_than_chance(drift: float):
    regrets = {name: [regret(name, seed, drift) for seed in range(8)] for name in NAMES}
    for name, values in regrets.items():
        print(f"drift {drift}: {name} {np.mean(values):.1f} ({min(values):.1f} to {max(values):.1f})")
    mean = {name: np.mean(values) for name, values in regrets.items()}
    assert mean["optimistic"] < 0.8 * mean["learnability"] < 0.8 * mean["uniform"]


NAMES = ("uniform", "learnability", "optimistic")

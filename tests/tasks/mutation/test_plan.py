"""The plan: weights, learnability and the injector's reward by hand."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from math import exp

import pytest

from repairgym.config.tasks import PlanConfig
from repairgym.records import Task
from repairgym.tasks.mutation.plan import Cell, Plan, cells_of, injector_reward, learnability
from repairgym.tasks.solve_rates import SolveRate
from repairgym.testing.scripted import scripted_task

CONFIG = PlanConfig(rate=1.0, shrinkage=1.0, floor=0.1)


@pytest.fixture
def make() -> Callable[..., Task]:
    def make(package: str, operator: str, num_edits: int) -> Task:
        task = scripted_task(f"{package}-{operator}-{num_edits}")
        provenance = task.provenance.model_copy(update={"package": package})
        labels = {"operator": operator, "difficulty": str(num_edits)}
        return task.model_copy(update={"provenance": provenance, "labels": labels})

    return make


@pytest.mark.parametrize(
    ("num_passed", "num", "value"), [(0, 4, 0.0), (4, 4, 0.0), (2, 4, 4 / 3), (1, 2, 2.0), (1, 3, 4 / 3), (1, 1, None)]
)
def test_learnability_by_hand(num_passed: int, num: int, value: float | None) -> None:
    assert learnability(SolveRate(num_passed, num)) == (None if value is None else pytest.approx(value))


@pytest.mark.parametrize("num", [2, 3, 4])
def test_learnability_is_unbiased(num: int) -> None:
    rate, total = 0.3, 0.0
    for outcomes in product((0, 1), repeat=num):
        chance = rate ** sum(outcomes) * (1 - rate) ** (num - sum(outcomes))
        total += chance * (learnability(SolveRate(sum(outcomes), num)) or 0.0)
    assert total == pytest.approx(4 * rate * (1 - rate))


@pytest.mark.parametrize(
    ("rate", "reward"), [(None, -1.0), (0.0, -0.8), (1.0, -0.8), (0.125, 0.775), (0.5, 0.1), (0.875, -0.575)]
)
def test_the_injector_is_paid_for_bugs_that_are_seldom_repaired(rate: float | None, reward: float) -> None:
    assert injector_reward(rate) == pytest.approx(reward)


def test_a_task_counts_in_the_cell_of_each_family(make: Callable[..., Task]) -> None:
    assert cells_of(make("a", "loop+name", 2)) == (Cell("a", "loop", 2), Cell("a", "name", 2))


def test_weights_by_hand(make: Callable[..., Task]) -> None:
    taught = [(make("a", "loop", 1), 1.0), (make("a", "name", 1), 0.0)]
    plan = Plan().reflected(taught, CONFIG)
    # The mean of all is 1/2. Each family has one task, which counts 1 / (1 + 1) of its distance: +-1/4. Package and
    # number of edits are those of all tasks: 0. A cell explains half of what is left: (1 - 3/4) / 2.
    assert plan.generation == 1
    assert plan.effects == pytest.approx({
        "package a": 0.0, "num_edits 1": 0.0, "family loop": 0.25, "family name": -0.25, "a loop 1": 0.125,
        "a name 1": -0.125,
    })  # fmt: skip
    assert plan.weight(Cell("a", "loop", 1), 0.1) == pytest.approx(exp(0.375))
    assert plan.weight(Cell("b", "loop", 3), 0.1) == pytest.approx(exp(0.25))  # never tried: as its parts say
    assert plan.weight(Cell("b", "other", 3), 0.1) == 1.0


def test_generations_add_up_between_floor_and_its_reciprocal(make: Callable[..., Task]) -> None:
    taught = [(make("a", "loop", 1), 1.0), (make("a", "name", 1), 0.0)]
    plan = Plan()
    for _ in range(20):
        plan = plan.reflected(taught, CONFIG)
    assert plan.generation == 20
    assert plan.effects["family loop"] == pytest.approx(5.0)
    assert plan.weight(Cell("a", "loop", 1), 0.1) == 10.0
    assert plan.weight(Cell("a", "name", 1), 0.1) == 0.1
    assert plan.reflected([], CONFIG).effects == plan.effects


def test_several_families_share_a_task(make: Callable[..., Task]) -> None:
    plan = Plan().reflected([(make("a", "loop+name", 1), 1.0), (make("a", "name", 1), 0.0)], CONFIG)
    # loop: half a task of 1; name: half a task of 1 and a whole one of 0.
    assert plan.effects["family loop"] == pytest.approx(0.5 / 1.5 * 0.5)
    assert plan.effects["family name"] == pytest.approx(1.5 / 2.5 * (1 / 3 - 0.5))


def test_quotas_follow_the_packages_and_the_seed() -> None:
    plan = Plan(effects={"package a": 2.0, "package b": -2.0})
    quotas = plan.quotas(["b", "a"], 200, 0, 0.1)
    assert sum(quotas.values()) == 200
    assert quotas == plan.quotas(["a", "b"], 200, 0, 0.1)
    assert quotas["a"] > 5 * quotas["b"] > 0
    assert quotas != plan.quotas(["a", "b"], 200, 1, 0.1)

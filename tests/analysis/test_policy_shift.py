from __future__ import annotations

import random

import numpy as np
import pytest
from scipy.spatial.distance import jensenshannon

from repairgym.analysis.episodes import EpisodeFacts
from repairgym.analysis.policy_shift import jensen_shannon, ngrams, policy_shift
from repairgym.records import StopReason, VerdictKind


def episode(name: str, tools: tuple[str, ...], task: str = "t") -> EpisodeFacts:
    return EpisodeFacts(
        id=name,
        phase="x",
        step=0,
        task_id=task,
        verdict=VerdictKind.FAILED,
        stop_reason=StopReason.SUBMITTED,
        tools=tools,
        num_tokens=1,
        num_action_tokens=1,
        num_edits=0,
        num_test_runs=0,
        num_format_errors=0,
        num_tool_errors=0,
        num_repeats=0,
        is_blind_submit=False,
        findings=(),
        num_tests=0,
        num_tests_passed=0,
    )


def sample(chance: float, seed: int, num: int = 30) -> list[EpisodeFacts]:
    generator = random.Random(seed)
    return [
        episode(f"{seed}-{i}", tuple("edit" if generator.random() < chance else "test" for _ in range(4)), f"t{i % 5}")
        for i in range(num)
    ]


def test_the_divergence_is_scipys():
    generator = np.random.default_rng(0)
    left, right = generator.dirichlet(np.ones(6)), generator.dirichlet(np.ones(6))
    left[2] = 0.0
    left /= left.sum()
    assert jensen_shannon(left, right) == pytest.approx(jensenshannon(left, right, base=2) ** 2)


def test_bounds():
    same = sample(0.5, 1)
    assert policy_shift(same, same, num_permutations=9).divergence == 0.0
    apart = policy_shift([episode("a", ("edit",))], [episode("b", ("test",))], n=1, num_permutations=9)
    assert apart.divergence == pytest.approx(1.0)
    assert apart.changes[0].before - apart.changes[0].after in (1.0, -1.0)
    assert policy_shift([], same) is None
    assert policy_shift([episode("a", ())], same, n=1) is None


def test_a_true_shift_is_found_and_a_chance_one_is_not():
    found = policy_shift(sample(0.2, 1), sample(0.8, 2), num_permutations=199)
    assert found.is_within_tasks
    assert found.p_value == pytest.approx(1 / 200)
    # under no difference p is uniform: about one in ten lies below 0.1
    small = sum(policy_shift(sample(0.5, s), sample(0.5, -s), num_permutations=49).p_value <= 0.1 for s in range(1, 41))
    assert small <= 10


def test_other_tasks_are_not_other_behavior():
    # every task has its own habit, and both policies share it
    before = [episode(f"a{i}", ("edit",) * 4 if i % 2 else ("test",) * 4, f"t{i}") for i in range(12)]
    after = [episode(f"b{i}", ("edit",) * 4 if i % 2 else ("test",) * 4, f"t{i}") for i in range(12)]
    assert policy_shift(before, after, num_permutations=99).p_value == 1.0


def test_ngrams_have_start_and_end():
    assert ngrams(("a", "b"), 2) == [("(start)", "a"), ("a", "b"), ("b", "(end)")]
    assert ngrams(("a",), 1) == [("a",)]
    with pytest.raises(ValueError, match="at least 1"):
        ngrams(("a",), 0)

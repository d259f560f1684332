"""Weights and normalizers: each denominator by hand, forks, and the token budget."""

from __future__ import annotations

import numpy as np
import pytest

from repairgym.config.algorithms import Denominator
from repairgym.learning.denominators import cut_to_budget, weigh
from repairgym.learning.samples import Sample


def new_sample(num_learned: int, group_id: str, turns: list[int] | None = None, trajectory_id: str = "") -> Sample:
    """One context token, then learned ones."""
    count = num_learned + 1
    weight = np.ones(count, np.float32)
    weight[0] = 0.0
    turn = None if turns is None else np.array([-1, *turns], np.int32)
    ids = np.arange(count, dtype=np.int32)
    return Sample(ids, weight, np.zeros(count, np.float32), group_id=group_id, trajectory_id=trajectory_id, turn=turn)


BATCH = [new_sample(4, "a", [0, 0, 0, 1]), new_sample(1, "a", [0]), new_sample(2, "b", [0, 1])]


@pytest.mark.parametrize(
    ("denominator", "weights", "normalizer"),
    [
        ("token", [[1, 1, 1, 1], [1], [1, 1]], 7),
        ("group", [[0.2] * 4, [0.2], [0.5, 0.5]], 2),
        ("trajectory", [[0.25] * 4, [1.0], [0.5, 0.5]], 3),
        ("turn", [[1 / 6, 1 / 6, 1 / 6, 1 / 2], [1.0], [0.5, 0.5]], 3),
        ("constant", [[1, 1, 1, 1], [1], [1, 1]], 300),
        ("mode", [[0.5, 0.5, 0.5, 0.5], [1.0], [0.5, 0.5]], 3),
    ],
)
def test_denominators_by_hand(denominator: Denominator, weights: list[list[float]], normalizer: float) -> None:
    weighed, got = weigh(BATCH, denominator, 100)
    assert got == normalizer
    for sample, want in zip(weighed, weights, strict=True):
        assert sample.weight.tolist() == pytest.approx([0.0, *want])


@pytest.mark.parametrize("denominator", ["token", "group", "trajectory", "turn"])
def test_all_but_the_constant_are_means(denominator: Denominator) -> None:
    weighed, normalizer = weigh(BATCH, denominator)
    assert sum(float(sample.weight.sum()) for sample in weighed) == pytest.approx(normalizer)


def test_the_constant_needs_a_budget() -> None:
    with pytest.raises(ValueError, match="max_action_tokens"):
        weigh(BATCH, "constant")


@pytest.mark.parametrize("num_thought", [1, 9, 99])
def test_the_choice_to_think_weighs_the_same_whatever_the_length_of_the_thought(num_thought: int) -> None:
    batch = [new_sample(1 + num_thought, "a", [0] * (1 + num_thought)), new_sample(2, "a", [0, 0])]
    (long, short), normalizer = weigh(batch, "mode", mode_weight=0.25)
    assert normalizer == 2
    assert (long.weight[1], short.weight[1]) == (0.25, 0.25)
    assert float(long.weight[2:].sum()) == pytest.approx(1.0)
    assert short.weight[2] == 1.0
    # In a mean over the tokens of a trajectory the choice would fade with the thought.
    (faded, _), _ = weigh(batch, "trajectory")
    assert faded.weight[1] == pytest.approx(1 / (1 + num_thought))


def test_a_turn_whose_first_token_is_not_learned_has_no_choice_of_a_mode() -> None:
    sample = new_sample(4, "a", [0, 0, 1, 1])
    sample.weight[1] = 0.0
    (weighed,), _ = weigh([sample], "mode", mode_weight=0.1)
    assert weighed.weight.tolist() == pytest.approx([0, 0, 0.5, 0.1, 0.5])


@pytest.mark.parametrize("denominator", ["token", "group", "trajectory", "turn", "constant", "mode"])
def test_a_forked_trajectory_weighs_as_one_that_did_not_fork(denominator: Denominator) -> None:
    forked = [new_sample(3, "a", [0, 0, 0], "t"), new_sample(1, "a", [1], "t"), *BATCH[1:]]
    whole, normalizer = weigh(BATCH, denominator, 100)
    branches, forked_normalizer = weigh(forked, denominator, 100)
    assert forked_normalizer == normalizer
    got = np.concatenate([branches[0].weight[1:], branches[1].weight[1:]])
    assert got == pytest.approx(whole[0].weight[1:])
    assert branches[2].weight == pytest.approx(whole[1].weight)


def test_unlearned_tokens_count_nowhere() -> None:
    silent = Sample(np.arange(3, dtype=np.int32), np.zeros(3, np.float32), np.zeros(3, np.float32), 1.0, "c")
    for denominator in ("token", "group", "trajectory", "turn", "constant", "mode"):
        assert weigh([*BATCH, silent], denominator, 100)[1] == weigh(BATCH, denominator, 100)[1]


def test_the_budget_cuts_the_sample_that_crosses_it_and_leaves_out_the_rest() -> None:
    cut = cut_to_budget(BATCH, 5)
    assert [sample.num_learned for sample in cut] == [4, 1]
    assert [sample.num_learned for sample in cut_to_budget(BATCH, 3)] == [3]
    assert cut_to_budget(BATCH, 3)[0].weight.tolist() == [0, 1, 1, 1, 0]
    assert [sample.num_learned for sample in cut_to_budget(BATCH, 100)] == [4, 1, 2]

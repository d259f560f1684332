"""From ledgers to samples: what is learned, and what is shared."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from repairgym.learning.denominators import weigh
from repairgym.learning.samples import (
    Sample,
    policy_sample,
    split_histories,
    supervised_sample,
    text_sample,
    without_thoughts,
)
from repairgym.ledger import LedgerBuilder
from repairgym.records import StopReason, Trajectory, Turn, Verdict, VerdictKind


def new_sample(ids: list[int], learned: list[int], group_id: str = "g") -> Sample:
    weight = np.zeros(len(ids), np.float32)
    weight[learned] = 1.0
    return Sample(np.array(ids, np.int32), weight, np.zeros(len(ids), np.float32), 1.0, group_id)


def test_only_sampled_tokens_are_learned(trajectory: Trajectory) -> None:
    sample = policy_sample(trajectory, 0.7)
    assert sample.token_id.tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 9]
    assert sample.weight.tolist() == [0, 0, 0, 1, 1, 0, 0, 1, 1]
    assert sample.old_log_prob.tolist() == pytest.approx([0, 0, 0, -0.5, -1.0, 0, 0, -0.25, 0])
    assert (sample.advantage, sample.group_id, sample.num_learned) == (0.7, "g", 4)


def test_format_errors_stay_in_the_context_but_are_not_learned(trajectory: Trajectory) -> None:
    masked = supervised_sample(trajectory, is_format_error_masked=True)
    assert masked.weight.tolist() == [0, 0, 0, 0, 0, 0, 0, 1, 1]
    assert len(masked) == 9
    assert supervised_sample(trajectory).weight.sum() == 4


@pytest.mark.parametrize("kind", ["format", "tool"])
def test_errors_are_no_part_of_a_success_but_of_a_failure(trajectory: Trajectory, kind: str) -> None:
    turns = tuple(turn.model_copy(update={"error": turn.error and kind}) for turn in trajectory.turns)
    trajectory = replace(trajectory, turns=turns)
    assert policy_sample(trajectory, 0.5, is_error_masked=True).weight.tolist() == [0, 0, 0, 0, 0, 0, 0, 1, 1]
    assert policy_sample(trajectory, -0.5, is_error_masked=True).weight.tolist() == [0, 0, 0, 1, 1, 0, 0, 1, 1]
    assert policy_sample(trajectory, 0.5).weight.tolist() == [0, 0, 0, 1, 1, 0, 0, 1, 1]


@pytest.mark.parametrize(("field", "value"), [("log_prob", np.nan), ("log_prob", 0.5), ("policy_version", -1)])
def test_a_learned_token_without_sampling_log_prob_is_rejected(
    trajectory: Trajectory, field: str, value: float
) -> None:
    array = getattr(trajectory.ledger, field).copy()
    array[4] = value
    broken = replace(trajectory, ledger=replace(trajectory.ledger, **{field: array}))
    with pytest.raises(ValueError, match="token 4"):
        policy_sample(broken, 1.0)
    assert policy_sample(broken, 1.0, is_error_masked=True).num_learned == 2
    assert supervised_sample(broken).num_learned == 4


def test_turns_may_have_advantages_of_their_own(trajectory: Trajectory) -> None:
    sample = policy_sample(trajectory, np.array([0.5, -0.25]), is_error_masked=True)
    assert np.asarray(sample.advantage).tolist() == [0, 0, 0, 0.5, 0.5, 0, 0, -0.25, -0.25]
    assert sample.weight.tolist() == [0, 0, 0, 0, 0, 0, 0, 1, 1], "the error is better than expected, so it is masked"
    assert policy_sample(trajectory, np.array([-0.5, 0.25]), is_error_masked=True).num_learned == 4


def test_a_policy_sample_knows_its_turns_and_its_trajectory(trajectory: Trajectory) -> None:
    sample = policy_sample(trajectory, 0.7, reward=0.5)
    assert sample.turn is not None
    assert sample.turn.tolist() == [-1, -1, -1, 0, 0, -1, -1, 1, 1]
    assert (sample.trajectory_id, sample.reward) == ("t", 0.5)


def test_advantages_count_where_tokens_are_learned() -> None:
    sample = new_sample([1, 2, 3], [2])
    assert sample.has_advantage
    assert not replace(sample, advantage=0.0).has_advantage
    assert not replace(sample, advantage=np.array([1.0, 1.0, 0.0], np.float32)).has_advantage
    with pytest.raises(ValueError, match="equally long"):
        replace(sample, advantage=np.ones(2, np.float32))


def test_text_learns_everything_but_the_first_token() -> None:
    assert text_sample([5, 6, 7]).weight.tolist() == [0, 1, 1]


@pytest.mark.parametrize(
    ("ids", "left"),
    [
        ([8, 7, 8, 9, 2, 3, 8, 9, 4], [2, 3, 4]),  # opened twice, closed once
        ([1, 9, 2, 8, 3, 9, 4], [1, 2, 4]),  # closed before it was opened
        ([1, 8, 2, 9, 3, 8, 4], [1, 3]),  # never closed
    ],
)
def test_the_first_end_closes_a_thought(ids: list[int], left: list[int]) -> None:
    assert without_thoughts(new_sample([0, *ids], []), 8, 9).token_id.tolist() == [0, *left]


def test_unusable_samples_are_rejected() -> None:
    with pytest.raises(ValueError, match="first token"):
        new_sample([1, 2], [0])
    with pytest.raises(ValueError, match="not empty"):
        text_sample([])


@pytest.fixture
def forked() -> Trajectory:
    """Two turns, a history that copies the first of them, a third turn, and a restart that copies nothing."""
    builder = LedgerBuilder()
    opening = builder.append_context([1, 2])
    first = builder.append_action([3, 4], [-0.3, -0.4], 1)
    builder.append_context([5, 6])
    second = builder.append_action([7], [-0.7], 1)
    builder.fork()
    builder.copy(opening)
    builder.copy(first)
    builder.append_context([9])
    third = builder.append_action([10, 11], [-1.0, -1.1], 1)
    builder.fork()
    builder.append_context([1])
    fourth = builder.append_action([12], [-1.2], 1)
    spans = (first, second, third, fourth)
    turns = tuple(Turn(action="a", tool="edit", observation="", action_span=span) for span in spans)
    verdict = Verdict(kind=VerdictKind.PASSED, reason="", grader_version="1")
    return Trajectory("t", "task", "g", "p", "m", "s", turns, builder.build(), StopReason.SUBMITTED, {}, "", verdict, 0)


def samples_of(trajectory: Trajectory) -> list[Sample]:
    return [policy_sample(part, 0.5) for part in split_histories(trajectory)]


def test_each_sampled_token_is_learned_once_in_the_history_it_was_sampled_in(forked: Trajectory) -> None:
    samples = samples_of(forked)
    assert [sample.token_id.tolist() for sample in samples] == [
        [1, 2, 3, 4, 5, 6, 7],
        [1, 2, 3, 4, 9, 10, 11],
        [1, 12],
    ]
    assert [np.flatnonzero(sample.weight).tolist() for sample in samples] == [[2, 3, 6], [5, 6], [1]]
    assert [sample.turn.tolist() for sample in samples if sample.turn is not None] == [
        [-1, -1, 0, 0, -1, -1, 1],
        [-1, -1, -1, -1, -1, 2, 2],
        [-1, 3],
    ]
    assert samples[1].old_log_prob.tolist() == pytest.approx([0, 0, 0, 0, 0, -1.0, -1.1])
    assert {(sample.trajectory_id, sample.group_id, sample.advantage) for sample in samples} == {("t", "g", 0.5)}


def test_a_forked_trajectory_weighs_as_much_as_any_other(forked: Trajectory) -> None:
    other = replace(samples_of(forked)[2], trajectory_id="other")
    weighed, normalizer = weigh([*samples_of(forked), other], "trajectory")
    assert normalizer == 2
    assert sum(float(sample.weight.sum()) for sample in weighed[:3]) == pytest.approx(1.0)
    assert float(weighed[3].weight.sum()) == pytest.approx(1.0)


def test_format_errors_are_masked_in_the_part_where_they_happened(forked: Trajectory) -> None:
    turns = (*forked.turns[:2], forked.turns[2].model_copy(update={"error": "format"}), forked.turns[3])
    parts = split_histories(replace(forked, turns=turns))
    assert [supervised_sample(part).num_learned for part in parts] == [3, 2, 1]
    assert [supervised_sample(part, is_format_error_masked=True).num_learned for part in parts] == [3, 0, 1]


def test_a_part_without_sampling_log_probs_is_rejected(forked: Trajectory) -> None:
    versions = forked.ledger.policy_version.copy()
    versions[8] = -1
    broken = replace(forked, ledger=replace(forked.ledger, policy_version=versions))
    with pytest.raises(ValueError, match="trajectory t: token 5 has no sampling log-probability"):
        samples_of(broken)

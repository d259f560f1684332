"""Forked histories as samples: each sampled token once, with the weight and the log-probability it was sampled with."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from repairgym.learning.data.histories import split_histories
from repairgym.learning.data.samples import Sample, policy_sample, supervised_sample
from repairgym.learning.denominators import weigh
from repairgym.ledger import LedgerBuilder
from repairgym.records import StopReason, Trajectory, Turn, Verdict, VerdictKind


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
    weighed, normaliser = weigh([*samples_of(forked), other], "trajectory")
    assert normaliser == 2
    assert sum(float(sample.weight.sum()) for sample in weighed[:3]) == pytest.approx(1.0)
    assert float(weighed[3].weight.sum()) == pytest.approx(1.0)


def test_format_errors_are_masked_in_the_part_where_they_happened(forked: Trajectory) -> None:
    turns = (*forked.turns[:2], forked.turns[2].model_copy(update={"error": "format"}), forked.turns[3])
    parts = split_histories(replace(forked, turns=turns))
    assert [supervised_sample(part).num_learned for part in parts] == [3, 2, 1]
    assert [supervised_sample(part, is_format_error_masked=True).num_learned for part in parts] == [3, 0, 1]


def test_a_part_without_sampling_log_probs_is_refused(forked: Trajectory) -> None:
    versions = forked.ledger.policy_version.copy()
    versions[8] = -1
    broken = replace(forked, ledger=replace(forked.ledger, policy_version=versions))
    with pytest.raises(ValueError, match="trajectory t: token 5 has no sampling log-probability"):
        samples_of(broken)

"""From trajectories to samples: what counts, what is learned, what is counted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from repairgym.config.algorithms import (
    DecayingDemonstrationConfig,
    GatedDemonstrationConfig,
    ReinforcePpAdvantageConfig,
    StateValueAdvantageConfig,
)
from repairgym.config.learning import AlgorithmConfig
from repairgym.errors import ConfigError, TaskError
from repairgym.records import StopReason, Trajectory, VerdictKind
from repairgym.rollout.store import RunStore
from repairgym.training.credit import credit_metrics
from repairgym.training.rollout_batch import (
    Demonstrations,
    Group,
    RolloutBatch,
    advantages_of,
    demonstration_coefficient,
    make_trajectory_groups,
    most_spread,
    overlong_metrics,
    rollout_metrics,
    samples_of,
)

Maker = Callable[..., Trajectory]
PASSED, FAILED, INVALID = VerdictKind.PASSED, VerdictKind.FAILED, VerdictKind.INVALID


@pytest.fixture
def make_group(trajectory_maker: Maker) -> Callable[..., list[Trajectory]]:
    def make(
        group_id: str, kinds: list[VerdictKind], stops: list[StopReason] | None = None, task_id: str = "task"
    ) -> list[Trajectory]:
        stops = stops or [StopReason.SUBMITTED] * len(kinds)
        return [
            replace(
                trajectory_maker(f"{group_id}/{k}", kind=kind), group_id=group_id, task_id=task_id, stop_reason=stop
            )
            for k, (kind, stop) in enumerate(zip(kinds, stops, strict=True))
        ]

    return make


def learned_ids(groups: list[Group], config: AlgorithmConfig) -> list[str]:
    return [sample.trajectory_id for sample in samples_of(groups, advantages_of(groups, config), config)]


def test_invalid_members_are_never_learned(make_group: Callable[..., list[Trajectory]]) -> None:
    groups = make_trajectory_groups(make_group("a", [PASSED, INVALID, FAILED]))
    assert groups[0].rewards == (1.0, None, 0.0)
    assert learned_ids(groups, AlgorithmConfig()) == ["a/0", "a/2"]


def test_a_group_of_several_tasks_is_rejected(make_group: Callable[..., list[Trajectory]]) -> None:
    with pytest.raises(TaskError, match="mixes tasks"):
        make_trajectory_groups(make_group("a", [PASSED]) + make_group("a", [PASSED], task_id="other"))


def test_negative_advantages_are_weighted(make_group: Callable[..., list[Trajectory]]) -> None:
    groups = make_trajectory_groups(make_group("a", [PASSED, FAILED]))
    config = AlgorithmConfig(negative_weight=0.3)
    samples = samples_of(groups, advantages_of(groups, config), config)
    assert [sample.advantage for sample in samples] == pytest.approx([1.0, -0.3], abs=1e-4)
    assert [sample.reward for sample in samples] == [1.0, 0.0]


def test_each_treatment_of_over_long_episodes(make_group: Callable[..., list[Trajectory]]) -> None:
    """Rewards 1, 0, 0 of which the last ran into its turn limit."""
    stops = [StopReason.SUBMITTED, StopReason.SUBMITTED, StopReason.TURN_LIMIT]
    members = make_group("a", [PASSED, FAILED, FAILED], stops)
    groups = make_trajectory_groups(members)
    found = {}
    for choice in ("penalize", "baseline_only", "drop"):
        config = AlgorithmConfig(overlong=choice)
        found[choice] = (learned_ids(groups, config), advantages_of(groups, config)[0].values)
        metrics = overlong_metrics(members, config)
        assert metrics["rollout/num_turn_limit"] == 1.0
        assert metrics["rollout/num_time_limit"] == metrics["rollout/num_token_limit"] == 0.0
        assert metrics["rollout/num_overlong_left_out"] == (0.0 if choice == "penalize" else 1.0)
    assert found["penalize"][0] == ["a/0", "a/1", "a/2"]
    assert found["baseline_only"][0] == found["drop"][0] == ["a/0", "a/1"]
    # The baseline still knows of it, or it has never been.
    assert found["baseline_only"][1] == pytest.approx((2**0.5, -(0.5**0.5), -(0.5**0.5)), abs=1e-4)
    assert found["drop"][1] == pytest.approx((1.0, -1.0, 0.0), abs=1e-4)


def test_means_and_rates_of_a_batch(trajectory_maker: Maker) -> None:
    """Four valid episodes and an invalid one; of three submissions one ran no test behind its edit."""
    edit, test, submit = ("edit", "@1 a => b", "@1 b", ""), ("test", "", "passed 2", ""), ("submit", "", "", "")
    members = [
        trajectory_maker("a", steps=[edit, test, submit], kind=PASSED),
        trajectory_maker("b", steps=[edit, submit], kind=FAILED),
        trajectory_maker("c", steps=[test, edit, test, submit], kind=FAILED),
        trajectory_maker("d", steps=[edit], kind=FAILED, stop_reason=StopReason.TURN_LIMIT),
        trajectory_maker("e", steps=[edit] * 9, kind=INVALID),
    ]
    verdicts = [member.verdict.model_copy(update={"is_restored": member.id == "a"}) for member in members]
    batch = RolloutBatch(
        trajectories=[replace(it, verdict=verdict) for it, verdict in zip(members, verdicts, strict=True)]
    )
    metrics = rollout_metrics(batch)
    assert metrics["rollout/num_turns_mean"] == (3 + 2 + 4 + 1) / 4
    assert metrics["rollout/restored_rate"] == 1 / 4
    assert metrics["rollout/submit_rate"] == 3 / 4
    assert metrics["rollout/blind_submit_rate"] == pytest.approx(1 / 3)


def test_what_is_only_a_baseline_has_no_say_in_means_over_learned_tokens(
    make_group: Callable[..., list[Trajectory]],
) -> None:
    """Equally long episodes of rewards 1, 0 and an over-long 0: the learned mean is 1/2, not 1/3."""
    stops = [StopReason.SUBMITTED, StopReason.SUBMITTED, StopReason.TURN_LIMIT]
    groups = make_trajectory_groups(make_group("a", [PASSED, FAILED, FAILED], stops))
    config = AlgorithmConfig(overlong="baseline_only", advantage=ReinforcePpAdvantageConfig())
    assert [sample.advantage for sample in samples_of(groups, advantages_of(groups, config), config)] == pytest.approx(
        [1.0, -1.0], abs=1e-4
    )
    everything = config.model_copy(update={"overlong": "penalize"})
    assert advantages_of(groups, everything)[0].values == pytest.approx((2**0.5, -(0.5**0.5), -(0.5**0.5)), abs=1e-4)


def test_an_exploit_is_marked_for_estimators_and_for_the_learner(make_group: Callable[..., list[Trajectory]]) -> None:
    """One that passed a state of successes and then exploited: its good turn is not praised."""
    passed, exploited = make_group("a", [PASSED, VerdictKind.EXPLOITED])
    members = [
        replace(
            member,
            turns=tuple(
                turn.model_copy(update={"state": state})
                for turn, state in zip(member.turns, ("start", second, f"end {member.id}"), strict=True)
            ),
        )
        for second, member in zip(
            ("right", "right", "right", "wrong"),
            (passed, replace(passed, id="a/2"), exploited, make_group("b", [FAILED])[0]),
            strict=True,
        )
    ]
    groups = make_trajectory_groups([replace(member, group_id="a") for member in members])
    config = AlgorithmConfig(advantage=STATE_VALUE)
    samples = samples_of(groups, advantages_of(groups, config), config)
    assert [sample.is_exploit for sample in samples] == [False, False, True, False]
    turns = advantages_of(groups, config)[0].of_turns
    assert turns[0][0] > 0 == turns[2][0]  # the same turn from the same state
    assert np.asarray(samples[2].advantage).max() <= 0
    assert np.asarray(samples[2].advantage).min() < 0


def test_the_groups_of_most_spread_are_kept_in_their_order(make_group: Callable[..., list[Trajectory]]) -> None:
    kinds = {"a": [PASSED] + [FAILED] * 3, "b": [PASSED, FAILED] * 2, "c": [PASSED] * 4, "d": [FAILED, PASSED] * 2}
    groups = make_trajectory_groups([member for key in kinds for member in make_group(key, kinds[key])])
    advantages = advantages_of(groups, AlgorithmConfig())
    assert [group.id for group in most_spread(groups, advantages, 0.67)[0]] == ["b", "d"]
    assert [group.id for group in most_spread(groups, advantages, 0.01)[0]] == ["b"]
    assert most_spread(groups, advantages, 0.67)[1] == [advantages[1], advantages[3]]


# --- credit by state --------------------------------------------------------------------------------------------------


@pytest.fixture
def visited(make_group: Callable[..., list[Trajectory]]) -> list[Group]:
    """One group of three turns each (edit, test, submit): only the first edit is right; the last episode is invalid."""
    members = make_group("a", [PASSED, FAILED, FAILED, INVALID])
    states = [("start", "right", "right, tested"), ("start", "wrong", "wrong, tested"), ("start",) * 3, ("",) * 3]
    return make_trajectory_groups(
        [
            replace(
                member,
                turns=tuple(
                    turn.model_copy(update={"state": state}) for turn, state in zip(member.turns, known, strict=True)
                ),
            )
            for member, known in zip(members, states, strict=True)
        ]
    )


STATE_VALUE = StateValueAdvantageConfig(turn_lambda=0.0, is_own_counted=True)


def test_credit_by_state_goes_to_the_turn_that_changes_the_value(visited: list[Group]) -> None:
    config = AlgorithmConfig(advantage=STATE_VALUE, negative_weight=0.5)
    samples = samples_of(visited, advantages_of(visited, config), config)
    right, wrong = (1 + 1 / 3) / 2, (1 / 3) / 2
    expected = [
        [right - 1 / 3, 0.0, 1 - right],
        [0.5 * (wrong - 1 / 3), 0.0, 0.5 * -wrong],
        [0.0, 0.0, 0.5 * -1 / 3],
    ]
    for sample, turns in zip(samples, expected, strict=True):
        advantage = np.asarray(sample.advantage)
        assert advantage.dtype == np.float32
        assert not advantage[sample.weight == 0].any()
        for number, value in enumerate(turns):
            assert advantage[sample.turn == number] == pytest.approx(value)


def test_metrics_say_where_credit_goes(visited: list[Group]) -> None:
    advantages = advantages_of(visited, AlgorithmConfig(advantage=STATE_VALUE))
    sizes = np.zeros(3)
    for member, turns in zip(visited[0].members, advantages[0].of_turns, strict=True):
        lengths = [end - start for start, end in (turn.action_span for turn in member.turns)]
        sizes += np.abs(turns) * lengths
    metrics = credit_metrics(visited, advantages)
    assert metrics["credit/edit_mass"] == pytest.approx(sizes[0] / sizes.sum())
    assert metrics["credit/error_mass"] == 0.0
    assert metrics["credit/shared_turns"] == pytest.approx(5 / 9)
    assert metrics["credit/flipped_turns"] == 0.0
    by_group = credit_metrics(visited, advantages_of(visited, AlgorithmConfig()))
    assert by_group.keys() == {"credit/edit_mass", "credit/error_mass"}
    # Tokens of a trajectory share its advantage, and all trajectories have equal actions.
    assert by_group["credit/edit_mass"] == pytest.approx(lengths[0] / sum(lengths))
    dropped = make_trajectory_groups(visited[0].members[1:3])
    assert credit_metrics(dropped, advantages_of(dropped, AlgorithmConfig(advantage=STATE_VALUE))) == {}


def test_episodes_without_states_have_no_credit_by_state(make_group: Callable[..., list[Trajectory]]) -> None:
    groups = make_trajectory_groups(make_group("a", [PASSED, FAILED]))
    with pytest.raises(ConfigError, match="2 of 2 episodes have none \\('a/0' first\\)"):
        advantages_of(groups, AlgorithmConfig(advantage=STATE_VALUE))
    assert not advantages_of(groups, AlgorithmConfig())[0].is_dropped


# --- demonstrations ------------------------------------------------------------------------------------------------


def test_the_gate_asks_for_demonstrations_where_successes_are_few(
    store: RunStore, make_group: Callable[..., list[Trajectory]]
) -> None:
    with store.phase("teacher"):
        for task_id in ("hard", "easy"):
            for shown in make_group(f"teacher/{task_id}", [PASSED, FAILED], task_id=task_id):
                store.add_trajectory(shown, phase="teacher", step=0, split="train")
    hard, easy = make_group("a", [PASSED, FAILED], task_id="hard"), make_group("b", [PASSED, PASSED], task_id="easy")
    unknown = make_group("c", [FAILED, FAILED], task_id="unknown")
    groups = make_trajectory_groups([*hard, *easy, *unknown])
    gate = Demonstrations(store, GatedDemonstrationConfig(coefficient=0.2, min_successes=2))
    samples, coefficient = gate.choose(groups, 0)
    assert [sample.group_id for sample in samples] == ["hard"]
    assert coefficient == 0.2
    decay = Demonstrations(store, DecayingDemonstrationConfig(coefficient=0.2, num_iterations=4))
    assert [sample.group_id for sample in decay.choose(groups, 2)[0]] == ["hard", "easy"]
    assert decay.choose(groups, 4) == ([], 0.0)


def test_missing_demonstrations_are_an_error(store: RunStore, make_group: Callable[..., list[Trajectory]]) -> None:
    groups = make_trajectory_groups(make_group("a", [FAILED, FAILED]))
    with pytest.raises(ConfigError, match="collect them first"):
        Demonstrations(store, GatedDemonstrationConfig()).choose(groups, 0)


def test_the_decay_is_linear() -> None:
    config = DecayingDemonstrationConfig(coefficient=1.0, final_coefficient=0.5, num_iterations=10)
    assert [demonstration_coefficient(config, k) for k in (0, 5, 10, 50)] == pytest.approx([1.0, 0.75, 0.5, 0.5])

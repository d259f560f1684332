"""Trees of a group: leaves below a turn, hand values of the estimators, sums, known values, and the gradient."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import PreTrainedModel

from repairgym.config.algorithms import (
    DapoLossConfig,
    DrGrpoAdvantageConfig,
    GroupAdvantageConfig,
    NoKlConfig,
    StateValueAdvantageConfig,
    TreeGrpoAdvantageConfig,
    TreeRlAdvantageConfig,
)
from repairgym.config.learning import ComputeConfig, OptimizerConfig
from repairgym.learning.advantages import GroupAdvantages, Outcome, estimate_advantages, group_advantages
from repairgym.learning.learner import Learner
from repairgym.learning.losses import policy_loss
from repairgym.learning.packing.batching import pack
from repairgym.learning.packing.forward import Scorer, score
from repairgym.learning.samples import Sample, policy_sample
from repairgym.learning.trees import leaves_below, means_below, roots
from repairgym.ledger import LedgerBuilder, Parent
from repairgym.records import StopReason, Trajectory, Turn, Verdict, VerdictKind
from repairgym.rollout.jobs import num_shared_turns

# 0: a chain of three turns; 1 branches after its first, 2 after the second turn of 1; 3: another chain
PARENTS, SHARED, TURNS = [-1, 0, 1, -1], [0, 1, 2, 0], [3, 3, 4, 2]
REWARDS = [1.0, 0.0, 1.0, 0.0]
NUM_LEAVES = 900
"""Of each kind, where values are compared with the truth; the cost of a tree grows with their square."""
GROUP = [
    Outcome(reward, num_turns=num, parent=parent, num_shared_turns=shared)
    for reward, num, parent, shared in zip(REWARDS, TURNS, PARENTS, SHARED, strict=True)
]


def only(group: list[Outcome], config: object) -> GroupAdvantages:
    (found,) = estimate_advantages([group], config)  # type: ignore[arg-type]
    return found


def test_leaves_below_a_turn() -> None:
    below = [[set(np.flatnonzero(turn).tolist()) for turn in member] for member in leaves_below(PARENTS, SHARED, TURNS)]
    assert below[0] == [{0, 1, 2}, {0}, {0}]
    assert below[1] == [{0, 1, 2}, {1, 2}, {1}]
    assert below[2] == [{0, 1, 2}, {1, 2}, {2}, {2}]
    assert below[3] == [{3}, {3}]
    assert roots(PARENTS) == [0, 0, 0, 3]
    assert means_below(np.array([[True, True]]), [2.0, None], 1.0) == pytest.approx([2.0])


def test_tree_rl_by_hand() -> None:
    first, second, third, fourth = only(GROUP, TreeRlAdvantageConfig(leaf_power=0.0)).of_turns
    top, middle = 2 / 3, 1 / 2
    assert first == pytest.approx([2 * (top - 0.5), (1 - top) + 0.5, (1 - top) + 0.5])
    assert second == pytest.approx([0.0, (middle - top) + (middle - 0.5), (0 - middle) + (0 - 0.5)])
    assert third == pytest.approx([0.0, 0.0, 1.0, 1.0])
    assert fourth == pytest.approx([-1.0, -1.0])
    weighted = only(GROUP, TreeRlAdvantageConfig()).of_turns
    assert weighted[0][0] == pytest.approx(3**0.5 * first[0])
    assert weighted[1][1] == pytest.approx(2**0.5 * second[1])


def test_tree_grpo_by_hand() -> None:
    found = only(GROUP, TreeGrpoAdvantageConfig(delta=1e-12))
    inside = [0.5**0.5, -(2**0.5), 0.5**0.5]  # of 1, 0, 1
    leaves = [1 + inside[0], -1 + inside[1], 1 + inside[2], -1.0]
    assert found.values == pytest.approx(leaves)
    assert found.of_turns[0] == pytest.approx([sum(leaves[:3]) / 3, leaves[0], leaves[0]])
    assert found.of_turns[1] == pytest.approx([0.0, (leaves[1] + leaves[2]) / 2, leaves[1]])
    assert found.of_turns[2] == pytest.approx([0.0, 0.0, leaves[2], leaves[2]])
    sums = only(GROUP, TreeGrpoAdvantageConfig(delta=1e-12, leaf_power=1.0)).of_turns
    assert sums[0][0] == pytest.approx(sum(leaves[:3]))


@st.composite
def trees(draw: st.DrawFn) -> list[Outcome]:
    """Groups whose later members may branch from earlier ones."""
    group: list[Outcome] = []
    for number in range(draw(st.integers(2, 7))):
        parent = draw(st.integers(-1, number - 1))
        shared = 0
        if parent >= 0:
            low, high = group[parent].num_shared_turns + 1, group[parent].num_turns - 1
            if low > high:
                parent = -1
            else:
                shared = draw(st.integers(low, high))
        num_turns = shared + draw(st.integers(1, 4))
        reward = draw(st.sampled_from([0.0, 1.0, 0.5, None]))
        states = tuple(draw(st.lists(st.sampled_from("abcd"), min_size=num_turns, max_size=num_turns)))
        if parent >= 0:
            states = group[parent].states[:shared] + states[shared:]
        group.append(Outcome(reward, states=states, num_turns=num_turns, parent=parent, num_shared_turns=shared))
    return group


@given(trees())
def test_gains_of_a_path_sum_to_its_reward_less_the_root(group: list[Outcome]) -> None:
    found = only(group, TreeRlAdvantageConfig(global_weight=0.0, leaf_power=0.0))
    valid = [outcome.reward for outcome in group if outcome.reward is not None]
    if found.is_dropped:
        return
    below = leaves_below(
        [outcome.parent for outcome in group],
        [outcome.num_shared_turns for outcome in group],
        [outcome.num_turns for outcome in group],
    )
    known = np.array([outcome.reward is not None for outcome in group])
    for member, outcome in enumerate(group):
        if outcome.reward is None:
            continue
        total, owner, end, last = 0.0, member, outcome.num_turns, None
        path = []
        while owner >= 0:
            path = [(owner, at) for at in range(group[owner].num_shared_turns, end)] + path
            end, owner = group[owner].num_shared_turns, group[owner].parent
        if any(group[owner].reward is None for owner, _ in path):
            continue  # turns of an invalid member have no advantage
        for owner, at in path:
            leaves = tuple(np.flatnonzero(below[owner][at]).tolist())
            if leaves != last:
                total += found.of_turns[owner][at]
            last = leaves
        assert total == pytest.approx(outcome.reward - sum(valid) / len(valid))
        assert known[member]


@given(trees())
def test_values_of_states_sum_over_the_own_turns_of_a_branch(group: list[Outcome]) -> None:
    found = only(group, StateValueAdvantageConfig(turn_lambda=0.0))
    if found.is_dropped:
        return
    for outcome, turns, total in zip(group, found.of_turns, found.values, strict=True):
        assert not any(turns[: outcome.num_shared_turns])
        if outcome.reward is not None:
            assert sum(turns) == pytest.approx(total)


@given(st.lists(st.sampled_from([0.0, 1.0, None]), min_size=1, max_size=8))
def test_without_branches_they_are_grpo_and_dr_grpo(rewards: list[float | None]) -> None:
    group = [Outcome(reward, num_turns=2) for reward in rewards]
    whole, centered = only(group, GroupAdvantageConfig()), only(group, DrGrpoAdvantageConfig())
    for found, wanted in (
        (only(group, TreeGrpoAdvantageConfig()), whole.values),
        (only(group, TreeRlAdvantageConfig(global_weight=0.0)), centered.values),
        (only(group, TreeRlAdvantageConfig()), [2 * value for value in centered.values]),
    ):
        assert found.drop_reason == whole.drop_reason
        for turns, value in zip(found.of_turns, wanted, strict=False):
            assert turns == pytest.approx((value, value))


def test_a_branch_counts_only_where_it_acted_itself() -> None:
    """Two branches that succeed do not raise the value of the states before them, which would hide why they exist."""
    chain = Outcome(0.0, states=("start", "right", "late"), num_turns=3)
    other = Outcome(0.0, states=("start", "wrong"), num_turns=2)
    branches = [Outcome(1.0, states=("start", "right", "end"), num_turns=3, parent=0, num_shared_turns=1)] * 2
    found = only([chain, other, *branches], StateValueAdvantageConfig(turn_lambda=0.0, is_own_counted=True))
    start = (0.0 + 0.0 + 0.5) / 3
    right = (0.0 + 1.0 + 1.0 + 0.5) / 4
    assert found.of_turns[0][0] == pytest.approx(right - start)


def test_one_leaf_of_a_tree_has_no_advantage_within_it() -> None:
    group = [Outcome(1.0, num_turns=1), Outcome(0.0, num_turns=1)]
    assert only(group, TreeGrpoAdvantageConfig()).values == group_advantages([1.0, 0.0]).values


RIGHT = 0.6
"""Probability of a step to the right on 0, 1, 2, 3, 4, otherwise to the left; it ends at 0 (reward 0) or 4 (1)."""


def true_value(place: int) -> float:
    ratio = (1 - RIGHT) / RIGHT
    return (1 - ratio**place) / (1 - ratio**4)


def walk(place: int, generator: np.random.Generator) -> list[int]:
    places = [place]
    while 0 < places[-1] < 4:
        places.append(places[-1] + (1 if generator.random() < RIGHT else -1))
    return places


def test_values_below_a_turn_are_within_noise_of_the_truth() -> None:
    """A chain from 2, and branches behind its first step: V below that step is the value of the place it leads to."""
    generator = np.random.default_rng(0)
    chain = walk(2, generator)
    while len(chain) < 4:
        chain = walk(2, generator)
    branches = [chain[:2] + walk(chain[1], generator)[1:] for _ in range(NUM_LEAVES)]
    others = [walk(2, generator) for _ in range(NUM_LEAVES)]
    group = [Outcome(float(chain[-1] == 4), num_turns=len(chain) - 1)]
    group += [
        Outcome(float(places[-1] == 4), num_turns=len(places) - 1, parent=0, num_shared_turns=1) for places in branches
    ]
    group += [Outcome(float(places[-1] == 4), num_turns=len(places) - 1) for places in others]
    found = only(group, TreeRlAdvantageConfig(global_weight=0.0, leaf_power=0.0))
    rewards = [outcome.reward for outcome in group]
    baseline = float(np.mean(rewards))  # type: ignore[arg-type]
    noise = 4 * (0.25 / (NUM_LEAVES + 1)) ** 0.5
    assert found.of_turns[0][0] + baseline == pytest.approx(true_value(chain[1]), abs=noise)
    state_group = [
        Outcome(
            o.reward,
            states=tuple(map(str, p[:-1])),
            num_turns=o.num_turns,
            parent=o.parent,
            num_shared_turns=o.num_shared_turns,
        )
        for o, p in zip(group, [chain, *branches, *others], strict=True)
    ]
    turns = only(state_group, StateValueAdvantageConfig(turn_lambda=0.0)).of_turns[0]
    assert turns[0] == pytest.approx(true_value(chain[1]) - true_value(2), abs=2 * noise)


# --- the gradient --------------------------------------------------------------------------------------------------


def make_members(generator: np.random.Generator) -> list[Trajectory]:
    """The group of `PARENTS` as trajectories: turns of 3 sampled tokens behind a prompt of 20 and observations of 4."""
    members: list[Trajectory] = []
    for number, (parent, shared, num_turns) in enumerate(zip(PARENTS, SHARED, TURNS, strict=True)):
        ledger, spans = LedgerBuilder(), []
        prompt = generator.integers(0, 120, 20).tolist() if not members else members[0].ledger.token_id[:20].tolist()
        ledger.append_context(prompt)
        for turn in range(num_turns):
            if turn < shared:
                first, last = members[parent].turns[turn].action_span
                ids = members[parent].ledger.token_id
                action, observation = ids[first:last].tolist(), ids[last : last + 4].tolist()
            else:
                action, observation = (generator.integers(0, 120, size).tolist() for size in (3, 4))
            spans.append(ledger.append_action(action, [-1.0] * 3, 0))
            ledger.append_context(observation)
        turns = tuple(Turn(action="a", tool=None, observation="o", action_span=span) for span in spans)
        members.append(
            Trajectory(
                id=f"g#{number}",
                task_id="t",
                group_id="g",
                pipeline="compact",
                policy_id="p",
                sandbox_backend="",
                turns=turns,
                ledger=ledger.build(),
                stop_reason=StopReason.SUBMITTED,
                final_files={},
                final_patch="",
                verdict=Verdict(kind=VerdictKind.PASSED, reason="", grader_version="1"),
                seed=0,
                parent=Parent(trajectory_id=f"g#{parent}", num_turns=shared) if parent >= 0 else None,
            )
        )
    return members


def gradient(model: PreTrainedModel, samples: list[Sample], *, is_sharing: bool) -> torch.Tensor:
    """The gradient of the DAPO loss at the policy that sampled, divided by 10 instead of the number of tokens."""
    model.zero_grad()
    scorer, compute = Scorer(model), ComputeConfig()
    loss = policy_loss(DapoLossConfig(), NoKlConfig())
    measured = Learner(model, OptimizerConfig(), compute).measure(samples)
    samples = [replace(s, old_log_prob=scores.log_prob) for s, scores in zip(samples, measured, strict=True)]
    for batch in pack(samples, 4096, is_sharing=is_sharing):
        loss(score(scorer, batch, compute), 10.0).loss.backward()
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


@pytest.mark.parametrize("type_", ["tree_grpo", "tree_rl", "state_value"])
def test_a_tree_learns_each_token_once_and_its_gradient_is_the_sum_over_its_leaves(make_model, type_) -> None:
    members = make_members(np.random.default_rng(0))
    config = {
        "tree_grpo": TreeGrpoAdvantageConfig(),
        "tree_rl": TreeRlAdvantageConfig(),
        "state_value": StateValueAdvantageConfig(),
    }[type_]
    states = tuple("abcd")
    group = [replace(outcome, states=states[: outcome.num_turns]) for outcome in GROUP]
    of_turns = only(group, config).of_members()
    samples = []
    for member, advantage in zip(members, of_turns, strict=True):
        num_context = member.turns[num_shared_turns(member)].action_span[0]
        samples.append(policy_sample(replace(member, ledger=member.ledger.as_context(num_context)), advantage))
    sampled = {(member.ledger.token_id[: turn.action_span[1]].tobytes()) for member in members for turn in member.turns}
    assert sum(sample.num_learned for sample in samples) == 3 * len(sampled)
    packed = gradient(make_model(0), samples, is_sharing=True)
    apart = sum(gradient(make_model(0), [sample], is_sharing=False) for sample in samples)
    assert float((packed - apart).norm() / apart.norm()) < 1e-5


def test_with_power_one_the_tree_is_the_sum_of_whole_leaves(make_model) -> None:
    """Each token once, with the sum of the leaves' advantages, is each leaf learned alone with all of its turns."""
    members = make_members(np.random.default_rng(1))
    found = only(GROUP, TreeGrpoAdvantageConfig(leaf_power=1.0))
    tree = []
    for member, advantage in zip(members, found.of_members(), strict=True):
        num_context = member.turns[num_shared_turns(member)].action_span[0]
        tree.append(policy_sample(replace(member, ledger=member.ledger.as_context(num_context)), advantage))
    together = gradient(make_model(0), tree, is_sharing=True)
    leaves = sum(
        gradient(make_model(0), [policy_sample(member, value)], is_sharing=False)
        for member, value in zip(members, found.values, strict=True)
    )
    assert float((together - leaves).norm() / leaves.norm()) < 1e-5

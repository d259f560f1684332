"""Prefix sampling: which groups are steered, where their branches begin, who is compared with whom; a known problem."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tests.training.test_trees import FAILED, INVALID, PASSED, Maker, member

from repairgym.config.algorithms import GroupAdvantageConfig, StateValueAdvantageConfig
from repairgym.config.exploration import PrefixSamplingConfig
from repairgym.config.learning import AlgorithmConfig
from repairgym.config.loading import load_config
from repairgym.config.models import EngineConfig
from repairgym.config.recipes import RlCommandConfig, RlConfig
from repairgym.errors import ConfigError
from repairgym.ledger import Parent
from repairgym.records import Trajectory
from repairgym.rollout.jobs import make_groups, num_shared_turns
from repairgym.training.group_sampling import GroupSampler
from repairgym.training.prefix_sampling import steering_prefix
from repairgym.training.rollout_batch import advantages_of, make_trajectory_groups
from repairgym.training.trees import plan_groups

CONFIG = PrefixSamplingConfig()


def steer(members: list[Trajectory], earlier: list[Trajectory] | None = None) -> tuple[str, int] | None:
    prefix = steering_prefix(members, earlier or [], CONFIG, np.random.default_rng(0))
    return (prefix.trajectory.id, prefix.num_turns) if prefix else None


def test_failing_groups_get_a_head_start_and_passing_ones_a_handicap(trajectory_maker: Maker) -> None:
    failing = [member(trajectory_maker, f"f{n}", f"s{n}{n}{n}{n}", FAILED) for n in range(3)]
    success = member(trajectory_maker, "p", "sabcdefg", PASSED)
    # p = 1/4: the straight line 1/4 + 3/4 t/8 meets 1/2 nearest at t = 3
    assert steer([*failing, success]) == ("p", 3)
    passing = [member(trajectory_maker, f"p{n}", f"s{n}{n}{n}{n}", PASSED) for n in range(3)]
    failure = member(trajectory_maker, "f", "sabcdefg", FAILED)
    assert steer([*passing, failure]) == ("f", 3)


def test_mixed_groups_and_those_without_a_donor_are_left_alone(trajectory_maker: Maker) -> None:
    mixed = [member(trajectory_maker, f"m{n}", "sxyz", kind) for n, kind in enumerate((PASSED, FAILED))]
    assert steer(mixed) is None
    failing = [member(trajectory_maker, f"f{n}", "sxyz", FAILED) for n in range(4)]
    assert steer(failing) is None
    assert steer([member(trajectory_maker, "i", "sxyz", INVALID)]) is None
    lone = member(trajectory_maker, "l", "s", PASSED)
    assert steer(failing, [lone]) is None
    earlier = member(trajectory_maker, "e", "sabc", PASSED)
    assert steer(failing, [earlier]) == ("e", 2)


def test_counts_of_earlier_branches_move_the_place(trajectory_maker: Maker) -> None:
    failing = [member(trajectory_maker, f"f{n}", f"s{n}{n}{n}{n}", FAILED) for n in range(3)]
    success = member(trajectory_maker, "p", "sabcdefg", PASSED)
    parent = Parent(trajectory_id="p", num_turns=3)
    branches = [member(trajectory_maker, f"b{n}", "sabch", FAILED, parent=parent) for n in range(4)]
    assert steer([*failing, success], branches) == ("p", 4)  # from c all failed: begin later


def test_members_are_compared_with_those_that_began_where_they_did(trajectory_maker: Maker) -> None:
    parent = Parent(trajectory_id="p", num_turns=3)
    chains = [member(trajectory_maker, f"c{n}", "sabc", FAILED) for n in range(3)]
    kinds = (PASSED, FAILED, PASSED, FAILED)
    branches = [member(trajectory_maker, f"b{n}", "sabcd", kind, parent=parent) for n, kind in enumerate(kinds)]
    groups = make_trajectory_groups([*chains, *branches])
    algorithm = AlgorithmConfig(advantage=GroupAdvantageConfig(delta=1e-12))
    (split,) = advantages_of(groups, algorithm, is_split=True)
    assert not split.is_dropped
    assert split.values == pytest.approx([0, 0, 0, 1, -1, 1, -1])
    (whole,) = advantages_of(groups, algorithm)
    assert whole.values[0] < 0
    states = AlgorithmConfig(advantage=StateValueAdvantageConfig())
    assert advantages_of(groups, states, is_split=True) == advantages_of(groups, states)
    (dropped,) = advantages_of(make_trajectory_groups(chains), algorithm, is_split=True)
    assert dropped.drop_reason == "equal_rewards"


def test_group_size_counts_leaves_and_all_branches_begin_in_one_place(trajectory_maker: Maker) -> None:
    success = replace(member(trajectory_maker, "old", "sabc", PASSED), task_id="t")
    jobs, trees = plan_groups(CONFIG, "rl", 1, ["t"], 10, 7, lambda task_id: [success])
    assert trees is not None
    following = []
    for job in jobs:
        ended = member(trajectory_maker, job.trajectory_id, "sxyz", FAILED)
        following += trees.grow(replace(ended, group_id=job.group_id, task_id="t"))
    assert len(jobs) == 4
    assert len(following) == 6
    assert {(job.prefix.trajectory.id, job.prefix.num_turns) for job in following if job.prefix} == {("old", 2)}
    assert [job.is_kept for job in trees.jobs()] == [True] * 4 + [False] * 6


def test_too_few_branches_are_an_error() -> None:
    with pytest.raises(ConfigError, match="expected at least 2"):
        load_config(RlCommandConfig, None, ["rl.algorithm.group_size=5", "rl.tree.type=pass_rate"])


def test_a_walk_that_passes_in_one_of_64_chains_passes_in_half_of_the_branches(trajectory_maker: Maker) -> None:
    """The value of the state behind t right turns is 2^(t - 6): counted values find the turn with 1/2, the fifth."""
    generator = np.random.default_rng(3)
    earlier = [member(trajectory_maker, "first", "012345", PASSED)]
    places, passed = [], []
    for iteration in range(30):
        chains = [member(trajectory_maker, f"{iteration}c{n}", "0xxx", FAILED) for n in range(4)]
        prefix = steering_prefix(chains, earlier, CONFIG, generator)
        assert prefix is not None
        places.append(prefix.num_turns)
        branches = []
        for number in range(4):
            walk = "012345"[: prefix.num_turns + 1]
            while len(walk) < 6 and "x" not in walk:
                walk += "012345"[len(walk)] if generator.random() < 0.5 else "x"
            is_passed = "x" not in walk and generator.random() < 0.5
            passed.append(is_passed)
            parent = Parent(trajectory_id=prefix.trajectory.id, num_turns=prefix.num_turns)
            kind = PASSED if is_passed else FAILED
            branches.append(member(trajectory_maker, f"{iteration}b{number}", walk, kind, parent=parent))
        earlier = [*branches, *earlier]
    assert places[0] == 3
    assert set(places[-10:]) == {5}
    assert 0.35 < float(np.mean(passed[-80:])) < 0.65


def test_earlier_successes_steer_the_groups_of_a_run(open_run, make_pool, tmp_path) -> None:
    """A stored success of the policy itself becomes the beginning of branches; its tokens stay context there."""
    engine = EngineConfig(num_slots=16, max_len_tokens=200, is_batch_invariant=True)
    run = replace(open_run(tmp_path), pool=make_pool(tmp_path, engine=engine, max_in_flight=16))
    policy = run.policy("base")
    played = run.pool.run(policy, make_groups("rl", 0, ["train-0"], 8, 5), run.tasks)
    donor = max(played, key=lambda trajectory: len(trajectory.turns))
    assert len(donor.turns) > 1
    donor = replace(donor, verdict=donor.verdict.model_copy(update={"kind": PASSED}))
    run.store.add_trajectory(donor, phase="rl", step=0, split="train")
    config = RlConfig(
        algorithm=AlgorithmConfig(group_size=6),
        tree=PrefixSamplingConfig(num_chains=2),
        num_groups=1,
        num_groups_sampled=1,
        max_refills=0,
    )
    batch = GroupSampler(run, config, "rl", lambda: run.policy("base", version=1), [donor.task_id]).sample(1)
    branches = [trajectory for trajectory in batch.trajectories if trajectory.parent]
    assert len(batch.trajectories) == 6
    assert [branch.parent.trajectory_id for branch in branches if branch.parent] == [donor.id] * 4
    for branch in branches:
        start = branch.turns[num_shared_turns(branch)].action_span[0]
        assert not branch.ledger.is_action[:start].any()
        assert (branch.ledger.policy_version[:start] == -1).all()
        assert np.array_equal(branch.ledger.token_id[:start], donor.ledger.token_id[:start])

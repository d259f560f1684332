"""The search over turns: UCT by hand, no node twice beyond its children, leaves that are learned, a known problem."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tests.training.test_trees import FAILED, INVALID, PASSED, Maker, member

from repairgym.config.exploration import SearchTreeConfig
from repairgym.config.learning import AlgorithmConfig
from repairgym.config.loading import load_config
from repairgym.config.recipes import RlCommandConfig
from repairgym.errors import ConfigError
from repairgym.ledger import Parent
from repairgym.records import OVERLONG, Trajectory
from repairgym.training.rollout_batch import advantages_of, make_trajectory_groups, samples_of
from repairgym.training.tree_search import grow_tree, learned_leaves, next_place, uct
from repairgym.training.trees import plan_groups

CONFIG = SearchTreeConfig()


def place(members: list[Trajectory], share: float = 0.0, config: SearchTreeConfig = CONFIG) -> tuple[str, int] | None:
    prefix = next_place(members, config, share, np.random.default_rng(0))
    return (prefix.trajectory.id, prefix.num_turns) if prefix else None


def branch(make: Maker, id_: str, states: str, kind: object, parent: str, num: int) -> Trajectory:
    return member(make, id_, states, kind, parent=Parent(trajectory_id=parent, num_turns=num))  # type: ignore[arg-type]


def test_uct_by_hand() -> None:
    assert uct(1.0, 4, 9, 2.0) == pytest.approx(0.25 + 2 * (np.log(9) / 4) ** 0.5)


def test_the_root_is_filled_first_and_then_the_better_child(trajectory_maker: Maker) -> None:
    first, second = member(trajectory_maker, "a", "sxyz", PASSED), member(trajectory_maker, "b", "sxyz", FAILED)
    assert place([first]) is None  # the root has one action of two
    assert place([first, second]) == ("a", 1)
    third = branch(trajectory_maker, "c", "sxq", FAILED, "a", 1)
    # Actions of the root: a's 1/2 in 2 visits, b's 0 in 1. With w near 0 the mean decides, with a large w the visits.
    greedy, curious = SearchTreeConfig(exploration=0.0), SearchTreeConfig(exploration=9.0)
    assert place([first, second, third], config=greedy) == ("a", 2)
    assert place([first, second, third], config=curious) == ("b", 1)
    assert place(
        [first, second, third], share=1.0, config=SearchTreeConfig(exploration=9.0, final_exploration=1e-9)
    ) == (
        "a",
        2,
    )


def test_a_reward_counts_once_on_each_path(trajectory_maker: Maker) -> None:
    first = member(trajectory_maker, "a", "sxyz", PASSED)
    second = branch(trajectory_maker, "b", "sxq", FAILED, "a", 2)
    third = branch(trajectory_maker, "c", "sxqr", PASSED, "b", 2)  # all of its shared turns were sampled by a
    root = grow_tree([first, second, third, member(trajectory_maker, "i", "sx", INVALID)])
    assert (root.num_visits, root.reward_sum) == (3, 2.0)
    ((key, top),) = root.children.items()
    assert key == ("a", 0)
    (middle,) = top.children.values()
    assert (middle.num_visits, middle.reward_sum) == (3, 2.0)
    assert {key: (node.num_visits, node.reward_sum) for key, node in middle.children.items()} == {
        ("a", 2): (1, 1.0),
        ("b", 2): (1, 0.0),
        ("c", 2): (1, 1.0),
    }


def test_ends_are_not_chosen(trajectory_maker: Maker) -> None:
    short = [member(trajectory_maker, id_, "s", PASSED) for id_ in "ab"]
    assert place(short) is None  # nothing can be sampled behind an end: a chain
    long = member(trajectory_maker, "c", "sx", FAILED)
    assert place([short[0], long], config=SearchTreeConfig(exploration=0.0)) == ("c", 1)


def test_learned_leaves_hold_both_ends() -> None:
    assert learned_leaves([0.0, 0.0, 0.0, 0.0, 1.0, 0.0], 3) == {4, 0, 5}
    assert len(learned_leaves([0.0] * 5, 3)) == 3
    chosen = learned_leaves([0.0] * 30 + [1.0] * 4 + [None] * 6, 8)
    assert len(chosen) == 8
    assert chosen >= {30, 31, 32, 33}
    assert learned_leaves([0.0, 0.5, 1.0, None], 2) == {0, 2}
    assert learned_leaves([0.0, 0.5, 1.0, None], 8) == {0, 1, 2}


def test_what_is_learned_changes_no_advantage(trajectory_maker: Maker) -> None:
    kinds = [PASSED, *[FAILED] * 5]
    (group,) = make_trajectory_groups([member(trajectory_maker, f"m{n}", "sxy", kind) for n, kind in enumerate(kinds)])
    algorithm = AlgorithmConfig()
    advantages = advantages_of([group], algorithm)
    samples = samples_of([group], advantages, algorithm, num_learned=2)
    assert {sample.trajectory_id for sample in samples} == {"m0", "m1"}
    everything = {s.trajectory_id: s.advantage for s in samples_of([group], advantages, algorithm)}
    assert all(sample.advantage == everything[sample.trajectory_id] for sample in samples)


def test_an_over_long_leaf_takes_no_place_of_a_learned_one(trajectory_maker: Maker) -> None:
    kinds = [PASSED, *[FAILED] * 5]
    members = [member(trajectory_maker, f"m{n}", "sxy", kind) for n, kind in enumerate(kinds)]
    members[1] = replace(members[1], stop_reason=OVERLONG[0])
    (group,) = make_trajectory_groups(members)
    for overlong, learned in (("penalize", {"m0", "m1"}), ("drop", {"m0", "m2"})):
        algorithm = AlgorithmConfig(overlong=overlong)
        samples = samples_of([group], advantages_of([group], algorithm), algorithm, num_learned=2)
        assert {sample.trajectory_id for sample in samples} == learned


def test_settings_that_cannot_hold_are_errors() -> None:
    with pytest.raises(ConfigError, match="none to search for"):
        load_config(RlCommandConfig, None, ["rl.algorithm.group_size=1", "rl.tree.type=uct"])
    with pytest.raises(ConfigError, match="expected at most all"):
        load_config(RlCommandConfig, None, ["rl.algorithm.group_size=4", "rl.tree={type='uct', num_learned=5}"])


def test_the_search_finds_the_path_of_a_lock_more_often_than_chains(trajectory_maker: Maker) -> None:
    """Five turns of two actions, one right path, which alone is rewarded; a wrong turn ends the episode.

    Branches from a random turn of a random leaf are better than chains, too: what UCT chooses has to beat them.
    """

    def played(id_: str, seed: int, prefix: Trajectory | None, num: int) -> Trajectory:
        generator = np.random.default_rng(seed)
        states = "".join(turn.state for turn in prefix.turns[: num + 1]) if prefix else "0"
        while len(states) < 6 and "x" not in states:
            states += str(len(states)) if generator.random() < 0.5 else "x"
        made = member(trajectory_maker, id_, states, PASSED if states == "012345" else FAILED)
        parent = Parent(trajectory_id=prefix.id, num_turns=num) if prefix else None
        return replace(made, parent=parent, group_id="rl/0/t", task_id="t")

    def branch_anywhere(leaves: list[Trajectory], seed: int) -> Trajectory:
        generator = np.random.default_rng(seed)
        parent = leaves[int(generator.integers(len(leaves)))]
        return played(f"r{seed}", seed, parent, int(generator.integers(len(parent.turns) - 1)) + 1)

    num_found = {"uct": 0, "random": 0, "chains": 0}
    for seed in range(40):
        jobs, trees = plan_groups(SearchTreeConfig(), "rl", 0, ["t"], 16, seed)
        assert trees is not None
        waiting = list(jobs)
        while waiting:
            job = waiting.pop(0)
            prefix = job.prefix
            ended = played(job.trajectory_id, job.seed, prefix and prefix.trajectory, prefix.num_turns if prefix else 0)
            num_found["uct"] += ended.verdict.reward > 0
            waiting += trees.grow(ended)
        assert trees.num_jobs == len(trees.jobs()) == 16
        num_found["chains"] += sum(played("c", 1000 * seed + n, None, 0).verdict.reward > 0 for n in range(16))
        leaves = [played("c", 1000 * seed, None, 0)]
        while len(leaves) < 16:
            leaves.append(branch_anywhere(leaves, 1000 * seed + len(leaves)))
        num_found["random"] += sum(leaf.verdict.reward > 0 for leaf in leaves)
    assert num_found["uct"] > 2.0 * num_found["random"] > num_found["chains"]

"""Groups as trees: which turns are branched, what a group has in the end, what a resumed run makes, what is learned."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from repairgym.config.algorithms import (
    GroupAdvantageConfig,
    StateValueAdvantageConfig,
    TreeGrpoAdvantageConfig,
    TreeRlAdvantageConfig,
)
from repairgym.config.commands import EvalCommandConfig, RolloutCommandConfig
from repairgym.config.exploration import NoTreeConfig, TreeConfig
from repairgym.config.learning import AlgorithmConfig
from repairgym.config.loading import load_config
from repairgym.config.models import EngineConfig
from repairgym.config.recipes import RlCommandConfig, RlConfig
from repairgym.errors import ConfigError
from repairgym.ledger import Parent
from repairgym.records import Trajectory, VerdictKind
from repairgym.rollout.jobs import EpisodeJob, PolicyRef, make_groups, num_shared_turns
from repairgym.training.rl_loop import RLLoop
from repairgym.training.rollout_batch import advantages_of, make_trajectory_groups, samples_of
from repairgym.training.run import Run
from repairgym.training.trees import Trees, choose_prefixes, plan_groups, turn_scores

PASSED, FAILED, INVALID = VerdictKind.PASSED, VerdictKind.FAILED, VerdictKind.INVALID
Maker = Callable[..., Trajectory]


def member(make: Maker, id_: str, states: str, kind: VerdictKind = FAILED, **changes: Any) -> Trajectory:
    """An episode whose turns start in ``states``, one letter each, and have one token each; log-probs fall by 1."""
    made = make(id_, kind=kind)
    ledger = made.ledger
    log_prob = ledger.log_prob.copy()
    turns = []
    for at, state in enumerate(states):
        log_prob[at] = -1.0 - at
        turns.append(made.turns[0].model_copy(update={"state": state, "action_span": (at, at + 1)}))
    return replace(made, group_id="g", turns=tuple(turns), ledger=replace(ledger, log_prob=log_prob), **changes)


def chosen(members: list[Trajectory], type_: str, num: int = 1, seed: int = 0) -> list[tuple[str, int]]:
    prefixes = choose_prefixes(members, TreeConfig.model_validate({"type": type_}), num, np.random.default_rng(seed))
    return [(prefix.trajectory.id, prefix.num_turns) for prefix in prefixes if prefix]


def test_uncertain_states_are_branched_first(trajectory_maker: Maker) -> None:
    members = [
        member(trajectory_maker, "a", "sxy", PASSED),
        member(trajectory_maker, "b", "sxz", FAILED),
        member(trajectory_maker, "c", "szz", FAILED),
        member(trajectory_maker, "d", "syy", PASSED),
    ]
    for seed in range(4):
        ((id_, num_turns),) = chosen(members, "uncertainty", seed=seed)
        assert members["abcd".index(id_)].turns[num_turns].state == "x"  # passed and failed were there
    two = chosen(members, "uncertainty", 2)
    assert len({members["abcd".index(id_)].turns[at].state for id_, at in two}) == 2


def test_resamples_disagree_where_visits_are_few_and_mixed(trajectory_maker: Maker) -> None:
    """V (1 - V) is 1/4 in `m`, with six visits, and in `f`, with two; what is not known is the value of `f`."""
    members = [
        member(trajectory_maker, f"{number}", states, PASSED if number % 2 else FAILED)
        for number, states in enumerate(["sm", "sm", "sm", "sm", "sm", "sm", "sf", "sf"])
    ]
    for seed in range(4):
        ((id_, num_turns),) = chosen(members, "ensemble", seed=seed)
        assert members[int(id_)].turns[num_turns].state == "f"
    (shared, mixed), (_, few) = (scores_of(members, "ensemble")[number] for number in (0, 6))
    # A bootstrap of 8 rewards with mean 1/2: the variance of their mean is 1/32, whatever the prior.
    assert shared == pytest.approx(1 / 32, rel=0.3)
    assert few > mixed > 0.0
    uncertainty = scores_of(members, "uncertainty")
    assert uncertainty[0][1] == pytest.approx(uncertainty[6][1]) == 0.25


def scores_of(members: list[Trajectory], type_: str) -> list[np.ndarray]:
    return turn_scores(members, TreeConfig.model_validate({"type": type_}), np.random.default_rng(0))


def test_unlikely_actions_and_rare_states_are_branched_first(trajectory_maker: Maker) -> None:
    members = [member(trajectory_maker, "a", "sxxy"), member(trajectory_maker, "b", "sxx")]
    assert chosen(members, "entropy") == [("a", 3)]
    assert chosen(members, "novelty") == [("a", 3)]
    assert len(set(chosen(members, "random", 5))) == 5


def test_branches_are_branched_behind_their_own_turns_only(trajectory_maker: Maker) -> None:
    parent = Parent(trajectory_id="a", num_turns=2)
    branch = member(trajectory_maker, "b", "sxyz", parent=parent)
    assert num_shared_turns(branch) == 2
    assert set(chosen([branch], "random", 9)) == {("b", 3)}


def test_what_cannot_be_branched_is_left_out(trajectory_maker: Maker) -> None:
    lone, invalid = member(trajectory_maker, "a", "s"), member(trajectory_maker, "b", "sxy", INVALID)
    stateless = member(trajectory_maker, "c", "sxy")
    stateless = replace(stateless, turns=tuple(turn.model_copy(update={"state": ""}) for turn in stateless.turns))
    assert chosen([lone, invalid, stateless], "random", 3) == []


def test_a_group_without_turns_to_branch_has_chains_instead(trajectory_maker: Maker) -> None:
    jobs, trees = plan_groups(TreeConfig(num_chains=2), "rl", 0, ["t"], 4, 7)
    assert trees is not None
    following: list[EpisodeJob] = []
    for job in jobs:
        following = trees.grow(replace(member(trajectory_maker, job.trajectory_id, "s"), group_id=job.group_id))
    assert [job.trajectory_id for job in following] == ["rl/0/t#2", "rl/0/t#3"]
    assert all(job.prefix is None for job in following)
    assert [replace(job, is_kept=False) for job in (*jobs, *following)] == make_groups("rl", 0, ["t"], 4, 7)


def test_rounds_and_branches_per_turn_add_up(trajectory_maker: Maker) -> None:
    config = TreeConfig(num_chains=2, num_rounds=2, num_per_turn=2)
    jobs, trees = plan_groups(config, "rl", 0, ["t", "u"], 10, 7)
    assert isinstance(trees, Trees)
    waiting, parents = list(jobs), dict[str, str]()
    while waiting:
        job = waiting.pop()
        ended = member(trajectory_maker, job.trajectory_id, "sabcdefg")
        if job.prefix:
            parents[job.trajectory_id] = job.prefix.trajectory.id
            shared = Parent(trajectory_id=job.prefix.trajectory.id, num_turns=job.prefix.num_turns)
            ended = replace(ended, parent=shared)
        waiting += trees.grow(replace(ended, group_id=job.group_id, task_id=job.task_id))
    assert trees.num_jobs == len(trees.jobs()) == 20
    assert [job.trajectory_id for job in trees.jobs()] == [f"rl/0/{task}#{n}" for task in "tu" for n in range(10)]
    assert all(parents[f"rl/0/t#{n}"] == parents[f"rl/0/t#{n + 1}"] for n in (2, 4, 6, 8))
    assert [job.is_kept for job in trees.jobs()[:10]] == [True] * 6 + [False] * 4


def test_settings_that_cannot_hold_are_errors() -> None:
    with pytest.raises(ConfigError, match="expected a multiple of num_rounds \\* num_per_turn = 3"):
        load_config(RlCommandConfig, None, ["rl.algorithm.group_size=8", "rl.tree={type='random', num_rounds=3}"])
    with pytest.raises(ConfigError, match="leaves 0 branches"):
        load_config(RolloutCommandConfig, None, ["num_samples=4", "tree.type=entropy"])
    with pytest.raises(ConfigError, match="tree"):
        load_config(EvalCommandConfig, None, ["tree.type=entropy"])
    agent = 'rollout.agent={type="external", command=["agent"]}'
    with pytest.raises(ConfigError, match="cannot branch"):
        load_config(RolloutCommandConfig, None, ["num_samples=8", "tree.type=entropy", agent])
    assert load_config(RlCommandConfig, None, []).rl.tree == NoTreeConfig()


# --- runs ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def open_tree_run(open_run, make_pool) -> Callable[[Path], Run]:
    engine = EngineConfig(num_slots=16, max_len_tokens=200, is_batch_invariant=True)
    return lambda folder: replace(open_run(folder), pool=make_pool(folder, engine=engine, max_in_flight=16))


def content(trajectories: list[Trajectory]) -> list[tuple[object, ...]]:
    return [(t.id, t.parent, t.ledger.token_id.tobytes(), t.ledger.log_prob.tobytes()) for t in trajectories]


@pytest.mark.parametrize("num_kept", [0, 3, 5, 7])
def test_a_resumed_tree_is_the_unbroken_one(open_tree_run, tmp_path, num_kept: int) -> None:
    config, ids = TreeConfig(num_chains=3, num_rounds=2), ["train-0", "train-1"]

    def run(folder: Path, given: list[Trajectory]) -> tuple[list[Trajectory], int]:
        folder.mkdir()
        opened = open_tree_run(folder)
        for trajectory in given:
            opened.store.add_trajectory(trajectory, phase="rl", step=0, split="train")
        jobs, trees = plan_groups(config, "rl", 0, ids, 7, opened.seed)
        policy = PolicyRef("base", str(opened.checkpoint("base")))
        found = opened.run_jobs(policy, jobs, phase="rl", trees=trees)
        return found, int(opened.pool.counters()["turns/num_forked_episodes"])

    whole, num_forked = run(tmp_path / "whole", [])
    assert [t.id for t in whole] == [f"rl/0/{id_}#{n}" for id_ in ids for n in range(7)]
    assert num_forked == sum(t.parent is not None for t in whole) > 0
    resumed, num_forked_again = run(tmp_path / "resumed", whole[:num_kept])
    assert content(resumed) == content(whole)
    assert num_forked_again <= num_forked


@pytest.mark.parametrize(
    "advantage",
    [GroupAdvantageConfig(), TreeGrpoAdvantageConfig(), TreeRlAdvantageConfig(), StateValueAdvantageConfig()],
    ids=lambda config: config.type,
)
def test_rl_learns_each_sampled_token_of_a_tree_once(open_tree_run, tmp_path, advantage) -> None:
    algorithm = AlgorithmConfig(group_size=6, batch_size=12, advantage=advantage)
    config = RlConfig(
        algorithm=algorithm,
        tree=TreeConfig(type="entropy", num_chains=3),
        num_groups=2,
        num_groups_sampled=2,
        max_refills=0,
        max_iterations=1,
    )
    run = open_tree_run(tmp_path)
    loop = RLLoop(run, config, "base")
    (metrics,) = loop.iterations()
    loop.close()
    trajectories = list(run.store.trajectories(phase="rl"))
    assert metrics["rollout/num_trajectories"] == len(trajectories) == 12
    num_sampled = 0
    for trajectory in trajectories:
        own = trajectory.turns[num_shared_turns(trajectory) :]
        num_sampled += sum(end - start for start, end in (turn.action_span for turn in own))
    # The rewards of a model that knows nothing are equal: here they differ, so that something is learned.
    groups = make_trajectory_groups(
        trajectories, lambda members: tuple(float(number % 2) for number in range(len(members)))
    )
    samples = samples_of(groups, advantages_of(groups, algorithm), algorithm)
    assert sum(sample.num_learned for sample in samples) == num_sampled

"""Feedback for a self-teacher: what it reads before which episode, and a step of RL with it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from tests.training.test_trees import FAILED, INVALID, PASSED, Maker

from repairgym.config.algorithms import SelfDistillationAdvantageConfig
from repairgym.config.learning import AlgorithmConfig
from repairgym.config.recipes import RlConfig
from repairgym.inference.loading import load_tokenizer
from repairgym.inference.renderer import ChatRenderer
from repairgym.training.feedback import hints_of
from repairgym.training.rl_loop import RLLoop
from repairgym.training.rollout_batch import make_trajectory_groups


def test_episodes_read_another_success_or_their_own_failure(open_run, tmp_path, trajectory_maker: Maker) -> None:
    renderer = ChatRenderer(load_tokenizer(open_run(tmp_path).checkpoint("base")))
    kinds = {"a": PASSED, "b": FAILED, "c": INVALID}
    made = {id_: replace(trajectory_maker(id_, kind=kind), group_id="g") for id_, kind in kinds.items()}
    tokens = {id_: tuple(trajectory.ledger.token_id.tolist()) for id_, trajectory in made.items()}
    hints = hints_of(make_trajectory_groups(list(made.values())), renderer)
    assert hints == {"b": tokens["a"]}  # a success alone has nothing to read but itself
    other = replace(trajectory_maker("d", kind=PASSED), group_id="g")
    assert hints_of(make_trajectory_groups([*made.values(), other]), renderer)["a"] == tokens["a"]
    alone = hints_of(make_trajectory_groups([made["b"]]), renderer)["b"]
    assert alone[: len(tokens["b"])] == tokens["b"]
    assert "attempt failed" in renderer.text(list(alone[len(tokens["b"]) :]))


def test_groups_of_equal_rewards_teach_in_rl(open_run, tmp_path) -> None:
    algorithm = AlgorithmConfig(group_size=4, batch_size=8, advantage=SelfDistillationAdvantageConfig())
    config = RlConfig(algorithm=algorithm, num_groups=2, num_groups_sampled=2, max_refills=0, max_iterations=1)
    run = open_run(tmp_path)
    loop = RLLoop(run, config, "base")
    (metrics,) = loop.iterations()
    loop.close()
    num_failed = sum(trajectory.verdict.kind is FAILED for trajectory in run.store.trajectories(phase="rl"))
    assert metrics["distillation/num_taught"] + metrics["distillation/num_too_long"] >= num_failed > 0
    assert metrics["distillation/gain_abs"] > 0
    assert np.isfinite(metrics["distillation/gain_mean"])

"""SFT, RFT and DAPO over a tiny model and a scripted sandbox: what is learned, kept, resumed and never trained on."""

import pytest
import torch

from repairgym.config.algorithms import (
    GaeAdvantageConfig,
    GatedDemonstrationConfig,
    KlConfig,
    PpoLossConfig,
    StepPenaltyConfig,
    TruncateCorrectionConfig,
)
from repairgym.config.commands import TaskSelection
from repairgym.config.learning import AlgorithmConfig, OptimizerConfig, SftConfig
from repairgym.config.recipes import CollectConfig, RlConfig
from repairgym.errors import SandboxError, TaskError
from repairgym.inference.loading import load_model
from repairgym.records import VerdictKind
from repairgym.rollout.jobs import PolicyRef
from repairgym.training.evaluate import evaluate
from repairgym.training.rl_loop import RLLoop
from repairgym.training.rollout_batch import RolloutBatch, rollout_metrics, weight_lag
from repairgym.training.run import Run, select_tasks
from repairgym.training.supervised import collect_successes, fit_samples, keep_successes, supervised_samples

RL = RlConfig(
    algorithm=AlgorithmConfig(group_size=4, batch_size=16, optimizer=OptimizerConfig(learning_rate=1e-3)),
    num_groups=2,
    num_groups_sampled=2,
    max_refills=1,
    max_iterations=2,
)


def teach(run: Run, stage: str = "sft", epochs: int = 25) -> None:
    kept = collect_successes(
        run, PolicyRef("teacher"), CollectConfig(num_tasks=4, num_samples=12, max_per_task=12), "teacher"
    )
    config = SftConfig(optimizer=OptimizerConfig(learning_rate=1e-2, weight_decay=0.0), batch_size=8, num_epochs=epochs)
    fit_samples(
        run.checkpoint("base"), run.checkpoint(stage), supervised_samples(kept, config), config, run.store, run.progress
    )


def test_training_sees_training_tasks_only(tmp_path, open_run):
    run = open_run(tmp_path)
    assert {task.split for task in run.training_tasks()} == {"train"}
    teach(run, epochs=1)
    loop = RLLoop(run, RL, "sft")
    list(loop.iterations())
    used = {row.task_id for phase in ("teacher", "rl") for row in run.store.rows(phase=phase)}
    assert used
    assert all(name.startswith("train-") for name in used)


def test_supervision_teaches_the_teachers_actions(tmp_path, open_run):
    run = open_run(tmp_path)
    teach(run)
    before = evaluate(run, "base", run.policy("base"), "test-mutations", run.select("test"), 8)
    after = evaluate(run, "sft", run.policy("sft"), "test-mutations", run.select("test"), 8)
    assert before == 0.0
    assert after > 0.3


def test_a_killed_loop_resumes_after_its_last_update(tmp_path, open_run):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    for folder in (whole, killed):
        folder.mkdir()
        teach(open_run(folder))
    list(RLLoop(open_run(whole), RL, "sft").iterations())
    run = open_run(killed)
    next(RLLoop(run, RL, "sft").iterations())
    num_before = len(list(run.store.rows(phase="rl", step=0)))
    loop = RLLoop(open_run(killed), RL, "sft")
    assert loop.num_done == 1
    list(loop.iterations())
    assert len(list(run.store.rows(phase="rl", step=0))) == num_before
    start = load_model(whole / "checkpoints" / "sft").state_dict()
    states = [load_model(folder / "checkpoints" / "rl-state" / "model").state_dict() for folder in (whole, killed)]
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])
    assert any(not torch.equal(states[0][name], start[name]) for name in start)


def test_groups_are_counted_apart(tmp_path, open_run):
    run = open_run(tmp_path)
    teach(run)
    metrics = next(RLLoop(run, RL, "sft").iterations())
    assert metrics["rollout/num_groups"] == sum(
        metrics[f"rollout/num_{kind}_groups"] for kind in ("kept", "equal", "failed")
    )
    assert metrics["rollout/num_trajectories"] == 4 * metrics["rollout/num_groups"]
    assert abs(metrics.get("policy/log_prob_gap", 0.0)) < 1e-3


def test_metrics_report_the_raw_reward_whatever_the_learner_gets(tmp_path, open_run):
    run = open_run(tmp_path)
    teach(run)
    config = RL.model_copy(update={"reward": StepPenaltyConfig(threshold_turns=1)})
    metrics = next(RLLoop(run, config, "sft").iterations())
    rows = [row for row in run.store.rows(phase="rl") if row.reward is not None]
    assert metrics["rollout/reward_mean"] == sum(row.reward for row in rows) / len(rows)
    assert {row.reward for row in rows} == {0.0, 1.0}
    # T_max is the pipeline's 4: an episode of n turns costs (n - 1) / 3.
    penalty = sum(row.num_turns - 1 for row in rows) / 3 / len(rows)
    assert penalty > 0
    assert metrics["rollout/shaped_reward_mean"] == pytest.approx(metrics["rollout/reward_mean"] - penalty)


def test_the_loop_takes_other_algorithms_and_terms(tmp_path, open_run):
    """PPO learns from groups of equal rewards too, so the step is made whatever was sampled."""
    run = open_run(tmp_path)
    teach(run, epochs=1)
    dapo = AlgorithmConfig(
        loss=PpoLossConfig(),
        advantage=GaeAdvantageConfig(),
        kl=KlConfig(type="k3"),
        correction=TruncateCorrectionConfig(),
        demonstration=GatedDemonstrationConfig(min_successes=5),
        group_size=4,
        batch_size=16,
    )
    loop = RLLoop(run, RL.model_copy(update={"algorithm": dapo, "spread_share": 0.5}), "sft")
    metrics = next(loop.iterations())
    assert metrics["optim/num_steps"] == 1.0
    assert metrics["policy/kl_k3"] == pytest.approx(0.0, abs=1e-6)  # the reference is where the run starts
    assert metrics["demonstration/sft/nll"] > 0.0
    assert metrics["correction/bounded_frac"] == 0.0
    assert "value/target_mean" in metrics
    assert RLLoop(run, RL.model_copy(update={"algorithm": dapo}), "sft").num_done == 1


def test_an_iteration_without_a_verdict_stops_and_is_sampled_again(tmp_path, open_run, make_pool):
    run = open_run(tmp_path)
    pool, run.pool = run.pool, make_pool(tmp_path, num_failures=10_000)
    with pytest.raises(SandboxError, match=r"iteration 0: all \d+ episodes are invalid; the last: .*told to fail"):
        next(RLLoop(run, RL, "base").iterations())
    assert run.store.rows(phase="rl") == []
    assert [event.kind for event in run.store.events()] == ["all_invalid"]
    run.pool = pool
    metrics = next(RLLoop(run, RL, "base").iterations())
    assert metrics["rollout/num_invalid"] == 0.0


def test_many_invalid_episodes_in_a_row_stop_the_run_and_none_of_them_is_stored(tmp_path, open_run, make_pool):
    run = open_run(tmp_path)
    run.pool = make_pool(tmp_path, num_failures=10_000, max_failures_in_row=5)
    with pytest.raises(SandboxError, match=r"5 episodes in a row are invalid; the last: .*told to fail"):
        collect_successes(run, PolicyRef("oracle"), CollectConfig(num_tasks=4, num_samples=4), "teacher")
    assert run.store.rows() == []


def test_an_empty_task_set_is_an_error_before_a_model_is_loaded(tmp_path, open_run):
    run = open_run(tmp_path)
    run.tasks = {name: task for name, task in run.tasks.items() if task.split != "train"}
    with pytest.raises(
        TaskError, match=r"no training task.*the folder has \d+ with select\.split=test select\.source=mut"
    ):
        RLLoop(run, RL, "no-such-checkpoint")
    with pytest.raises(
        TaskError, match=r"no mutations task in the train split; the folder has \d+ with select\.split=test"
    ):
        select_tasks(run, TaskSelection(split="train"))


def test_metrics_count_groups_seconds_and_weight_lag(tmp_path, open_run):
    run = open_run(tmp_path)
    teach(run)
    loop = RLLoop(run, RL, "sft")
    for metrics in loop.iterations():
        assert metrics["rollout/weight_lag"] == 0.0
        assert metrics["rollout/num_exploited"] == 0.0
        assert 0.0 <= metrics["rollout/reward_spread"] <= 0.5
    statuses = {group.status for group in run.store.groups(phase="rl")}
    assert statuses <= {"kept", "dropped_equal_rewards", "dropped_too_few_valid"}
    for row in run.store.rows(phase="rl"):
        assert set(row.durations_s) == {"queue", "prefill", "decode", "generate", "tool", "grade"}
        assert row.durations_s["prefill"] > 0.0
        assert row.durations_s["prefill"] + row.durations_s["decode"] <= row.durations_s["generate"]
    stale = list(run.store.trajectories(phase="rl", step=0))
    assert weight_lag(stale, 3) == 3.0
    assert weight_lag([], 3) == 0.0


def test_no_success_is_a_clear_error(tmp_path, open_run):
    run = open_run(tmp_path)
    with pytest.raises(TaskError, match="none of 2 trajectories passed"):
        collect_successes(run, PolicyRef("submit-at-once"), CollectConfig(num_tasks=2, num_samples=1), "teacher")


def test_rejection_keeps_distinct_passed_trajectories(trajectory_maker):
    found = [
        trajectory_maker("a"),
        trajectory_maker("b"),
        trajectory_maker("c", steps=(("submit", "", "ok", ""),)),
        trajectory_maker("d", kind=VerdictKind.EXPLOITED),
        trajectory_maker("e", kind=VerdictKind.FAILED),
    ]
    assert [t.id for t in keep_successes(found, 4)] == ["a", "c"]
    assert [t.id for t in keep_successes(found, 1)] == ["a"]


def test_metrics_of_an_empty_batch_are_zero():
    assert rollout_metrics(RolloutBatch())["rollout/reward_mean"] == 0.0

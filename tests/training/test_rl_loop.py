"""SFT, RFT and DAPO over a tiny model and a scripted sandbox: what is learned, kept, resumed and never trained on."""

import shutil
from functools import partial

import pytest
import torch

from repairgym.config.algorithms import (
    GaeAdvantageConfig,
    GatedDemonstrationConfig,
    KlConfig,
    PpoLossConfig,
    StateValueAdvantageConfig,
    StepPenaltyConfig,
    TruncateCorrectionConfig,
)
from repairgym.config.learning import AlgorithmConfig, OptimizerConfig
from repairgym.config.recipes import CollectConfig, RlConfig
from repairgym.config.selection import TaskSelection, TrainingSelection, ValidationSelection
from repairgym.errors import ConfigError, SandboxError, TaskError
from repairgym.inference.loading import load_model
from repairgym.records import VerdictKind
from repairgym.rollout.jobs import PolicyRef
from repairgym.training.evaluate import evaluate
from repairgym.training.group_sampling import GroupSampler, describe_signal
from repairgym.training.rl_loop import RLLoop, run_rl_stage, validation_tasks
from repairgym.training.rollout_batch import RolloutBatch, rollout_metrics, weight_lag
from repairgym.training.run import Run
from repairgym.training.supervised import collect_successes, keep_successes

RL = RlConfig(
    algorithm=AlgorithmConfig(group_size=4, batch_size=16, optimizer=OptimizerConfig(learning_rate=1e-3)),
    num_groups=2,
    num_groups_sampled=2,
    max_refills=1,
    max_iterations=2,
)
TEST = TaskSelection(splits=("test",))


def test_training_sees_training_tasks_only(tmp_path, open_taught):
    run = open_taught(tmp_path)
    loop = RLLoop(run, RL, "sft")
    list(loop.iterations())
    used = {row.task_id for phase in ("teacher", "rl") for row in run.store.rows(phase=phase)}
    assert used
    assert all(name.startswith("train-") for name in used)


def test_supervision_teaches_the_teachers_actions(tmp_path, open_taught):
    run = open_taught(tmp_path)
    before = evaluate(run, "base", run.policy("base"), "test-mutations", run.select(TEST), 8)
    after = evaluate(run, "sft", run.policy("sft"), "test-mutations", run.select(TEST), 8)
    assert before == 0.0
    assert after > 0.3


def test_a_killed_loop_resumes_after_its_last_update(tmp_path, open_taught):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    for folder in (whole, killed):
        folder.mkdir()
        open_taught(folder)
    list(RLLoop(open_taught(whole), RL, "sft").iterations())
    run = open_taught(killed)
    next(RLLoop(run, RL, "sft").iterations())
    num_before = len(list(run.store.rows(phase="rl", step=0)))
    loop = RLLoop(open_taught(killed), RL, "sft")
    assert loop.num_done == 1
    list(loop.iterations())
    assert len(list(run.store.rows(phase="rl", step=0))) == num_before
    start = load_model(whole / "checkpoints" / "sft").state_dict()
    states = [load_model(folder / "checkpoints" / "rl-state" / "model").state_dict() for folder in (whole, killed)]
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])
    assert any(not torch.equal(states[0][name], start[name]) for name in start)


def test_groups_are_counted_apart(tmp_path, open_taught):
    run = open_taught(tmp_path)
    metrics = next(RLLoop(run, RL, "sft").iterations())
    assert metrics["rollout/num_groups"] == sum(
        metrics[f"rollout/num_{kind}_groups"] for kind in ("kept", "equal", "failed")
    )
    assert metrics["rollout/num_trajectories"] == 4 * metrics["rollout/num_groups"]
    assert abs(metrics.get("policy/log_prob_gap", 0.0)) < 1e-3


def test_metrics_report_the_raw_reward_whatever_the_learner_gets(tmp_path, open_taught):
    run = open_taught(tmp_path)
    config = RL.model_copy(update={"reward": StepPenaltyConfig(threshold_turns=1)})
    metrics = next(RLLoop(run, config, "sft").iterations())
    rows = [row for row in run.store.rows(phase="rl") if row.reward is not None]
    assert metrics["rollout/reward_mean"] == sum(row.reward for row in rows) / len(rows)
    assert {row.reward for row in rows} == {0.0, 1.0}
    # T_max is the pipeline's 4: an episode of n turns costs (n - 1) / 3.
    penalty = sum(row.num_turns - 1 for row in rows) / 3 / len(rows)
    assert penalty > 0
    assert metrics["rollout/shaped_reward_mean"] == pytest.approx(metrics["rollout/reward_mean"] - penalty)


@pytest.mark.parametrize(
    ("kinds", "said"),
    [
        (
            (VerdictKind.FAILED, VerdictKind.FAILED),
            "; 1 of them without a pass or without a failure, by rl.reward or rl.exploration alone",
        ),
        (
            (VerdictKind.PASSED, VerdictKind.PASSED),
            "; 1 of them without a pass or without a failure, by rl.reward or rl.exploration alone",
        ),
        ((VerdictKind.PASSED, VerdictKind.FAILED), ""),
    ],
)
def test_groups_that_only_a_shaped_reward_makes_unequal_are_named(tmp_path, open_run, trajectory_maker, kinds, said):
    run = open_run(tmp_path)
    for number, kind in enumerate(kinds):
        one = trajectory_maker(f"rl/0/train-0#{number}", "train-0", kind=kind, group_id="rl/0/train-0")
        run.store.add_trajectory(one, phase="rl", step=0, split="train")
    run.store.set_group_status("rl/0/train-0", phase="rl", step=0, task_id="train-0", status="kept")
    assert describe_signal(run, "rl") == f"groups with unequal rewards: mutations 1 of 1{said}"


def test_the_loop_takes_other_algorithms_and_terms(tmp_path, open_taught):
    """PPO learns from groups of equal rewards too, so the step is made whatever was sampled."""
    run = open_taught(tmp_path)
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


@pytest.mark.parametrize("max_staleness", [0, 1])
def test_no_iteration_begins_behind_the_bound_on_sampled_tokens(tmp_path, open_taught, max_staleness):
    run = open_taught(tmp_path)
    algorithm = RL.algorithm.model_copy(update={"correction": TruncateCorrectionConfig()})
    config = RL.model_copy(update={"algorithm": algorithm, "max_staleness": max_staleness, "max_iterations": 4})
    for bound, num_iterations in ((1, 1), (10**9, 4)):
        loop = RLLoop(run, config.model_copy(update={"max_sampled_tokens": bound}), "sft")
        list(loop.iterations())
        assert loop.num_done == num_iterations
        assert {row.step for row in run.store.rows(phase="rl")} == set(range(num_iterations))


def test_an_iteration_that_was_sampled_and_not_learned_is_learned_after_a_kill(tmp_path, open_taught):
    run = open_taught(tmp_path)
    config = RL.model_copy(update={"max_sampled_tokens": 1})
    list(RLLoop(run, config, "sft").iterations())
    num_rows = len(run.store.rows(phase="rl"))
    shutil.rmtree(run.checkpoint("rl-state"))  # as if the kill had come before the update
    loop = RLLoop(run, config, "sft")
    list(loop.iterations())
    assert loop.num_done == 1
    assert len(run.store.rows(phase="rl")) == num_rows


def test_the_loop_learns_by_state(tmp_path, open_taught):
    run = open_taught(tmp_path)
    algorithm = RL.algorithm.model_copy(update={"advantage": StateValueAdvantageConfig(), "group_size": 8})
    metrics = next(RLLoop(run, RL.model_copy(update={"algorithm": algorithm}), "sft").iterations())
    assert 0.0 <= metrics["credit/error_mass"] <= 1.0 - metrics["credit/edit_mass"]
    assert 0.0 < metrics["credit/shared_turns"] <= 1.0
    assert metrics["optim/num_steps"] >= 1.0


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
        collect_successes(
            run, PolicyRef("oracle"), CollectConfig(select=TrainingSelection(num_tasks=4), num_samples=4), "teacher"
        )
    assert run.store.rows() == []


def test_an_empty_task_set_is_an_error_before_a_model_is_loaded(tmp_path, open_run):
    run = open_run(tmp_path)
    run.tasks = {name: task for name, task in run.tasks.items() if task.split != "train"}
    with pytest.raises(ConfigError, match=r"no task is left by splits=train: the folder has 2, 0 with splits=train"):
        RLLoop(run, RL, "no-such-checkpoint")


def test_metrics_count_groups_seconds_and_weight_lag(tmp_path, open_taught):
    run = open_taught(tmp_path)
    loop = RLLoop(run, RL, "sft")
    for metrics in loop.iterations():
        assert metrics["rollout/weight_lag"] == 0.0
        assert metrics["rollout/num_exploited"] == 0.0
        assert 0.0 <= metrics["rollout/reward_spread"] <= 0.5
    statuses = {group.status for group in run.store.groups(phase="rl")}
    assert statuses <= {"kept", "dropped_equal_rewards", "dropped_too_few_valid"}
    for row in run.store.rows(phase="rl"):
        assert set(row.durations_s) == {"queue", "prefill", "decode", "generate", "tool", "grade", "other"}
        assert row.durations_s["prefill"] > 0.0
        assert row.durations_s["prefill"] + row.durations_s["decode"] <= row.durations_s["generate"]
    stale = list(run.store.trajectories(phase="rl", step=0))
    assert weight_lag(stale, 3) == 3.0
    assert weight_lag([], 3) == 0.0


def test_no_success_is_a_clear_error(tmp_path, open_run):
    run = open_run(tmp_path)
    with pytest.raises(TaskError, match="none of 2 trajectories passed"):
        collect_successes(
            run,
            PolicyRef("submit-at-once"),
            CollectConfig(select=TrainingSelection(num_tasks=2), num_samples=1),
            "teacher",
        )


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


def with_sources(run: Run, **sources: str) -> None:
    """Give tasks another source, by the name of the task with ``_`` for ``-``."""
    for name, source in sources.items():
        task_id = name.replace("_", "-")
        run.tasks[task_id] = run.tasks[task_id].model_copy(update={"source": source})


def test_every_source_is_trained_on_and_a_selection_narrows(tmp_path, open_taught):
    run = open_taught(tmp_path)
    with_sources(run, train_0="releases", train_1="history", train_2="breakages")
    lines: list[str] = []
    run.progress = lambda phase, done, total, detail: lines.append(f"{phase}: {detail}")
    wide = RL.model_copy(update={"num_groups_sampled": 4, "max_iterations": 1})
    list(RLLoop(run, wide, "sft").iterations())
    assert {row.task_id for row in run.store.rows(phase="rl")} == {f"train-{k}" for k in range(4)}
    narrow = wide.model_copy(update={"select": TrainingSelection(sources=("releases", "breakages"))})
    list(RLLoop(run, narrow, "sft", phase="narrow").iterations())
    assert {row.task_id for row in run.store.rows(phase="narrow")} == {"train-0", "train-2"}
    assert "narrow: 2 of 6 tasks (splits=train: 4, sources=releases,breakages: 2)" in lines
    said = describe_signal(run, "narrow")
    assert said.startswith("groups with unequal rewards: breakages ")
    assert "releases" in said


def test_shares_of_sources_decide_what_is_sampled(tmp_path, open_run):
    run = open_run(tmp_path)
    with_sources(run, train_0="releases")
    parts = {"source_shares": {"releases": 0.5, "mutations": 0.5}, "curriculum": "learnability", "max_refills": 0}
    for step in range(3):
        sampler = GroupSampler(run, RL.model_copy(update=parts), "rl", partial(run.policy, "base", version=step))
        sampled = [group.members[0].task_id for group in sampler.sample(step).groups]
        assert len(sampled) == 2
        assert "train-0" in sampled, "half of each iteration, although it is one task of four"
    lacking = RL.model_copy(update={"source_shares": {"history": 0.5, "mutations": 0.5}})
    with pytest.raises(ConfigError, match=r"no training task of history, which rl\.source_shares gives a share"):
        GroupSampler(run, lacking, "rl", lambda: run.policy("base"))


def test_an_optimistic_curriculum_reads_all_earlier_groups_of_a_task(tmp_path, open_run, trajectory_maker):
    """Mixed once and then all solved: the latest group says that nothing is left, all together that something may."""
    run = open_run(tmp_path)
    passed, failed = VerdictKind.PASSED, VerdictKind.FAILED
    groups = {
        "train-0": [(passed, failed), (passed, passed)],
        "train-1": [(passed, passed), (passed, passed)],
        "train-2": [(failed, failed), (failed, failed)],
        "train-3": [(passed, failed), (passed, failed)],
    }
    for name, of_task in groups.items():
        for step, kinds in enumerate(of_task):
            for number, kind in enumerate(kinds):
                group_id = f"rl/{step}/{name}"
                made = trajectory_maker(f"{group_id}#{number}", name, kind=kind, group_id=group_id)
                run.store.add_trajectory(made, phase="rl", step=step, split="train")
    chosen = RL.model_copy(update={"curriculum": "optimistic", "max_refills": 0})
    sampler = GroupSampler(run, chosen, "rl", partial(run.policy, "base", version=2))
    assert {group.members[0].task_id for group in sampler.sample(2).groups} == {"train-0", "train-3"}
    again = GroupSampler(run, chosen, "rl", partial(run.policy, "base", version=1))
    # At iteration 1 the second groups are not known: both with one mixed group come first, whatever followed.
    assert {group.members[0].task_id for group in again.sample(1).groups} == {"train-0", "train-3"}


def test_validation_takes_the_chosen_tasks_and_tracks_pass_at_n(tmp_path, open_taught):
    run = open_taught(tmp_path)
    config = RL.model_copy(update={"max_iterations": 1, "validation_every": 1, "num_validation_samples": 3})
    run_rl_stage(run, config, "sft", "rl")
    rows = run.store.rows(phase="eval/rl-step-0001/validation")
    assert [row.task_id for row in rows] == ["validation-0"] * 3
    passed = [row.verdict is VerdictKind.PASSED for row in rows]
    assert dict(run.store.metrics("rl", "validation/pass_at_1"))[1] == pytest.approx(sum(passed) / 3)
    assert dict(run.store.metrics("rl", "validation/pass_at_3"))[1] == float(any(passed))


def test_a_validation_that_a_kill_cut_off_is_made_up_for(tmp_path, open_taught):
    run = open_taught(tmp_path)
    config = RL.model_copy(update={"max_iterations": 1, "validation_every": 1, "num_validation_samples": 3})
    list(RLLoop(run, config, "sft").iterations())  # as if the kill had come behind the update
    assert run.store.metrics("rl", "validation/pass_at_1") == []
    run_rl_stage(run, config, "sft", "rl")
    assert [step for step, _ in run.store.metrics("rl", "validation/pass_at_1")] == [1]
    assert len(run.store.rows(phase="eval/rl-step-0001/validation")) == 3


def test_a_resumed_stage_that_is_over_samples_no_more(tmp_path, open_taught):
    run = open_taught(tmp_path)
    next(RLLoop(run, RL, "sft").iterations())
    run_rl_stage(run, RL.model_copy(update={"validation_every": 0}), "sft", "rl", is_over=lambda: True)
    assert {row.step for row in run.store.rows(phase="rl")} == {0}
    assert run.store.phase_status("rl") == "done"


def test_validation_that_is_asked_for_must_exist_and_the_default_may_be_absent(tmp_path, open_run):
    run = open_run(tmp_path)
    lines: list[str] = []
    run.progress = lambda phase, done, total, detail: lines.append(f"{phase}: {detail}")
    asked = RL.model_copy(update={"validation": ValidationSelection(sources=("releases",))})
    with pytest.raises(ConfigError, match=r"sources=releases: .*before it there were: mutations 1"):
        validation_tasks(run, asked)
    assert [task.id for task in validation_tasks(run, RL)] == ["validation-0"]
    del run.tasks["validation-0"]
    assert validation_tasks(run, RL) == []
    assert lines[-1] == "validation: none (the run has no validation task)"

"""verl's results are in run.db as `repairgym train rl` stores them."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from repairgym.bridges.verl.episodes import validation_phase
from repairgym.bridges.verl.outputs import SpooledTrajectory, read_spool, write_spool
from repairgym.bridges.verl.trainer_process import IterationMetrics
from repairgym.bridges.verl.training import ResultRecorder, paths_of, run_verl_stage, stages_of
from repairgym.config.cluster import VerlConfig
from repairgym.config.loading import load_config
from repairgym.config.recipes import DistillThenGrpoConfig, RlCommandConfig, TwoStageConfig
from repairgym.config.rollout import AlarmConfig
from repairgym.errors import ConfigError, SandboxError
from repairgym.inference.loading import create_model, save_checkpoint, weights_digest
from repairgym.inference.tokenizer import train_tokenizer
from repairgym.records import VerdictKind
from repairgym.rollout.store import RunStore
from repairgym.training.run import Run

CPU = VerlConfig(device="cpu", engine="embedded", gpus_per_node=2, rollout_tensor_parallel=1, sequence_parallel=1)
PASSED, FAILED, INVALID = VerdictKind.PASSED, VerdictKind.FAILED, VerdictKind.INVALID


@pytest.fixture(scope="module")
def base(tmp_path_factory, tiny_config) -> Path:
    tokenizer = train_tokenizer(["user assistant edit test undo submit"] * 9, 400, 40)
    folder = tmp_path_factory.mktemp("base") / "base"
    save_checkpoint(create_model(tiny_config(len(tokenizer))), tokenizer, folder)
    return folder


@pytest.fixture
def run(tmp_path, task):
    tasks = {name: task.model_copy(update={"id": name, "split": "train"}) for name in ("a", "b", "c")}
    with RunStore.create(tmp_path / "run.db") as store:
        yield Run(tmp_path, store, None, tasks)


@pytest.fixture
def stage():
    return stages_of(RlCommandConfig())[0]


def fill_spool(folder: Path, make, kinds: dict[str, list[VerdictKind]], step: int = 0) -> None:
    for task_id, members in kinds.items():
        for member, kind in enumerate(members):
            group = f"rl/{step}/{task_id}/x"
            trajectory = make(f"{group}#{member}", task_id, kind=kind, group_id=group)
            write_spool(folder, SpooledTrajectory(trajectory, "rl", step, "train"))


def take_all(recorder: ResultRecorder, folder: Path) -> None:
    for spooled in list(read_spool(folder)):
        recorder.take(spooled)


def test_an_iteration_is_stored_counted_and_settled(run, stage, trajectory_maker, tmp_path):
    folder = tmp_path / "spool"
    kinds = {"a": [PASSED, FAILED, INVALID], "b": [FAILED, FAILED, FAILED], "c": [INVALID, PASSED, INVALID]}
    fill_spool(folder, trajectory_maker, kinds)
    recorder = ResultRecorder(run, stage, AlarmConfig())
    take_all(recorder, folder)
    verl_metrics = {"actor/pg_loss": 0.25, "actor/entropy_loss": 0.01, "perf/throughput": 9.0}
    recorder.take(IterationMetrics(1, verl_metrics))
    assert run.store.num_trajectories() == {"rl": 9}
    assert not list(read_spool(folder)), "stored trajectories are deleted"
    status = {group.task_id: group.status for group in run.store.groups(phase="rl", step=0)}
    assert status == {"a": "kept", "b": "dropped_equal_rewards", "c": "dropped_too_few_valid"}
    metrics = {name: dict(run.store.metrics("rl", name))[0] for name in run.store.metric_names("rl")}
    assert metrics["train/loss"] == 0.25
    assert metrics["verl/perf/throughput"] == 9.0
    kept = [run.store.trajectory(f"rl/0/a/x#{member}").ledger for member in (0, 1)]
    log_probs = [float(value) for ledger in kept for value in ledger.log_prob[ledger.is_action]]
    assert metrics["policy/entropy"] == pytest.approx(-sum(log_probs) / len(log_probs)), "verl's is of padded rows"
    assert metrics["verl/actor/entropy_loss"] == 0.01
    assert metrics["rollout/num_invalid"] == 3
    assert metrics["rollout/reward_mean"] == pytest.approx(2 / 6)


def test_invalid_episodes_in_a_row_stop_the_run_and_are_not_stored(run, stage, trajectory_maker, tmp_path):
    folder = tmp_path / "spool"
    fill_spool(folder, trajectory_maker, {"a": [INVALID] * stage.rollout.max_failures_in_row})
    recorder = ResultRecorder(run, stage, AlarmConfig())
    with pytest.raises(SandboxError, match="in a row"):
        take_all(recorder, folder)
    assert run.store.num_trajectories() == {}


def test_a_resumed_run_deletes_the_iterations_that_verl_repeats(run, stage, trajectory_maker, tmp_path):
    paths = paths_of(tmp_path, "rl", "start", tmp_path)
    paths.checkpoints.mkdir(parents=True)
    (paths.checkpoints / "latest_checkpointed_iteration.txt").write_text("1")
    for step in (0, 1):
        fill_spool(paths.spool, trajectory_maker, {"a": [PASSED, FAILED]}, step)
    for num_updates in (1, 2):
        phase = validation_phase("rl", num_updates)
        write_spool(paths.spool, SpooledTrajectory(trajectory_maker(f"{phase}#0"), phase, 0, "validation"))
    ResultRecorder(run, stage, AlarmConfig()).begin(paths)
    assert [row.step for row in run.store.rows(phase="rl")] == [0, 0]
    assert [event.kind for event in run.store.events()] == ["begun_again"]
    assert set(run.store.num_trajectories()) == {"rl", validation_phase("rl", 1)}
    # verl had saved the update, but was killed before it wrote the metrics of its iteration.
    metrics = {name: dict(run.store.metrics("rl", name)) for name in run.store.metric_names("rl")}
    assert metrics["rollout/reward_mean"] == {0: 0.5}
    assert metrics["validation/pass_at_1"] == {1: 1.0}, "of the weights after one update"


def test_stages_of_the_papers():
    assert [stage.phase for stage in stages_of(TwoStageConfig(), {"stage_2.rl.num_groups": "Table 3"})] == [
        "stage-1",
        "stage-2",
    ]
    assert stages_of(TwoStageConfig(), {"stage_2.rl.num_groups": "Table 3"})[1].comments == {"rl.num_groups": "Table 3"}
    assert [stage.phase for stage in stages_of(DistillThenGrpoConfig())] == ["grpo"]


def test_a_run_that_was_killed_at_its_end_is_completed_without_verl(run, stage, trajectory_maker, tmp_path, base):
    """Its trajectories are stored, and its last model becomes the stage's; there is no verl to start here."""
    stage = replace(stage, rl=stage.rl.model_copy(update={"max_iterations": 1}))
    paths = paths_of(tmp_path, "rl", "start", tmp_path)
    shutil.copytree(base, paths.checkpoints / "global_step_1/actor/huggingface")
    (paths.checkpoints / "latest_checkpointed_iteration.txt").write_text("1")
    fill_spool(paths.spool, trajectory_maker, {"a": [PASSED, FAILED]})
    run_verl_stage(run, stage, CPU, paths, AlarmConfig())
    assert run.store.num_trajectories() == {"rl": 2}
    assert dict(run.store.metrics("rl", "rollout/num_kept_groups")) == {0: 1.0}
    assert weights_digest(run.checkpoint("rl")) == weights_digest(base)


def test_a_cluster_of_ours_is_rejected_with_the_key_of_verl():
    config = load_config(RlCommandConfig, None, ["cluster.address=head:6379"])
    with pytest.raises(ConfigError, match=r"cluster\.address='head:6379'.*verl\.ray_address"):
        stages_of(config)


def test_too_few_tasks_are_rejected_before_verl_starts(run, tmp_path):
    config = load_config(RlCommandConfig, None, ["rl.algorithm.batch_size=130", "rl.num_groups_sampled=4"])
    paths = paths_of(tmp_path, "rl", "start", tmp_path)
    with pytest.raises(ConfigError, match="3 training tasks"):
        run_verl_stage(run, stages_of(config)[0], CPU, paths, AlarmConfig())

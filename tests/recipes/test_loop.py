"""SFT, RFT and DAPO over a tiny model and a scripted sandbox: what is learned, kept, resumed and never trained on."""

import shutil
from pathlib import Path

import pytest
import torch

from mendwright.config.learning import DapoConfig, OptimizerConfig, SftConfig
from mendwright.config.models import EngineConfig, ModelConfig
from mendwright.config.pipeline import PipelineConfig
from mendwright.config.recipes import CollectConfig, RlConfig
from mendwright.config.rollout import RolloutConfig
from mendwright.errors import TaskError
from mendwright.models.loading import create_model, load_model, load_tokenizer, save_checkpoint
from mendwright.models.renderer import ChatMLRenderer
from mendwright.models.tokenizer import train_tokenizer
from mendwright.recipes.dapo import Collected, DapoLoop, is_blind_submit, rollout_metrics
from mendwright.recipes.evaluate import evaluate
from mendwright.recipes.run import Run
from mendwright.recipes.supervised import collect_successes, fit_samples, keep_successes, supervised_samples
from mendwright.records import Task, TestOutcome, TestRequest, TestResult, TestRun, VerdictKind
from mendwright.rollout.jobs import PolicyRef
from mendwright.rollout.local import LocalPool
from mendwright.rollout.store import RunStore
from mendwright.sandbox.scripted import Files, ScriptedBackend
from mendwright.tasks.validation import TaskLayers

ROLLOUT = RolloutConfig(
    pipeline=PipelineConfig(max_len_tokens=200, max_turns=4, max_action_tokens=8),
    engine=EngineConfig(num_slots=16, max_len_tokens=200),
)
RL = RlConfig(
    dapo=DapoConfig(group_size=4, batch_size=16, optimizer=OptimizerConfig(learning_rate=1e-3)),
    num_groups=2,
    num_groups_sampled=2,
    max_refills=1,
    max_iterations=2,
)


def answer(files: Files, request: TestRequest) -> TestRun:
    outcome = TestOutcome.PASSED if "<=" in (files.get("m.py") or "") else TestOutcome.FAILED
    return TestRun(results={name: TestResult(outcome=outcome) for name in request.test_ids}, exit_status=0)


@pytest.fixture(scope="module")
def base(tmp_path_factory) -> Path:
    texts = ["user\nassistant\nf in m.py is wrong edit @2 < => <= test undo submit passed 1 failed 1 of 1: no"] * 20
    tokenizer = train_tokenizer(texts, 420, 40)
    config = ModelConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        num_layers=1,
        num_heads=2,
        num_kv_heads=1,
        head_dim=16,
        intermediate_size=32,
    )
    folder = tmp_path_factory.mktemp("base") / "base"
    save_checkpoint(create_model(config), tokenizer, folder)
    return folder


def tasks_of(task: Task) -> dict[str, Task]:
    named = {f"train-{k}": "train" for k in range(4)} | {"validation-0": "validation", "test-0": "test"}
    return {name: task.model_copy(update={"id": name, "split": split}) for name, split in named.items()}


def open_run(folder: Path, base: Path, task: Task) -> Run:
    path = folder / "run.db"
    store = RunStore.open(path) if path.exists() else RunStore.create(path)
    renderer = ChatMLRenderer(load_tokenizer(base))
    pool = LocalPool(ROLLOUT, lambda: ScriptedBackend(answer), lambda _: TaskLayers(folder, folder), renderer)
    run = Run(folder, store, pool, tasks_of(task))
    if not run.checkpoint("base").exists():
        shutil.copytree(base, run.checkpoint("base"))
    return run


def teach(run: Run, stage: str = "sft", epochs: int = 25) -> None:
    kept = collect_successes(
        run, PolicyRef("teacher"), CollectConfig(num_tasks=4, num_samples=12, max_per_task=12), "teacher"
    )
    config = SftConfig(optimizer=OptimizerConfig(learning_rate=1e-2, weight_decay=0.0), batch_size=8, num_epochs=epochs)
    fit_samples(
        run.checkpoint("base"), run.checkpoint(stage), supervised_samples(kept, config), config, run.store, run.progress
    )


def test_training_sees_training_tasks_only(tmp_path, base, task):
    run = open_run(tmp_path, base, task)
    assert {task.split for task in run.training_tasks()} == {"train"}
    teach(run, epochs=1)
    loop = DapoLoop(run, RL, "sft")
    list(loop.iterations())
    used = {row.task_id for phase in ("teacher", "dapo") for row in run.store.rows(phase=phase)}
    assert used
    assert all(name.startswith("train-") for name in used)


def test_supervision_teaches_the_teachers_actions(tmp_path, base, task):
    run = open_run(tmp_path, base, task)
    teach(run)
    before = evaluate(run, "base", run.policy("base"), "test-mutations", run.select("test"), 8)
    after = evaluate(run, "sft", run.policy("sft"), "test-mutations", run.select("test"), 8)
    assert before == 0.0
    assert after > 0.3


def test_dapo_resumes_where_it_was_killed(tmp_path, base, task):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    for folder in (whole, killed):
        folder.mkdir()
        teach(open_run(folder, base, task))
    list(DapoLoop(open_run(whole, base, task), RL, "sft").iterations())
    run = open_run(killed, base, task)
    next(DapoLoop(run, RL, "sft").iterations())
    num_before = len(list(run.store.rows(phase="dapo", step=0)))
    loop = DapoLoop(open_run(killed, base, task), RL, "sft")
    assert loop.num_done == 1
    list(loop.iterations())
    assert len(list(run.store.rows(phase="dapo", step=0))) == num_before
    start = load_model(whole / "checkpoints" / "sft").state_dict()
    states = [load_model(folder / "checkpoints" / "dapo-state" / "model").state_dict() for folder in (whole, killed)]
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])
    assert any(not torch.equal(states[0][name], start[name]) for name in start)


def test_groups_are_counted_apart(tmp_path, base, task):
    run = open_run(tmp_path, base, task)
    teach(run)
    metrics = next(DapoLoop(run, RL, "sft").iterations())
    assert metrics["rollout/num_groups"] == sum(
        metrics[f"rollout/num_{kind}_groups"] for kind in ("kept", "equal", "failed")
    )
    assert metrics["rollout/num_trajectories"] == 4 * metrics["rollout/num_groups"]
    assert abs(metrics.get("policy/log_prob_gap", 0.0)) < 1e-3


def test_no_success_is_a_clear_error(tmp_path, base, task):
    run = open_run(tmp_path, base, task)
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


@pytest.mark.parametrize(
    ("tools", "is_blind"),
    [
        (["edit", "submit"], True),
        (["edit", "test", "submit"], False),
        (["edit", "test", "edit", "submit"], True),
        (["edit", "test", "undo", "submit"], True),
        (["submit"], True),
    ],
)
def test_blind_submits(trajectory_maker, tools, is_blind):
    trajectory = trajectory_maker(steps=[(tool, "", "", "") for tool in tools])
    assert is_blind_submit(trajectory) is is_blind


def test_metrics_of_nothing_are_zero():
    assert rollout_metrics(Collected())["rollout/reward_mean"] == 0.0

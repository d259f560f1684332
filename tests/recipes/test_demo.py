"""The demo from start to end over a tiny base, resumable, with every stage and control in its store and summary."""

import json

import pytest

from repairgym.config.learning import AlgorithmConfig, OptimizerConfig, RftConfig, SftConfig
from repairgym.config.loading import load_config, to_toml
from repairgym.config.recipes import CollectConfig, DemoConfig, EvaluationConfig, RlConfig
from repairgym.config.selection import TrainingSelection
from repairgym.errors import ConfigError, InputError
from repairgym.inference.loading import shipped_base
from repairgym.recipes.demo import Demo
from repairgym.recipes.plan import Budget, plan_demo
from repairgym.report.html import write_report
from repairgym.report.run_folder import read_config
from repairgym.rollout.calls import locked
from repairgym.rollout.store import RunStore
from repairgym.tasks.store import TaskStore

FAST = OptimizerConfig(learning_rate=1e-2, weight_decay=0.0)


def config(base) -> DemoConfig:
    return DemoConfig(
        minutes=0.05,
        base=str(base),
        start="teacher",  # the tiny base solves nothing
        teacher=CollectConfig(select=TrainingSelection(num_tasks=4), num_samples=12, max_per_task=12),
        sft=SftConfig(optimizer=FAST, batch_size=8, num_epochs=20),
        own=CollectConfig(select=TrainingSelection(num_tasks=4), num_samples=4),
        rft=RftConfig(optimizer=FAST, batch_size=8, num_epochs=1),
        rl=RlConfig(
            algorithm=AlgorithmConfig(group_size=4, batch_size=16, optimizer=OptimizerConfig(learning_rate=1e-3)),
            num_groups=2,
            num_groups_sampled=2,
            max_refills=0,
            max_iterations=2,
            validation_every=1,
        ),
        evaluation=EvaluationConfig(num_start_samples=2),
    )


@pytest.fixture
def folder(tmp_path, many_tasks):
    """A run folder whose tasks are made."""
    TaskStore(tmp_path / "tasks").save(many_tasks.values(), {}, {})
    with RunStore.create(tmp_path / "run.db") as store, store.phase("tasks"):
        pass
    return tmp_path


def test_runs_every_phase_and_resumes_to_the_same_store(folder, base, make_pool):
    Demo(config(base), folder, open_pool=lambda setup: make_pool(folder)).run()
    with RunStore.open(folder / "run.db") as store:
        names = {row.name for row in store.phases() if row.status == "done"}
        rows = list(store.rows())
    wanted = {name for name in plan_demo(config(base)).phases() if not name.endswith("test-releases")}
    assert wanted <= names
    assert {row.split for row in rows if row.phase in ("teacher", "own", "rl")} == {"train"}
    assert {row.split for row in rows if row.phase.endswith("test-mutations")} == {"test"}
    plan = plan_demo(config(base))
    fitted = load_config(DemoConfig, folder / "fitted.toml")
    assert to_toml(fitted, plan.idle_sections()) == to_toml(plan.config, plan.idle_sections())
    assert "pretraining" not in read_config(folder)  # the base was given
    assert set(read_config(folder)["tasks"]) & {"mutations", "history"} == {"mutations"}
    assert read_config(folder)["own"]["select"]["num_tasks"] == 12  # not the 4 that were asked for
    with RunStore.open(folder / "run.db") as store:
        versions = {
            stage: {
                int(version)
                for t in store.trajectories(phase=f"eval/{stage}/test-mutations")
                for version in t.ledger.policy_version[t.ledger.is_action]
            }
            for stage in ("rft", "rl")
        }
        num_updates = len(store.metrics("rl", "time/update_s"))
    assert versions == {"rft": {0}, "rl": {num_updates}}
    assert num_updates > 0

    Demo(config(base), folder, open_pool=lambda setup: make_pool(folder)).run()
    with RunStore.open(folder / "run.db") as store:
        assert len(list(store.rows())) == len(rows)

    page = write_report(folder)
    summary = json.loads((folder / "summary.json").read_text())
    assert page.stat().st_size > 10_000
    assert {"rft", "rl", "base", "sft", "random"} <= {row["stage"] for row in summary["stages"]}


def test_thoughts_are_removed_by_the_tokenizer_of_the_start(folder, base, make_pool):
    cut = config(base).model_copy(update={"sft": SftConfig(optimizer=FAST, thoughts="remove")})
    with pytest.raises(ConfigError, match="lacks <think>, </think>"):  # those of the tiny base
        Demo(cut, folder, open_pool=lambda setup: make_pool(folder)).run()


def test_small_budgets_still_have_every_phase():
    small, large = plan_demo(DemoConfig(minutes=2.0)), plan_demo(DemoConfig(minutes=60.0))
    assert small.config.tasks.limits.test >= 16
    assert small.config.teacher.select.num_tasks >= 12
    assert small.config.evaluation.num_tasks < large.config.evaluation.num_tasks
    assert not small.has_continued_control
    assert large.has_continued_control
    assert "eval/sft-continued/test-mutations" in large.phases()


def test_long_budgets_compare_lower_temperatures_on_all_test_tasks():
    short, long = (
        {stage.name: (stage.num_tasks, stage.num_samples) for stage in plan_demo(DemoConfig(minutes=minutes)).stages}
        for minutes in (13.0, 60.0)
    )
    assert {"rft-t0.7", "rft-t0.4"} & set(short) == set()
    assert long["rft-t0.7"] == long["rft-t0.4"] == long["rft"]
    assert min(short["rft"][0], long["rft"][0]) >= 150


def test_the_teacher_is_a_start_of_its_own():
    own, taught = plan_demo(DemoConfig()), plan_demo(DemoConfig(start="teacher"))
    assert set(taught.phases()) - set(own.phases()) == {"teacher", "sft", "eval/sft/test-mutations"}
    assert set(own.phases()) < set(taught.phases())


def test_short_budgets_keep_the_time_of_validation_for_rl():
    small, large = plan_demo(DemoConfig(minutes=13.0)), plan_demo(DemoConfig(minutes=60.0))
    assert (small.config.rl.validation_every, small.config.evaluation.num_checkpoints) == (0, 0)
    assert (small.config.rl.max_refills, large.config.rl.max_refills) == (0, 1)
    assert (*small.config.tasks.splits, large.config.rl.validation_every) == ("train", "test", 10)
    names = [[stage.name for stage in plan.stages] for plan in (small, large)]
    assert "rft-pass-at-k" in names[1]
    assert "rft-pass-at-k" not in names[0]


def test_rl_ends_when_evaluation_needs_the_rest(tmp_path):
    """With 2 episodes a second; the continued control takes three quarters of RL's time."""
    with RunStore.create(tmp_path / "run.db") as store:
        for minutes, followers in ((13.0, 1.0), (60.0, 1.75)):
            plan = plan_demo(DemoConfig(minutes=minutes))
            assert plan.has_continued_control == (followers > 1.0)
            budget = Budget(plan, store)
            free_s = 60.0 * minutes - plan.evaluation_s(budget.episodes_per_s())
            store.add_metrics("rl", 0, {"time/rollout_s": 0.5 * (free_s - 2.0) / followers, "time/update_s": 0.0})
            assert not budget.is_rl_over()
            store.add_metrics("rl", 0, {"time/update_s": free_s / followers})
            assert budget.is_rl_over()


def test_more_or_longer_episodes_leave_less_time_for_rl():
    small, large = plan_demo(DemoConfig(minutes=13.0)), plan_demo(DemoConfig(minutes=60.0))
    assert small.evaluation_s(10.0) < large.evaluation_s(10.0)
    assert small.evaluation_s(5.0) > small.evaluation_s(10.0)


def test_checkpoints_to_evaluate_are_spread_over_those_kept():
    plan = plan_demo(DemoConfig(minutes=60.0))
    assert plan.config.evaluation.num_checkpoints == 2
    kept = [f"rl-step-{step:04d}" for step in range(10, 90, 10)]
    assert [stage.checkpoint for stage in plan.checkpoint_stages(kept[::-1])] == ["rl-step-0030", "rl-step-0070"]
    assert [stage.checkpoint for stage in plan.checkpoint_stages(kept[:1])] == ["rl-step-0010"]
    assert not list(plan.checkpoint_stages([]))


def test_the_shipped_base_is_complete():
    folder = shipped_base()
    assert (folder / "tokenizer.json").is_file()
    assert json.loads((folder / "manifest.json").read_text())["num_functions"] > 1000
    assert sum(file.stat().st_size for file in folder.iterdir()) <= 16 * 2**20


def test_only_one_process_works_on_a_run(folder, base, make_pool):
    with locked(folder), pytest.raises(InputError, match="another process"):
        Demo(config(base), folder, open_pool=lambda setup: make_pool(folder)).run()

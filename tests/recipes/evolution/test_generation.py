"""A whole generation on the tiny package: attributed, made, rebuilt, resumed, continued."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from repairgym.config.commands import EvolutionConfig
from repairgym.config.tasks import MutationConfig, RebuildConfig
from repairgym.errors import InputError
from repairgym.recipes.evolution.attribution import ATTRIBUTION_FILE, attribution_lines
from repairgym.recipes.evolution.generation import EVOLVED_FILE, Evidence, Evolved, evolve
from repairgym.records import Task, Trajectory, VerdictKind
from repairgym.rollout.store import RunStore
from repairgym.tasks.layers.store import LayerStore
from repairgym.tasks.manifest.manifest import TaskManifest
from repairgym.tasks.manifest.rebuild import rebuild_manifest
from repairgym.tasks.mutation.plan import PLAN_FILE
from repairgym.tasks.solve_rates import SolveRate
from repairgym.tasks.store import TASKS_FILE, TaskStore

PATH = "src/tinycalc/numbers.py"
CONFIG = EvolutionConfig(
    mutations=MutationConfig(max_test_s=5.0), num_tasks=4, test_timeout_s=20.0, run_timeout_s=60.0, num_concurrent=2
)


def quiet(stage: str, done: int, total: int, detail: str) -> None: ...


def left_by(task: Task) -> dict[str, str | None]:
    """The file of a submission that repaired nothing and broke another function."""
    text = task.base_files[PATH] or ""
    further = {
        "clamp": ("return total / len", "return total * len"),
        "count_above": ("return total / len", "return total * len"),
        "running_total": ("return total / len", "return total * len"),
        "mean": ("totals.append(last)", "totals.append(0)"),
    }
    return {PATH: text.replace(*further[task.location.name if task.location else ""])}


@pytest.fixture(scope="module")
def run(built: TaskStore, make_run: Callable[..., Path]) -> Path:
    """Episodes: a task that is sometimes solved, and one that is never; an exploited episode of the same files."""
    first, second = built.load(source="mutations")[:2]
    failed, passed = VerdictKind.FAILED, VerdictKind.PASSED
    return make_run(
        (first, failed, left_by(first)),
        (first, failed, left_by(first)),
        (first, passed, dict(first.gold_files)),
        (second, failed, {}),
        (second, VerdictKind.EXPLOITED, left_by(second)),
        (second, VerdictKind.INVALID, left_by(second)),
    )


@pytest.fixture(scope="module")
def whole(
    built: TaskStore, run: Path, seeded_layers: LayerStore, tmp_path_factory: pytest.TempPathFactory
) -> tuple[TaskStore, Evolved]:
    """The generation that follows, made in one call; only to be read."""
    output = TaskStore(tmp_path_factory.mktemp("evolved"))
    return output, evolve(built, output, [run], CONFIG, quiet, layers=seeded_layers)


def test_a_generation_from_failures_comes_back_from_its_manifest(
    built: TaskStore, whole: tuple[TaskStore, Evolved], seeded_layers: LayerStore, tmp_path: Path
) -> None:
    first, second = built.load(source="mutations")[:2]
    output, made = whole
    known = {one.task_id: one for one in attribution_lines(output.folder / ATTRIBUTION_FILE).load().values()}
    assert (known[first.id].fault, known[first.id].reason) == ("trajectory", "bug_remains")
    assert known[first.id].trajectory_ids == ("t-0", "t-1")
    assert (known[second.id].fault, known[second.id].reason) == ("trajectory", "no_change")
    assert made.funnel["attribution"] == {"trajectory: bug_remains": 1, "trajectory: no_change": 1}
    tasks = output.load()
    assert 1 < len(tasks) <= 4
    assert all(task.certificate.is_valid and task.labels["generation"] == "1" for task in tasks)
    # The exploited episode left the same kind of file; nothing comes from it.
    assert [task.base_files[PATH] for task in tasks if task.labels["operator"] == "failed_repair"] == [
        left_by(first)[PATH]
    ]
    assert {task.id for task in tasks}.isdisjoint(task.id for task in built.load())
    again = rebuild_manifest(
        TaskManifest(output.folder / EVOLVED_FILE), tmp_path / "again", RebuildConfig(), seeded_layers
    )
    assert (again.folder / TASKS_FILE).read_bytes() == (output.folder / TASKS_FILE).read_bytes()
    # One of three episodes of the first task passed, none of two of the second.
    effects = output.load_document(PLAN_FILE)["plan"]["effects"]
    assert effects[f"package {first.provenance.package}"] == pytest.approx(0.0)


def test_a_task_at_fault_is_not_mutated_on_and_teaches_nothing(
    built: TaskStore, make_run: Callable[..., Path], seeded_layers: LayerStore, tmp_path: Path
) -> None:
    first, second = built.load(source="mutations")[:2]
    broken = first.model_copy(update={"gold_files": dict.fromkeys(first.gold_files, first.base_files[PATH])})
    store = TaskStore(tmp_path / "tasks")
    store.save([broken, second], {}, built.load_document("manifest.json"))
    failed, passed = VerdictKind.FAILED, VerdictKind.PASSED
    run = make_run(
        *[(broken, kind, left_by(broken)) for kind in (failed, passed)],
        *[(second, kind, {}) for kind in (failed, failed)],
    )
    output = TaskStore(tmp_path / "evolved")
    made = evolve(store, output, [run], CONFIG.model_copy(update={"num_tasks": 1}), quiet, layers=seeded_layers)
    assert made.funnel["attribution"] == {"task: gold_fails": 1, "trajectory: no_change": 1}
    assert made.funnel["total"]["evolved"]["failures_not_used"] == 1
    assert not [task for task in made.tasks if task.labels["operator"] == "failed_repair"]
    assert set(made.plan.effects.values()) == {0.0}  # one task alone is the mean


def test_an_interrupted_call_goes_on_where_it_was(
    built: TaskStore, run: Path, whole: tuple[TaskStore, Evolved], seeded_layers: LayerStore, tmp_path: Path
) -> None:
    unbroken, broken = whole[0], TaskStore(tmp_path / "broken")

    def interrupt(stage: str, done: int, total: int, detail: str) -> None:
        raise KeyboardInterrupt

    for _ in range(2):  # after the first submission, and after the second
        with pytest.raises(KeyboardInterrupt):
            evolve(built, broken, [run], CONFIG, interrupt, layers=seeded_layers)
    assert (broken.folder / ATTRIBUTION_FILE).read_bytes() == (unbroken.folder / ATTRIBUTION_FILE).read_bytes()
    with pytest.raises(KeyboardInterrupt):  # after the package
        evolve(built, broken, [run], CONFIG, interrupt, layers=seeded_layers)
    assert not (broken.folder / TASKS_FILE).exists()
    stages: list[str] = []
    evolve(built, broken, [run], CONFIG, lambda stage, *_: stages.append(stage), layers=seeded_layers)
    assert stages == ["make"]
    assert [t.id for t in broken.load()] == [t.id for t in unbroken.load()]


def test_the_next_generation_goes_on_from_the_plan(
    whole: tuple[TaskStore, Evolved], make_run: Callable[..., Path], seeded_layers: LayerStore, tmp_path: Path
) -> None:
    first, made = whole
    bug = next(task for task in made.tasks if task.labels["operator"] == "failed_repair")
    other = next(task for task in made.tasks if task != bug)
    failed, passed = VerdictKind.FAILED, VerdictKind.PASSED
    again = make_run(*[(bug, kind, {}) for kind in (failed, passed)], *[(other, failed, {})] * 2)
    output = TaskStore(tmp_path / "second")
    second = evolve(first, output, [again], CONFIG.model_copy(update={"num_tasks": 2}), quiet, layers=seeded_layers)
    assert second.plan.generation == 2
    assert second.tasks
    assert {task.labels["generation"] for task in second.tasks} == {"2"}
    assert set(second.plan.effects) > set(made.plan.effects)
    # Half of the episodes repaired the bug that a failure left: 1 - 1.8 * 0.5.
    assert output.load_document(PLAN_FILE)["injector_reward"] == {"failed_repair": pytest.approx(0.1)}


def test_only_real_episodes_of_the_tasks_count(
    trajectory_maker: Callable[..., Trajectory], task: Task, tmp_path
) -> None:
    phases = ("rl", "solve/best", "audit/rl")
    kinds = (VerdictKind.FAILED, VerdictKind.PASSED, VerdictKind.INVALID, VerdictKind.EXPLOITED)
    with RunStore.create(tmp_path / "run.db") as store:
        for phase in phases:
            for number, kind in enumerate(kinds):
                made = trajectory_maker(f"{phase}-{number}", task.id, kind=kind, group_id=phase)
                store.add_trajectory(made, phase=phase, step=0, split="train")
        evidence, other = Evidence({task.id: task}), Evidence({})
        evidence.read(store, "")
        other.read(store, "")
    assert evidence.rates() == {task.id: SolveRate(1, 3)}
    assert [failure.trajectory_ids for failure in evidence.failures.values()] == [["rl-0"]]
    assert other.rates() == {}


def test_errors_say_what_to_do(built: TaskStore, make_run: Callable[..., Path], tmp_path: Path, task: Task) -> None:
    run = make_run((task, VerdictKind.FAILED, {}))
    with pytest.raises(InputError, match="name another folder"):
        evolve(built, built, [run], CONFIG, quiet)
    with pytest.raises(InputError, match="no episode of"):
        evolve(built, TaskStore(tmp_path / "out"), [run], CONFIG, quiet)

"""Self-play: rewards and bugs of injections, and whole rounds on the tiny package with real certification."""

from __future__ import annotations

import shutil
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import make_trajectory, small_rollout
from tests.recipes.evolution.conftest import built as built
from tests.recipes.evolution.conftest import layers as layers
from tests.recipes.evolution.conftest import sdists as sdists
from tests.recipes.evolution.conftest import seeded_layers as seeded_layers
from tests.recipes.evolution.conftest import tinycalc as tinycalc
from tests.recipes.evolution.conftest import write_config as write_config
from tests.recipes.evolution.test_generation import CONFIG, PATH

from repairgym.config.commands import GenerationSettings
from repairgym.config.learning import AlgorithmConfig, OptimizerConfig
from repairgym.config.loading import load_config
from repairgym.config.recipes import RlConfig
from repairgym.config.rollout import RolloutConfig
from repairgym.config.rounds import SelfPlayConfig
from repairgym.errors import ConfigError
from repairgym.inference.loading import load_model
from repairgym.recipes.self_play import injected_bugs, injection_rewards, self_play, sound_copy
from repairgym.records import Task, Trajectory, Verdict, VerdictKind
from repairgym.rollout.jobs import EpisodeJob, Grow, PolicyRef, no_growth
from repairgym.rollout.store import RunStore
from repairgym.tasks.layers.store import LayerStore
from repairgym.tasks.mutation.plan import PLAN_FILE
from repairgym.tasks.sources.evolved import text_digest
from repairgym.tasks.store import TaskStore
from repairgym.testing.scripted import scripted_task
from repairgym.training.run import Run


@dataclass
class ScriptedPool:
    """Answers each job with ``play``, in order."""

    config: RolloutConfig
    play: Callable[[PolicyRef, EpisodeJob, Task], Trajectory]
    is_draining: bool = False

    def counters(self) -> dict[str, float]:
        """Return nothing: nothing is counted."""
        return {}

    def run(
        self, policy: PolicyRef, jobs: Sequence[EpisodeJob], tasks: Mapping[str, Task], grow: Grow = no_growth
    ) -> Iterator[Trajectory]:
        """Yield one episode per job, those that ``grow`` adds included."""
        waiting = deque(jobs)
        while waiting:
            job = waiting.popleft()
            trajectory = self.play(policy, job, tasks[job.task_id])
            waiting += grow(trajectory)
            yield trajectory


FAILED, PASSED = VerdictKind.FAILED, VerdictKind.PASSED
SETTINGS = {name: getattr(CONFIG, name) for name in GenerationSettings.model_fields}
PLAY = SelfPlayConfig(
    num_rounds=3,
    num_injected_tasks=2,
    num_injections=4,
    generation=GenerationSettings(**SETTINGS),
    rollout=small_rollout(),
    rl=RlConfig(
        algorithm=AlgorithmConfig(group_size=2, batch_size=4, optimizer=OptimizerConfig(learning_rate=1e-3)),
        num_groups=16,
        num_groups_sampled=16,
        max_refills=0,
        max_iterations=1,
        validation_every=0,
    ),
)


def made(job: EpisodeJob, kind: VerdictKind, files: dict[str, str | None]) -> Trajectory:
    """An episode of ``job`` with this end."""
    verdict = Verdict(kind=kind, reason=kind.value, grader_version="1")
    episode = make_trajectory(job.trajectory_id, job.task_id, group_id=job.group_id, seed=job.seed)
    return replace(episode, final_files=files, verdict=verdict)


def planted(task: Task) -> dict[str, str | None]:
    """The repaired file with a bug that two tests find, in another function than the task's."""
    text, name = task.base_files[PATH] or "", task.location.name if task.location else ""
    bug = ("append(last)", "append(0)") if name == "mean" else ("total / len(values)", "total / len(values) + 1")
    return {PATH: text.replace(*bug)}


def play(_: PolicyRef, job: EpisodeJob, task: Task) -> Trajectory:
    """Of each two repairs one fails and leaves another bug; of four injections two plant it, one does nothing."""
    number = int(job.trajectory_id.rpartition("#")[2])
    if job.trajectory_id.startswith("inject"):
        if number < 2:
            return made(job, FAILED, planted(task))
        return made(job, PASSED if number == 2 else VerdictKind.INVALID, {})
    return made(job, PASSED, dict(task.gold_files)) if number % 2 else made(job, FAILED, {})


@pytest.fixture
def open_play(base: Path, built: TaskStore) -> Callable[[Path], Run]:
    """Opens a run on the mutations of the tiny package; a second call on the same folder resumes."""

    def open_folder(folder: Path) -> Run:
        path = folder / "run.db"
        folder.mkdir(exist_ok=True)
        store = RunStore.open(path) if path.exists() else RunStore.create(path)
        tasks = {task.id: task for task in built.load(source="mutations")}
        run = Run(folder, store, ScriptedPool(small_rollout(), play), tasks)
        if not run.checkpoint("start").exists():
            shutil.copytree(base, run.checkpoint("start"))
        return run

    return open_folder


def test_rounds_make_generations_and_the_injector_learns(
    open_play: Callable[[Path], Run], built: TaskStore, seeded_layers: LayerStore, tmp_path: Path
) -> None:
    run = open_play(tmp_path / "run")
    first = dict(run.tasks)
    target = self_play(run, built, PLAY, seeded_layers)
    generations = [TaskStore(run.folder / "generations" / number).load() for number in ("1", "2")]
    assert [{task.labels["generation"] for task in tasks} for tasks in generations] == [{"1"}, {"2"}]
    assert any(task.labels["operator"] == "injected_edit" for task in generations[0])
    ids = {task.id for task in TaskStore(run.folder / "tasks").load()}
    assert ids == set(first) | {task.id for tasks in generations for task in tasks} == set(run.tasks)
    assert not any(task_id.endswith("!inject") for task_id in ids)
    # Two bugs and one episode that did nothing in each of two groups; the fourth is invalid and has no reward.
    metrics = {name: dict(run.store.metrics("inject-1", name))[0] for name in run.store.metric_names("inject-1")}
    assert (metrics["injector/num_injections"], metrics["injector/num_bugs"]) == (8.0, 4.0)
    assert metrics["injector/num_rewarded"] == 6.0
    assert metrics["injector/num_learnable"] == 4.0
    assert any(name.startswith("policy/") for name in metrics)
    assert target == run.checkpoint("self_play")
    weights = [load_model(run.checkpoint(name)).state_dict() for name in ("rl-2", "self_play", "start")]
    assert all((weights[0][name] == weights[1][name]).all() for name in weights[0])
    assert any((weights[0][name] != weights[2][name]).any() for name in weights[0])

    plan = (run.folder / "generations" / "2" / PLAN_FILE).read_bytes()
    run.store.close()
    again = open_play(tmp_path / "run")
    again.pool = ScriptedPool(small_rollout(), _never)
    self_play(again, built, PLAY, seeded_layers)
    assert (run.folder / "generations" / "2" / PLAN_FILE).read_bytes() == plan
    assert set(again.tasks) == ids
    again.store.close()


def _never(_: PolicyRef, job: EpisodeJob, task: Task) -> Trajectory:
    raise AssertionError(f"{job.trajectory_id} was sampled again")


def test_the_control_keeps_its_tasks(open_play: Callable[[Path], Run], built: TaskStore, tmp_path: Path) -> None:
    run = open_play(tmp_path / "run")
    static = SelfPlayConfig(num_rounds=2, is_static=True, rollout=small_rollout(), rl=PLAY.rl)
    before = set(run.tasks)
    self_play(run, built, static)
    assert set(run.tasks) == before
    assert not (run.folder / "generations").exists()
    assert {row.phase for row in run.store.rows()} == {"rl-0", "rl-1"}
    run.store.close()


def test_a_round_that_the_next_has_begun_from_stays_as_it_is(
    open_play: Callable[[Path], Run], built: TaskStore, tmp_path: Path
) -> None:
    run = open_play(tmp_path / "run")
    static = SelfPlayConfig(num_rounds=2, is_static=True, rollout=small_rollout(), rl=PLAY.rl)
    self_play(run, built, static)
    num_rows = len(run.store.rows(phase="rl-0"))
    grown = PLAY.rl.model_copy(update={"max_iterations": PLAY.rl.max_iterations + 1})
    self_play(run, built, static.model_copy(update={"rl": grown}))
    assert len(run.store.rows(phase="rl-0")) == num_rows
    assert len(run.store.rows(phase="rl-1")) > num_rows
    run.store.close()


@pytest.fixture
def located() -> Task:
    return scripted_task()


def test_a_sound_copy_is_repaired_and_asks_for_a_bug(located: Task) -> None:
    copy = sound_copy(located)
    assert {path: copy.base_files[path] for path in copy.gold_files} == located.gold_files
    assert copy.base_files.keys() >= located.base_files.keys()
    assert (copy.fail_to_pass, copy.test_paths) == (located.fail_to_pass, located.test_paths)
    assert copy.issue == "f in m.py is right: plant a bug there that its tests find"
    assert copy.id != located.id


def test_rewards_of_injections_follow_the_solve_rate(located: Task) -> None:
    copy, job = sound_copy(located), EpisodeJob("inject-1/0/t#0", "g", "", 0)
    job = replace(job, task_id=copy.id)
    child = located.model_copy(update={"id": "child", "base_files": {"m.py": "planted"}})
    tasks = {located.id: located, "child": child}
    digest = text_digest("m.py", "no task")

    def reward(kind: VerdictKind, files: dict[str, str | None], rate: float | None = 0.25) -> float | None:
        rates = {} if rate is None else {"child": rate}
        (value,) = injection_rewards([made(job, kind, files)], tasks, rates, frozenset([digest]), 0.8)
        return value

    planted: dict[str, str | None] = {"m.py": "planted"}
    assert reward(FAILED, planted) == pytest.approx(1 - 1.8 * 0.25)
    assert reward(FAILED, planted, 0.0) == reward(FAILED, planted, 1.0) == -0.8
    assert reward(FAILED, planted, None) is None
    assert reward(FAILED, {"m.py": "no task"}) == -1.0
    assert reward(FAILED, {"m.py": "not tried"}) is None
    # The bug of the task itself was not sampled in this stage.
    assert reward(FAILED, {"m.py": located.base_files["m.py"]}) is None
    for kind, files in ((PASSED, planted), (FAILED, {**planted, "other.py": "x"}), (VerdictKind.EXPLOITED, planted)):
        assert reward(kind, files) == -1.0
    assert reward(VerdictKind.INVALID, planted) is None
    assert [bug.text for bug in injected_bugs([made(job, FAILED, planted), made(job, PASSED, planted)], tasks)] == [
        "planted"
    ]


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        (["is_static=true", "num_injected_tasks=4"], "leave out num_injected_tasks"),
        (["is_static=true", "generation.num_tasks=4"], "leave out generation"),
        (["num_rounds=1"], "num_rounds"),
        (["num_injected_tasks=4", "rl.algorithm=ppo"], "'gae' looks into an episode"),
        (["rl.max_staleness=1", "rl.algorithm.correction.type=truncate"], "max_staleness"),
    ],
)
def test_what_is_rejected(settings: list[str], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        load_config(SelfPlayConfig, None, settings)


def test_generations_have_seeds_of_their_own_and_the_first_places() -> None:
    made = [PLAY.evolution(number, "c.toml", "locks") for number in (1, 2)]
    assert [config.seed for config in made] == [1, 2]
    assert {(config.catalogue, config.locks, config.num_tasks) for config in made} == {("c.toml", "locks", 4)}
    other: Any = PLAY.model_copy(update={"generation": GenerationSettings(catalogue="own.toml")})
    assert other.evolution(1, "c.toml", "").catalogue == "own.toml"

"""The whole loop on one machine: tasks, SFT, RFT, RL, evaluation (design section 2), within a wall-clock budget.

Reads a `DemoConfig`; makes a run folder. Invariants: every phase can be interrupted and resumed; test tasks are touched
by evaluation only.
"""

import shutil
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

from repairgym.config.learning import SftConfig
from repairgym.config.loading import to_toml
from repairgym.config.recipes import CollectConfig, DemoConfig
from repairgym.config.selection import TaskSelection
from repairgym.inference.loading import load_tokenizer, shipped_base
from repairgym.pretraining.held_out import held_out_digests
from repairgym.pretraining.pretraining import pretrain
from repairgym.recipes.plan import Budget, plan_demo
from repairgym.records import SourceKind, Task
from repairgym.rollout.calls import locked
from repairgym.rollout.jobs import PolicyRef, Pool
from repairgym.rollout.names import (
    BASE,
    CHECKPOINT,
    CONTINUED,
    FITTED_FILE,
    MUTATIONS,
    OWN,
    RELEASES,
    RFT,
    RL,
    SFT,
    TEACHER,
    TURNS_FOLDER,
    UPDATE_TIME,
    eval_phase,
)
from repairgym.rollout.pool import WorkerPool
from repairgym.rollout.store import RunStore
from repairgym.rollout.trackers import tracking
from repairgym.rollout.workers import WorkerSetup
from repairgym.tasks.build import build_tasks as building
from repairgym.tasks.layers.store import LayerStore
from repairgym.tasks.store import TaskStore
from repairgym.training.evaluate import evaluate
from repairgym.training.rl_loop import run_rl_stage
from repairgym.training.run import Progress, Run, no_progress
from repairgym.training.supervised import collect_successes, continue_supervised, fit_samples, supervised_samples

TASKS_FOLDER = "tasks"


class Demo:
    """One demo run; `run` does all phases that are not done."""

    def __init__(
        self,
        config: DemoConfig,
        folder: Path,
        progress: Progress = no_progress,
        open_pool: Callable[[WorkerSetup], AbstractContextManager[Pool]] = WorkerPool,
    ) -> None:
        """Open the run in ``folder``, which exists; its store is made when it is missing."""
        self._open_pool = open_pool
        self._plan = plan_demo(config)
        self._config = self._plan.config
        self._folder = folder
        self._progress = progress
        path = folder / "run.db"
        self._store = RunStore.open(path) if path.exists() else RunStore.create(path)
        self._budget = Budget(self._plan, self._store)
        self._start = SFT if config.start == "teacher" else BASE

    def run(self) -> None:
        """All phases, in order. Ctrl-C leaves a run that the same call resumes.

        Raises:
            InputError: another process works on this run.
        """
        with self._store, locked(self._folder):
            (self._folder / FITTED_FILE).write_text(to_toml(self._config, self._plan.idle_sections()), encoding="utf-8")
            with tracking(self._store, self._config.watch):
                self._run_phases()

    def _run_phases(self) -> None:
        self._store.plan_phases(self._plan.phases())
        self._phase(BASE, self._make_base)
        self._phase("tasks", self._build_tasks)
        tasks = {task.id: task for task in TaskStore(self._folder / TASKS_FOLDER).load()}
        setup = WorkerSetup(
            self._config.rollout,
            str(self._folder / "checkpoints" / BASE),
            turns_folder=str(self._folder / TURNS_FOLDER),
        )
        with self._open_pool(setup) as pool:
            sandbox = self._config.rollout.sandbox
            run = Run(self._folder, self._store, pool, tasks, self._config.seed, self._progress, sandbox)
            self._train(run)
            self._evaluate(run)

    def _phase(self, name: str, action: Callable[[], object]) -> None:
        if self._store.phase_status(name) != "done":
            with self._store.phase(name):
                action()

    def _make_base(self) -> None:
        target = self._folder / "checkpoints" / BASE
        if self._config.is_from_scratch:
            pretrain(self._config.pretraining, target, self._progress, excluded=held_out_digests(LayerStore()))
            return
        source = Path(self._config.base) if self._config.base else shipped_base()
        load_tokenizer(source)
        shutil.copytree(source, target, dirs_exist_ok=True)

    def _build_tasks(self) -> None:
        def report(done: building.Progress) -> None:
            self._progress("tasks", done.num_done, done.num_jobs, f"{done.num_tasks} tasks")

        building.build(self._config.tasks, self._folder / TASKS_FOLDER, report=report)

    def _train(self, run: Run) -> None:
        config = self._config
        if self._start == SFT:
            self._imitate(run, PolicyRef(TEACHER), config.teacher, TEACHER, BASE, SFT, config.sft)
        self._imitate(run, run.policy(self._start), config.own, OWN, self._start, RFT, config.rft)
        if self._store.phase_status(RL) != "done":
            alarms, is_over = config.watch.alarms, self._budget.is_rl_over
            run_rl_stage(run, config.rl, RFT, RL, alarms, is_over=is_over, keeps_checkpoints=True)

    def _imitate(
        self, run: Run, policy: PolicyRef, collect: CollectConfig, phase: str, start: str, stage: str, config: SftConfig
    ) -> None:
        """Collect successes of ``policy`` in ``phase``; train checkpoint ``start`` on them to ``stage``."""

        def fit() -> None:
            tokenizer = load_tokenizer(run.checkpoint(start))
            samples = supervised_samples(collect_successes(run, policy, collect, phase), config, tokenizer)
            fit_samples(run.checkpoint(start), run.checkpoint(stage), samples, config, run.store, run.progress)

        self._phase(phase, lambda: collect_successes(run, policy, collect, phase))
        self._phase(stage, fit)

    def _evaluate(self, run: Run) -> None:
        config = self._config.evaluation
        kept = [path.name for path in (self._folder / "checkpoints").glob(f"{CHECKPOINT}*")]
        for stage in (*self._plan.stages, *self._plan.checkpoint_stages(kept)):
            if stage.name == CONTINUED:
                self._phase(CONTINUED, lambda: self._continue(run))
            tests = _test_tasks(run, "mutations", stage.num_tasks)
            policy = _policy(run, stage.checkpoint, stage.temperature) if stage.checkpoint else PolicyRef(stage.name)
            self._evaluate_once(run, stage.name, policy, MUTATIONS, tests, stage.num_samples)
        releases = _test_tasks(run, "releases", config.num_release_tasks)
        for name in (RFT, RL):
            self._evaluate_once(run, name, _policy(run, name), RELEASES, releases, config.num_samples)

    def _evaluate_once(
        self, run: Run, stage: str, policy: PolicyRef, test_set: str, tasks: list[Task], num_samples: int
    ) -> None:
        if self._store.phase_status(eval_phase(stage, test_set)) != "done":
            evaluate(run, stage, policy, test_set, tasks, num_samples)

    def _continue(self, run: Run) -> None:
        """Train on the RFT set from the RFT policy for the CPU seconds that RL used (a control)."""
        successes = collect_successes(run, run.policy(self._start), self._config.own, OWN)
        rl_cpu_s = next(row.cpu_s for row in self._store.phases() if row.name == RL)
        samples = supervised_samples(successes, self._config.rft, load_tokenizer(run.checkpoint(RFT)))
        continue_supervised(run, RFT, CONTINUED, samples, self._config.rft, rl_cpu_s)


def _test_tasks(run: Run, source: SourceKind, limit: int) -> list[Task]:
    """Return at most ``limit`` test tasks of a source; none where the build made none."""
    if not any((task.split, task.source) == ("test", source) for task in run.tasks.values()):
        return []
    return run.select(TaskSelection(splits=("test",), sources=(source,), num_tasks=limit))


def _policy(run: Run, checkpoint: str, temperature: float = 1.0) -> PolicyRef:
    """Return the weights of a checkpoint, with the number of RL updates that they have seen as version."""
    version = len(run.store.metrics(RL, UPDATE_TIME)) if checkpoint == RL else 0
    if checkpoint.startswith(CHECKPOINT):
        version = int(checkpoint.removeprefix(CHECKPOINT))
    return run.policy(checkpoint, temperature=temperature, version=version)

"""The whole loop on one machine: tasks, SFT, RFT, DAPO, evaluation (design section 2), within a wall-clock budget.

Reads a `DemoConfig`; makes a run folder. Invariants: every phase can be interrupted and resumed; test tasks are touched
by evaluation only.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import AbstractContextManager, closing
from pathlib import Path

from repairgym.config.recipes import DemoConfig
from repairgym.inference.loading import load_tokenizer, shipped_base
from repairgym.pretraining.held_out import held_out_digests
from repairgym.pretraining.pretraining import pretrain
from repairgym.recipes.plan import Budget, EvalStage, plan_demo
from repairgym.records import Task
from repairgym.rollout.jobs import PolicyRef, Pool
from repairgym.rollout.names import CHECKPOINT, CONTINUED, MUTATIONS, RELEASES, VALIDATION, eval_phase
from repairgym.rollout.pool import WorkerPool
from repairgym.rollout.store import RunStore
from repairgym.rollout.trackers import tracking
from repairgym.rollout.worker import WorkerSetup
from repairgym.tasks.build import build_tasks as building
from repairgym.tasks.layers.store import LayerStore
from repairgym.tasks.store import TaskStore
from repairgym.training.evaluate import evaluate
from repairgym.training.progress import Progress, no_progress
from repairgym.training.rl_loop import RLLoop
from repairgym.training.run import Run, locked
from repairgym.training.supervised import (
    collect_successes,
    continue_supervised,
    fit_samples,
    supervised_samples,
)

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

    def run(self) -> None:
        """All phases, in order. Ctrl-C leaves a run that the same call resumes.

        Raises:
            InputError: another process works on this run.
        """
        with self._store, locked(self._folder), tracking(self._store, self._config.watch):
            self._store.plan_phases(self._plan.phases())
            self._phase("base", self._make_base)
            self._phase("tasks", self._build_tasks)
            tasks = self._load_tasks()
            setup = WorkerSetup(self._config.rollout, str(self._folder / "checkpoints" / "base"))
            with self._open_pool(setup) as pool:
                sandbox = self._config.rollout.sandbox
                run = Run(self._folder, self._store, pool, tasks, self._config.seed, self._progress, sandbox)
                self._train(run)
                self._evaluate(run)

    def _phase(self, name: str, action: Callable[[], None]) -> None:
        if self._store.phase_status(name) != "done":
            with self._store.phase(name):
                action()

    def _make_base(self) -> None:
        target = self._folder / "checkpoints" / "base"
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

    def _load_tasks(self) -> dict[str, Task]:
        return {task.id: task for task in TaskStore(self._folder / TASKS_FOLDER).load()}

    def _train(self, run: Run) -> None:
        config = self._config
        self._phase("teacher", lambda: _ignore(collect_successes(run, PolicyRef("teacher"), config.teacher, "teacher")))
        self._phase("sft", lambda: self._fit(run, "teacher", PolicyRef("teacher"), "base", "sft"))
        self._phase("own", lambda: _ignore(collect_successes(run, run.policy("sft"), config.own, "own")))
        self._phase("rft", lambda: self._fit(run, "own", run.policy("sft"), "sft", "rft"))
        self._phase("rl", lambda: self._reinforce(run))

    def _fit(self, run: Run, phase: str, policy: PolicyRef, start: str, stage: str) -> None:
        collect, config = (
            (self._config.teacher, self._config.sft) if stage == "sft" else (self._config.own, self._config.rft)
        )
        kept = collect_successes(run, policy, collect, phase)
        samples = supervised_samples(kept, config)
        fit_samples(run.checkpoint(start), run.checkpoint(stage), samples, config, run.store, run.progress)

    def _reinforce(self, run: Run) -> None:
        loop = RLLoop(run, self._config.rl, "rft", self._config.watch.alarms)
        self._look(run, loop)  # at the start, or at what a kill left undone
        with closing(loop.iterations()) as iterations:
            for metrics in iterations:
                detail = f"reward {metrics['rollout/reward_mean']:.2f}, {metrics['rollout/num_turns_mean']:.1f} turns"
                self._progress("rl", loop.num_done, 0, detail)
                self._look(run, loop)
                if self._budget.is_rl_over():
                    break
        loop.keep("rl")
        loop.close()

    def _look(self, run: Run, loop: RLLoop) -> None:
        """Validate and keep the weights, every so many iterations; what is done already is not run again."""
        if loop.num_done % self._config.rl.validation_every == 0:
            self._validate(run, loop, loop.num_done)
            if loop.num_done:
                loop.keep(f"{CHECKPOINT}{loop.num_done:04d}")

    def _validate(self, run: Run, loop: RLLoop, step: int) -> None:
        tasks = run.select("validation", limit=self._config.rl.num_validation_tasks)
        if tasks:
            score = evaluate(run, f"{CHECKPOINT}{step:04d}", loop.policy(), VALIDATION, tasks, 1)
            run.store.add_metrics("rl", step, {"validation/pass_at_1": score})

    def _evaluate(self, run: Run) -> None:
        config = self._config.evaluation
        kept = [path.name for path in (self._folder / "checkpoints").glob(f"{CHECKPOINT}*")]
        for stage in (*self._plan.stages, *self._plan.checkpoint_stages(kept)):
            if stage.name == CONTINUED:
                self._phase(CONTINUED, lambda: self._continue(run))
            tests = run.select("test", limit=stage.num_tasks)
            self._evaluate_once(run, stage.name, _policy(run, stage), MUTATIONS, tests, stage.num_samples)
        releases = run.select("test", "releases", limit=config.num_release_tasks)
        for name in ("rft", "rl"):
            self._evaluate_once(run, name, run.policy(name), RELEASES, releases, config.num_samples)

    def _evaluate_once(
        self, run: Run, stage: str, policy: PolicyRef, test_set: str, tasks: list[Task], num_samples: int
    ) -> None:
        if self._store.phase_status(eval_phase(stage, test_set)) != "done":
            evaluate(run, stage, policy, test_set, tasks, num_samples)

    def _continue(self, run: Run) -> None:
        """Supervised control: the RFT set, from the RFT policy, for the CPU seconds that RL used."""
        kept = collect_successes(run, run.policy("sft"), self._config.own, "own")
        used = next(row.cpu_s for row in self._store.phases() if row.name == "rl")
        samples = supervised_samples(kept, self._config.rft)
        continue_supervised(run, "rft", CONTINUED, samples, self._config.rft, used)


def _policy(run: Run, stage: EvalStage) -> PolicyRef:
    return run.policy(stage.checkpoint, temperature=stage.temperature) if stage.checkpoint else PolicyRef(stage.name)


def _ignore(value: object) -> None:
    """Phases are actions: what they return is in the store."""

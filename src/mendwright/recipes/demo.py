"""The whole loop on one machine: tasks, SFT, RFT, DAPO, evaluation (design section 2), within a wall-clock budget.

Reads a `DemoConfig`; makes a run folder. Invariants: every phase can be interrupted and resumed; the plan for a budget
follows from the config alone, only the number of DAPO iterations depends on the machine's speed; test tasks are touched
by evaluation only.
"""

from __future__ import annotations

import fcntl
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from mendwright.config.recipes import CollectConfig, DemoConfig
from mendwright.config.tasks import SplitLimits
from mendwright.errors import InputError
from mendwright.models.loading import load_tokenizer
from mendwright.recipes.dapo import DapoLoop
from mendwright.recipes.evaluate import eval_phase, evaluate
from mendwright.recipes.held_out import held_out_digests
from mendwright.recipes.pretraining import pretrain
from mendwright.recipes.progress import Progress, no_progress
from mendwright.recipes.run import Run
from mendwright.recipes.supervised import (
    collect_successes,
    continue_supervised,
    fit_samples,
    supervised_samples,
)
from mendwright.records import Task
from mendwright.rollout.jobs import PolicyRef, Pool
from mendwright.rollout.pool import WorkerPool
from mendwright.rollout.store import RunStore
from mendwright.rollout.worker import WorkerSetup
from mendwright.tasks import building
from mendwright.tasks.catalogue import load_catalogue
from mendwright.tasks.layers import LayerStore
from mendwright.tasks.store import TaskStore

REFERENCE_MINUTES = 15.0
"""The sizes in `DemoConfig` are for this budget; others scale with it."""
CONTINUED_CONTROL_MINUTES = 40.0
"""Below this budget the continued-training control has no room: it costs as much as RL itself."""
TASKS_FOLDER = "tasks"
TESTS = "test-mutations"
VALIDATION = "validation-mutations"
RELEASES = "test-releases"


@dataclass(frozen=True)
class Plan:
    """A demo config fitted to its budget, and when RL has to stop."""

    config: DemoConfig
    rl_share: float
    """Share of the budget at which RL ends; what follows is evaluation."""
    has_continued_control: bool


def plan_demo(config: DemoConfig) -> Plan:
    """Sizes for ``config.minutes``: collections and evaluations grow slower than the budget, RL takes the rest."""
    factor = config.minutes / REFERENCE_MINUTES
    limits, evaluation = config.tasks.limits, config.evaluation
    tasks = config.tasks.model_copy(
        update={
            "packages": config.tasks.packages or chosen_packages(config, factor),
            "limits": SplitLimits(
                train=_scaled(limits.train, factor, 24),
                validation=_scaled(limits.validation, factor, 8),
                test=_scaled(limits.test, factor, 16),
            ),
        }
    )
    sizes = {
        "num_tasks": _scaled(evaluation.num_tasks, factor, 16),
        "num_release_tasks": _scaled(evaluation.num_release_tasks, factor, 2),
    }
    fitted = config.model_copy(
        update={
            "tasks": tasks,
            "teacher": _scaled_collection(config.teacher, factor),
            "own": _scaled_collection(config.own, factor),
            "evaluation": evaluation.model_copy(update=sizes),
        }
    )
    has_control = evaluation.is_continued_control and config.minutes >= CONTINUED_CONTROL_MINUTES
    return Plan(fitted, 0.5 if has_control else 0.7, has_control)


def chosen_packages(config: DemoConfig, factor: float) -> tuple[str, ...]:
    """The packages of a budget: below the reference, in each split those with the most tasks, at least two.

    Each package costs a trace of its suite, however few tasks are wanted of it.
    """
    packages = load_catalogue(Path(config.tasks.catalogue) if config.tasks.catalogue else None).select()
    chosen: list[str] = []
    for split in config.tasks.splits:
        ranked = sorted((p for p in packages if p.split == split), key=lambda p: (-p.num_tasks, p.name))
        chosen += [package.name for package in ranked[: _scaled(len(ranked), factor, 2) if factor < 1 else None]]
    return tuple(chosen)


def _scaled(number: int, factor: float, least: int) -> int:
    """Linear below the reference budget, by the square root above it."""
    return max(least, round(number * (factor if factor < 1 else factor**0.5)))


def _scaled_collection(config: CollectConfig, factor: float) -> CollectConfig:
    return config.model_copy(update={"num_tasks": _scaled(config.num_tasks, factor, 12)})


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
        done = (row for row in self._store.phases() if not row.name.startswith("eval/dapo-step"))
        self._started = time.monotonic() - sum(row.wall_s for row in done)

    def run(self) -> None:
        """All phases, in order. Ctrl-C leaves a run that the same call resumes.

        Raises:
            InputError: another process works on this run.
        """
        with self._store, locked(self._folder):
            self._store.plan_phases(planned_phases(self._plan))
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

    def _elapsed_share(self) -> float:
        return (time.monotonic() - self._started) / (60.0 * self._config.minutes)

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
        self._phase("dapo", lambda: self._reinforce(run))

    def _fit(self, run: Run, phase: str, policy: PolicyRef, start: str, stage: str) -> None:
        collect, config = (
            (self._config.teacher, self._config.sft) if stage == "sft" else (self._config.own, self._config.rft)
        )
        kept = collect_successes(run, policy, collect, phase)
        samples = supervised_samples(kept, config)
        fit_samples(run.checkpoint(start), run.checkpoint(stage), samples, config, run.store, run.progress)

    def _reinforce(self, run: Run) -> None:
        loop = DapoLoop(run, self._config.rl, "rft")
        if loop.num_done == 0:
            self._validate(run, loop, 0)
        every = self._config.rl.validation_every
        for metrics in loop.iterations():
            detail = f"reward {metrics['rollout/reward_mean']:.2f}, {metrics['rollout/num_turns_mean']:.1f} turns"
            self._progress("dapo", loop.num_done, 0, detail)
            if loop.num_done % every == 0:
                self._validate(run, loop, loop.num_done)
                loop.keep(f"dapo-step-{loop.num_done:04d}")
            if self._elapsed_share() >= self._plan.rl_share:
                break
        loop.keep("dapo")

    def _validate(self, run: Run, loop: DapoLoop, step: int) -> None:
        tasks = run.select("validation", limit=self._config.rl.num_validation_tasks)
        if tasks:
            score = evaluate(run, f"dapo-step-{step:04d}", loop.policy(), VALIDATION, tasks, 1)
            run.store.add_metrics("dapo", step, {"validation/pass_at_1": score})

    def _evaluate(self, run: Run) -> None:
        config = self._config.evaluation
        tests = run.select("test", limit=config.num_tasks)
        releases = [task for task in run.tasks.values() if task.source == "releases" and task.split == "test"]
        for stage, policy, num_samples in self._stages(run):
            self._evaluate_once(run, stage, policy, TESTS, tests, num_samples)
        for stage in ("rft", "dapo"):
            policy = run.policy(stage)
            self._evaluate_once(run, stage, policy, RELEASES, releases[: config.num_release_tasks], config.num_samples)
        if self._plan.has_continued_control:
            self._phase("sft-continued", lambda: self._continue(run))
            policy = run.policy("sft-continued")
            self._evaluate_once(run, "sft-continued", policy, TESTS, tests, config.num_main_samples)
        few = tests[: max(8, len(tests) // 4)]
        self._evaluate_once(run, "rft-pass-at-k", run.policy("rft"), TESTS, few, config.num_start_samples)

    def _stages(self, run: Run) -> list[tuple[str, PolicyRef, int]]:
        config = self._config.evaluation
        stages = [
            ("rft", run.policy("rft"), config.num_main_samples),
            ("dapo", run.policy("dapo"), config.num_main_samples),
        ]
        stages += [
            (f"rft-t{temperature:g}", run.policy("rft", temperature=temperature), config.num_samples)
            for temperature in config.temperatures
        ]
        stages += [(stage, run.policy(stage), config.num_samples) for stage in ("sft", "base")]
        return stages + [(name, PolicyRef(name), 1) for name in ("random", "submit-at-once")]

    def _evaluate_once(
        self, run: Run, stage: str, policy: PolicyRef, test_set: str, tasks: list[Task], num_samples: int
    ) -> None:
        if self._store.phase_status(eval_phase(stage, test_set)) != "done":
            evaluate(run, stage, policy, test_set, tasks, num_samples)

    def _continue(self, run: Run) -> None:
        """Supervised control: the RFT set, from the RFT policy, for the CPU seconds that RL used."""
        kept = collect_successes(run, run.policy("sft"), self._config.own, "own")
        used = next(row.cpu_s for row in self._store.phases() if row.name == "dapo")
        samples = supervised_samples(kept, self._config.rft)
        continue_supervised(run, "rft", "sft-continued", samples, self._config.rft, used)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the run folder for this process; the lock goes with the process, however it ends.

    Raises:
        InputError: another process holds it.
    """
    with (folder / ".lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InputError(f"another process works on {folder}; wait for it or stop it first") from None
        yield


def planned_phases(plan: Plan) -> list[str]:
    """Every phase that a demo is going to have, validation during RL apart."""
    stages = ["rft", "dapo", *(f"rft-t{t:g}" for t in plan.config.evaluation.temperatures)]
    stages += ["sft", "base", "random", "submit-at-once", *(["sft-continued"] if plan.has_continued_control else [])]
    phases = ["base", "tasks", "teacher", "sft", "own", "rft", "dapo"]
    phases += [eval_phase(stage, TESTS) for stage in stages]
    return phases + [eval_phase(stage, RELEASES) for stage in ("rft", "dapo")]


def shipped_base() -> Path:
    """Folder of the base model that ships with the package.

    Raises:
        InputError: this installation holds none.
    """
    folder = Path(str(resources.files("mendwright") / "data" / "base"))
    if not (folder / "model.safetensors").is_file():
        raise InputError(f"no base model in {folder}; run with --from-scratch, or name a model folder with base=FOLDER")
    return folder


def _ignore(value: object) -> None:
    """Phases are actions: what they return is in the store."""

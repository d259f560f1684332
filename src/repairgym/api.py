"""The public Python API: tasks in, trajectories, verdicts and trained checkpoints out.

Thin functions over the layers below; `docs/reference/api.md` describes them and their deprecation policy. Settings
default to those of the demo, which fit the shipped base. Guarantees: training sees tasks of the train split only; a
call on an existing run folder resumes it and repeats no stored episode.
"""

import hashlib
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from repairgym.agent.scripted import find_script
from repairgym.config.commands import GradeCommandConfig
from repairgym.config.learning import AlgorithmConfig, SftConfig
from repairgym.config.loading import load_config
from repairgym.config.recipes import DemoConfig, RlConfig
from repairgym.config.rollout import RolloutConfig
from repairgym.config.tasks import SplitLimits, TasksConfig
from repairgym.errors import InputError
from repairgym.grading.predictions.pool import GradeRequest, GradingPool
from repairgym.inference.loading import copy_folder, load_tokenizer, shipped_base
from repairgym.learning import losses
from repairgym.learning.advantages import group_advantages as _group_advantages
from repairgym.learning.learner import Learner
from repairgym.records import SourceKind, Split, Task, Trajectory, Verdict
from repairgym.rollout.calls import locked
from repairgym.rollout.jobs import PolicyRef, make_groups
from repairgym.rollout.names import BASE, RL, SFT, TURNS_FOLDER
from repairgym.rollout.pool import WorkerPool
from repairgym.rollout.store import RunStore
from repairgym.rollout.workers import WorkerSetup
from repairgym.tasks.build.build_tasks import build
from repairgym.tasks.curation.candidate import place_of
from repairgym.tasks.layers.catalogue import load_catalogue
from repairgym.tasks.layers.environments import lock_name, write_lock
from repairgym.tasks.store import TaskStore
from repairgym.training import evaluate as evaluation
from repairgym.training.rl_loop import run_rl_stage
from repairgym.training.run import Progress, Run, no_progress
from repairgym.training.supervised import accept_fitted, fit_samples, keep_successes, supervised_samples

__all__ = [
    "Learner",
    "Run",
    "Task",
    "Trajectory",
    "Verdict",
    "build_tasks",
    "evaluate",
    "grade",
    "group_advantages",
    "load_config",
    "load_policy",
    "load_tasks",
    "open_run",
    "policy_loss",
    "run_episodes",
    "shipped_base",
    "split_tasks",
    "train_rl",
    "train_sft",
]
_DEMO = DemoConfig()


def build_tasks(
    folder: str | Path,
    packages: Sequence[str] = (),
    *,
    num_tasks: int = 16,
    sources: Sequence[SourceKind] = ("mutations",),
    catalogue: str | Path = "",
    locks: str | Path = "",
) -> list[Task]:
    """Build certified tasks in ``folder`` and return them; finished packages are not built again.

    ``packages`` are names in ``catalogue``, a TOML file that describes your packages or repositories (empty: all, of
    the shipped one). ``num_tasks`` bounds the mutation tasks of each split.
        locks: Folder of locks; with a ``catalogue`` of yours, missing ones are made (default: ``folder/locks``).

    Raises:
        IndexUnavailableError: a package cannot be downloaded.
        SandboxUnavailableError: this machine cannot isolate.
    """
    limits = SplitLimits(train=num_tasks, validation=num_tasks, test=num_tasks)
    if catalogue:
        locks = Path(locks or Path(folder) / "locks")
        for requirements in load_catalogue(Path(catalogue)).requirement_sets():
            if not (locks / lock_name(requirements)).exists():
                write_lock(requirements, locks)
    changes = {"packages": tuple(packages), "sources": tuple(sources), "limits": limits}
    changes |= {"catalogue": str(catalogue), "locks": str(locks)}
    config = TasksConfig.model_validate(_DEMO.tasks.model_copy(update=changes).model_dump())
    return list(build(config, Path(folder)).load())


def load_tasks(folder: str | Path, split: Split | None = None, source: SourceKind | None = None) -> list[Task]:
    """Return the certified tasks of a task folder, of one split or source if given.

    Raises:
        InputError: the folder holds no tasks.
    """
    return list(TaskStore(Path(folder)).load(split, source))


def split_tasks(tasks: Sequence[Task], test_share: float = 0.3) -> list[Task]:
    """Return copies of ``tasks`` with the split ``train`` or ``test``; tasks of one function are never in both.

    The shipped catalogue assigns whole packages to splits. Use this for tasks of a single package.
    """
    places = sorted({place_of(task) for task in tasks}, key=lambda place: hashlib.sha256(place.encode()).digest())
    test_places = set(places[: min(len(places) - 1, max(1, round(test_share * len(places))))])
    return [task.model_copy(update={"split": "test" if place_of(task) in test_places else "train"}) for task in tasks]


def load_policy(name: str | Path, *, temperature: float = 1.0) -> PolicyRef:
    """Return a policy: a model folder, ``base`` (the shipped model), or a script such as ``teacher`` or ``oracle``.

    Raises:
        InputError: there is no such folder or script.
        ModelFolderError: the folder holds no model.
    """
    if find_script(str(name)) is not None:
        return PolicyRef(str(name))
    folder = shipped_base() if name == BASE else Path(name)
    if not folder.is_dir():
        raise InputError(f"got policy {str(name)!r}, expected a model folder, base, oracle, teacher or another script")
    load_tokenizer(folder)
    return PolicyRef(folder.name, str(folder), temperature=temperature)


@contextmanager
def open_run(
    folder: str | Path,
    tasks: Sequence[Task],
    model: str | Path | None = None,
    *,
    config: RolloutConfig | None = None,
    seed: int = 0,
    progress: Progress = no_progress,
) -> Iterator[Run]:
    """Open a run folder, locked, with worker processes on this machine; an existing run is resumed.

    ``tasks`` are all that the run may use. ``model`` becomes checkpoint ``base`` (None: the shipped base, or what an
    existing run has there). ``seed`` decides the sampling of every episode. ``progress`` is called with phase, number
    done, total and a detail.

    Raises:
        InputError: another process works on the run, an earlier version made it, or it was begun with another model.
        ModelFolderError: ``model`` holds no model.
    """
    folder, source = Path(folder), Path(model) if model else shipped_base()
    load_tokenizer(source)
    base = folder / "checkpoints" / BASE
    base.parent.mkdir(parents=True, exist_ok=True)
    path = folder / "run.db"
    with locked(folder):
        if not base.exists():
            copy_folder(source, base)
        elif model and evaluation.weights_digest(source) != evaluation.weights_digest(base):
            raise InputError(f"{folder} was begun with another model than {source}; name another run folder")
        config = config or _DEMO.rollout
        store = RunStore.open(path) if path.exists() else RunStore.create(path)
        with store, WorkerPool(WorkerSetup(config, str(base), turns_folder=str(folder / TURNS_FOLDER))) as pool:
            yield Run(folder, store, pool, {task.id: task for task in tasks}, seed, progress, config.sandbox)


def run_episodes(
    run: Run, policy: PolicyRef, tasks: Sequence[Task] = (), *, num_samples: int = 1, phase: str = "rollout"
) -> list[Trajectory]:
    """Run ``num_samples`` episodes on each of ``tasks`` (empty: all of the run) and return the graded trajectories.

    A ``phase`` holds the episodes of one policy, as it was at the first call.

    Raises:
        InputError: ``phase`` was begun with another policy (also with other weights of it), other settings or seed.
        SandboxError: too many episodes in a row are invalid.
    """
    identity = evaluation.with_seed(evaluation.policy_fingerprint(policy, run.pool.config), run.seed)
    evaluation.check_fingerprint(run.store, phase, identity)
    jobs = make_groups(phase, 0, [task.id for task in tasks or run.tasks.values()], num_samples, run.seed)
    with run.store.phase(phase, identity):
        return run.run_jobs(policy, jobs, phase=phase)


def grade(task: Task, patch: str, config: GradeCommandConfig | None = None) -> Verdict:
    """Grade a unified diff as a submission to ``task``, in a process and a sandbox of its own.

    Raises:
        SandboxUnavailableError: this machine cannot isolate.
    """
    config = config or GradeCommandConfig(num_workers=1)
    with GradingPool(config) as pool:
        ((_, answer),) = pool.run([GradeRequest(task, patch)])
    return answer.verdict


def evaluate(
    run: Run,
    policy: PolicyRef,
    tasks: Sequence[Task] = (),
    *,
    num_samples: int = 1,
    test_set: str = "test",
    stage: str = "",
) -> float:
    """Return the mean Pass@1 of ``policy`` on ``tasks`` (empty: the run's test tasks); invalid counts as failed.

    The result is stored as ``stage`` (empty: the policy's name). A policy that was trained further needs another one.

    Raises:
        ConfigError: the sandbox does not isolate.
        InputError: ``stage`` on ``test_set`` was begun with another policy, other settings or another seed.
    """
    tasks = tasks or [task for task in run.tasks.values() if task.split == "test"]
    identity = evaluation.policy_fingerprint(policy, run.pool.config)
    return evaluation.evaluate(run, stage or policy.name, policy, test_set, tasks, num_samples, fingerprint=identity)


def train_sft(
    run: Run,
    trajectories: Sequence[Trajectory],
    *,
    start: str = BASE,
    stage: str = SFT,
    max_per_task: int = 4,
    config: SftConfig | None = None,
) -> PolicyRef:
    """Imitate the passed trajectories from checkpoint ``start`` on; return checkpoint ``stage`` as a policy.

    A checkpoint of the same trajectories, settings and start is not fitted again; others replace it.

    Raises:
        InputError: a trajectory is of a task outside the train split, or none passed.
    """
    config, begin, target = config or _DEMO.sft, run.checkpoint(start), run.checkpoint(stage)
    if any(run.tasks[trajectory.task_id].split != "train" for trajectory in trajectories):
        raise InputError("got trajectories of validation or test tasks, expected train tasks only")
    successes = keep_successes(trajectories, max_per_task)
    if not successes:
        raise InputError(f"none of {len(trajectories)} trajectories passed, so there is nothing to imitate")
    samples = supervised_samples(successes, config, load_tokenizer(begin))
    accept_fitted(begin, target, samples, config)
    with run.store.phase(stage):
        fit_samples(begin, target, samples, config, run.store, run.progress)
    return run.policy(stage)


def train_rl(
    run: Run,
    *,
    start: str = BASE,
    stage: str = RL,
    config: RlConfig | None = None,
    num_iterations: int = 10,
    num_groups: int | None = None,
    task_ids: Collection[str] | None = None,
) -> PolicyRef:
    """Train by RL from checkpoint ``start`` on; return checkpoint ``stage`` as a policy.

    ``num_iterations`` counts the whole stage, earlier calls included. ``num_groups`` per iteration replaces that of
    ``config``. ``task_ids`` are the training tasks to use (None: all).

    Raises:
        TaskError: the run has no training task.
    """
    sizes = {"num_groups": num_groups, "num_groups_sampled": num_groups} if num_groups else {}
    config = (config or _DEMO.rl).model_copy(update={"max_iterations": num_iterations, **sizes})
    run_rl_stage(run, config, start, stage, task_ids=task_ids)
    return run.policy(stage)


def group_advantages(rewards: Sequence[float | None]) -> list[float]:
    """Return the GRPO advantage of each member of a group; None marks an invalid episode, which gets 0."""
    return list(_group_advantages(rewards).values)


def policy_loss(algorithm: str = "dapo") -> losses.Loss:
    """Return the loss of a named algorithm (`dapo`, `grpo`, ...) for `Learner.step`.

    Raises:
        ConfigError: there is no such algorithm.
    """
    return losses.policy_loss(load_config(AlgorithmConfig, overrides=[f"preset={algorithm}"]).loss)

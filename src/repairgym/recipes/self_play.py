"""Self-play: RL on tasks that evolve with the policy (EigenData, arXiv 2601.22607; SSR, arXiv 2512.18552).

1. RL on the tasks so far (stage ``rl-0``).
2. With an injector, the policy plants bugs in repaired code (phase ``inject-1``).
3. The next generation comes from the failures of the last stage, from the injected bugs, and from the plan.
4. RL on all generations (``rl-1``). Its solve rates reward the injections, and the policy learns from them.

Reads certified mutations. Makes, in the run folder, ``tasks`` (those of all generations), ``generations/N`` and the
checkpoint ``self_play``. Guarantees: validation and test tasks never change; a bug is injected where the agent of a
task may edit, and becomes a task like any other bug; nothing comes from an exploited injection; a killed run resumes; a
stage stays as it is once the next one has begun from it, also where its bounds have grown.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from repairgym.config.rounds import SelfPlayConfig
from repairgym.inference.loading import copy_folder
from repairgym.learning.checkpoints import MODEL_FOLDER
from repairgym.learning.rewards import Rewards
from repairgym.recipes.dapo_two_stage import solve_rates
from repairgym.recipes.evolution.generation import evolve, packages_of
from repairgym.records import Task, Trajectory, VerdictKind
from repairgym.rollout.jobs import make_groups
from repairgym.tasks.layers.store import LayerStore
from repairgym.tasks.mutation.plan import PLAN_FILE, injector_reward
from repairgym.tasks.mutation.text_edits import INJECTED
from repairgym.tasks.selection import select_tasks
from repairgym.tasks.sources.evolved import LeftBug, text_digest
from repairgym.tasks.store import MANIFEST_FILE, TaskStore
from repairgym.training.rl_loop import has_successor, run_rl_stage, state_name
from repairgym.training.rollout_batch import RolloutBatch, advantages_of, make_trajectory_groups, samples_of
from repairgym.training.run import Run
from repairgym.training.updates import UpdateWork

START = "start"
STAGE = "self_play"
TASKS_FOLDER, GENERATIONS_FOLDER = "tasks", "generations"
_INJECTED_ID = "{}!inject"


def self_play(run: Run, source: TaskStore, config: SelfPlayConfig, layers: LayerStore | None = None) -> Path:
    """From checkpoint ``start`` of ``run``, whose tasks are those of ``source``, to ``self_play``; returns its folder.

    Raises:
        ConfigError: no training task, or no training mutation to evolve.
        InputError: no package of the tasks is in the catalogue.
    """
    if not config.is_static:
        settings = config.evolution(1, "", "")
        packages_of(source, select_tasks(run.tasks.values(), settings.select).tasks, settings, Counter())
    current, previous, task_ids = START, source, None
    for number in range(config.num_rounds):
        if number and not config.is_static:
            previous = _next_generation(run, config, source, previous, number, current, layers)
            newest = {task.id: task for task in previous.load()}
            run.tasks = run.tasks | newest
            _save_tasks(run, source, previous)
            task_ids = newest if config.trained == "newest" else None
        stage = f"rl-{number}"
        if not has_successor(run, stage, (_learned_name(stage), _phase(number + 1), f"rl-{number + 1}")):
            run_rl_stage(run, config.rl, current, stage, config.watch.alarms, task_ids)
        current = stage
        if number and number + 1 < config.num_rounds and config.num_injected_tasks:
            current = _learn_injections(run, config, previous, number, stage)
    target = run.checkpoint(STAGE)
    copy_folder(run.checkpoint(current), target)
    return target


def _next_generation(
    run: Run,
    config: SelfPlayConfig,
    source: TaskStore,
    previous: TaskStore,
    number: int,
    current: str,
    layers: LayerStore | None,
) -> TaskStore:
    """Return the folder of generation ``number``, made where it is not whole yet; ``current`` injects."""
    output = TaskStore(run.folder / GENERATIONS_FOLDER / str(number))
    if output.load_document(PLAN_FILE):  # written last
        return output
    injected = injected_bugs(_inject(run, config, number, current), run.tasks) if config.num_injected_tasks else []
    everything = _save_tasks(run, source, previous)
    settings, phase = config.evolution(number, **_places(source)), f"rl-{number - 1}"
    made = evolve(
        everything, output, [run.folder], settings, run.progress, phase=phase, injected=injected, layers=layers
    )
    run.progress(f"generation {number}", 0, 0, f"{len(made.tasks)} new tasks")
    return output


def _places(source: TaskStore) -> dict[str, str]:
    """Return catalogue and locks with which the first tasks were built."""
    built_by = source.load_document(MANIFEST_FILE).get("config", {})
    return {name: built_by.get(name, "") for name in ("catalogue", "locks")}


def _save_tasks(run: Run, source: TaskStore, previous: TaskStore) -> TaskStore:
    """Write the tasks of all generations so far, with the newest plan, into the run folder."""
    everything = TaskStore(run.folder / TASKS_FOLDER)
    everything.save(run.tasks.values(), {}, {"config": _places(source)})
    if plan := previous.load_document(PLAN_FILE):
        everything.save_document(PLAN_FILE, plan)
    return everything


# --- injections ------------------------------------------------------------------------------------------------------


def _inject(run: Run, config: SelfPlayConfig, number: int, current: str) -> list[Trajectory]:
    """Return the injections before generation ``number``; those of an earlier call are not made again."""
    chosen = select_tasks(run.tasks.values(), config.evolution(number, "", "").select).tasks
    order = make_groups(_phase(number), 0, [task.id for task in chosen], 1, run.seed + number)
    # By the seeds of their jobs: other tasks in each round, in an order that mixes packages.
    drawn = [job.task_id for job in sorted(order, key=lambda job: job.seed)][: config.num_injected_tasks]
    sound = {task.id: task for task in map(sound_copy, (run.tasks[task_id] for task_id in drawn))}
    jobs = make_groups(_phase(number), 0, list(sound), config.num_injections, run.seed)
    with run.store.phase(_phase(number)):
        return replace(run, tasks=sound).run_jobs(run.policy(current), jobs, phase=_phase(number))


def _phase(number: int) -> str:
    return f"inject-{number}"


def sound_copy(task: Task) -> Task:
    """Return ``task`` repaired, to plant a bug in: its tests pass, and the report asks for one that they find."""
    place = f"{task.location.name} in {task.location.path}" if task.location else "the code"
    return task.model_copy(
        update={
            "id": _INJECTED_ID.format(task.id),
            "issue": f"{place} is right: plant a bug there that its tests find",
            "base_files": {**task.base_files, **task.gold_files},
            "gold_patch": "",
        }
    )


def injected_bugs(injections: Iterable[Trajectory], tasks: Mapping[str, Task]) -> list[LeftBug]:
    """Return the bugs that tests found, in the files that the agents of their tasks may edit."""
    owners = {_INJECTED_ID.format(task_id): task for task_id, task in tasks.items()}
    return [
        LeftBug(owners[injection.task_id], text, INJECTED)
        for injection in injections
        if (text := _planted(injection, owners[injection.task_id])) is not None
    ]


def _planted(injection: Trajectory, task: Task) -> str | None:
    """Return the file that a successful injection left; None: no test found a bug, or it is elsewhere."""
    changed = set(injection.final_files) - set(task.test_paths)
    if injection.verdict.kind is not VerdictKind.FAILED or task.location is None or changed != {task.location.path}:
        return None
    return injection.final_files[task.location.path]


def injection_rewards(
    injections: Sequence[Trajectory],
    tasks: Mapping[str, Task],
    rates: Mapping[str, float],
    rejected: frozenset[str],
    alpha: float,
) -> Rewards:
    """Return the rewards of injections: of the solve rate of the task with that bug (`injector_reward`).

    -1 where there is no bug, or it was tried and is no task. None where infrastructure failed, or nothing is known: the
    bug was not tried (the generation was full), or no episode was on it.

    Args:
        injections: Episodes of sound copies.
        tasks: All tasks by id, with the broken files of the certified bugs.
        rates: Task id -> solve rate of the policy that repairs.
        rejected: `text_digest` of the bugs that were tried and are no task.
        alpha: Of the reward.
    """
    owners = {_INJECTED_ID.format(task_id): task for task_id, task in tasks.items()}
    known = {
        text_digest(path, task.base_files.get(path)): rates.get(task.id)
        for task in tasks.values()
        for path in task.gold_files
    }
    rewards: list[float | None] = []
    for injection in injections:
        task, reward = owners[injection.task_id], None
        text = _planted(injection, task)
        digest = text_digest(task.location.path if task.location else "", text)
        if injection.verdict.is_valid and (text is None or (digest not in known and digest in rejected)):
            reward = injector_reward(None)
        elif injection.verdict.is_valid and (rate := known.get(digest)) is not None:
            reward = injector_reward(rate, alpha)
        rewards.append(reward)
    return tuple(rewards)


def _learn_injections(run: Run, config: SelfPlayConfig, generation: TaskStore, number: int, stage: str) -> str:
    """Update ``stage`` by the injections of round ``number``; return the checkpoint, the same one without a signal."""
    phase, rejected = _phase(number), frozenset(generation.load_document(PLAN_FILE)["tried"])
    rates = solve_rates(run.store, stage, 1)
    injections = sorted(run.store.trajectories(phase=phase), key=lambda injection: injection.id)
    batch = RolloutBatch(0, injections)
    # Of all at once: each call digests the broken files of all tasks.
    rewards = injection_rewards(injections, run.tasks, rates, rejected, config.injector_alpha)
    by_id = {injection.id: reward for injection, reward in zip(injections, rewards, strict=True)}
    batch.groups = make_trajectory_groups(injections, lambda group: tuple(by_id[injection.id] for injection in group))
    batch.advantages = advantages_of(batch.groups, config.rl.algorithm)
    samples = samples_of(batch.groups, batch.advantages, config.rl.algorithm)
    metrics = _metrics(batch)
    run.progress(phase, 0, 0, f"mean reward {metrics['injector/reward_mean']:.2f}, {len(samples)} injections learned")
    if not samples:
        run.store.add_metrics(phase, 0, metrics)
        return stage
    target = _learned_name(stage)
    state = run.checkpoint(state_name(target))
    updates = UpdateWork(run.checkpoint(stage), state, config.rl).lead()
    if not updates.num_done:
        metrics |= updates.lead(samples, [], 0.0)
        run.store.add_metrics(phase, 0, metrics)
        updates.commit()
    copy_folder(state / MODEL_FOLDER, run.checkpoint(target))
    updates.close()
    return target


def _learned_name(stage: str) -> str:
    """Return the name of ``stage`` after it has learned from injections."""
    return f"{stage}-injector"


def _metrics(batch: RolloutBatch) -> dict[str, float]:
    rewards = batch.shaped_rewards
    return {
        "injector/num_injections": float(len(batch.trajectories)),
        "injector/num_bugs": float(sum(it.verdict.kind is VerdictKind.FAILED for it in batch.trajectories)),
        "injector/num_rewarded": float(len(rewards)),
        "injector/num_learnable": float(sum(reward > -1.0 for reward in rewards)),
        "injector/reward_mean": sum(rewards) / max(1, len(rewards)),
    }

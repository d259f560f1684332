"""Studies in which nothing is learned: the matrix of policies and environments, the scaffold check, the exploit study.

The scaffold check runs the oracle, which must solve every task by its own tools, and an agent that does nothing, which
must solve none. In the exploit study the share of episodes that cheat rises from step to step: with gates off the
reported reward rises while the true one falls, which `training/evaluate.py` must find from the submissions alone. All
use the episode loop, tools and grader of any model. Stored episodes do not run again.
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from itertools import groupby
from pathlib import Path

from repairgym.config.commands import ExploitStudyConfig, MatrixConfig
from repairgym.config.rollout import RolloutConfig
from repairgym.records import Record, Task, Trajectory, VerdictKind
from repairgym.rollout.jobs import PolicyRef, make_groups
from repairgym.rollout.names import cell_stage, eval_phase
from repairgym.training.evaluate import (
    check_fingerprint,
    evaluate,
    policy_fingerprint,
    selection_fingerprint,
    tokenizer_digest,
    with_seed,
)
from repairgym.training.run import Run

# --- the matrix ----------------------------------------------------------------------------------------------------

OpenEnvironment = Callable[[RolloutConfig, Path], AbstractContextManager[Run]]
"""(environment, folder whose tokenizer is used) -> an open run over the matrix's store."""


def run_matrix(
    config: MatrixConfig,
    policies: Mapping[str, PolicyRef],
    open_environment: OpenEnvironment,
    fallback: Path,
    keep: Callable[[], None] = lambda: None,
) -> None:
    """Fill the matrix with trajectories under ``eval/<policy>@<environment>/<test set>``.

    Each cell has the same tasks and number of samples; `evaluation.matrix` makes the table. ``policies`` has each name
    of ``config.policies``; ``fallback`` is the model folder whose tokenizer scripted policies use. ``keep`` is called
    once, within the first open run, when nothing contradicts what is stored.

    Raises:
        InputError: a cell was begun with another policy, environment, selection or seed.
    """
    test_set, identities, is_kept = config.select.set_name, _identities(config, policies), False
    for environment, rollout in config.environments.items():
        for model, names in _by_tokenizer(policies, fallback):
            with open_environment(rollout, model) as run:
                if not is_kept:
                    for stage, identity in identities.items():
                        check_fingerprint(run.store, eval_phase(stage, test_set), with_seed(identity, run.seed))
                    keep()
                    is_kept = True
                tasks = run.select(config.select, environment)
                for name in names:
                    policy, stage = policies[name], cell_stage(name, environment)
                    evaluate(run, stage, policy, test_set, tasks, config.num_samples, fingerprint=identities[stage])


def _identities(config: MatrixConfig, policies: Mapping[str, PolicyRef]) -> dict[str, dict[str, str]]:
    """Return stage -> fingerprint of each cell."""
    selected = selection_fingerprint(config.select)
    return {
        cell_stage(name, environment): policy_fingerprint(policies[name], rollout) | selected
        for environment, rollout in config.environments.items()
        for name in policies
    }


def _by_tokenizer(policies: Mapping[str, PolicyRef], fallback: Path) -> Iterator[tuple[Path, list[str]]]:
    """Policies that can share workers, with the folder of their tokenizer."""
    folders = {name: Path(policy.folder) if policy.folder else fallback for name, policy in policies.items()}
    digests = {name: tokenizer_digest(folder) for name, folder in folders.items()}
    for _, names in groupby(sorted(policies, key=lambda name: digests[name]), key=lambda name: digests[name]):
        together = list(names)
        yield folders[together[0]], [name for name in policies if name in together]


# --- the scaffold check --------------------------------------------------------------------------------------------

ORACLE = "oracle"
NOTHING = "submit-at-once"


class ScaffoldRates(Record):
    """Results of the two agents in one pipeline."""

    pipeline: str
    num_tasks: int
    num_solved: int
    """Tasks that the oracle solved."""
    num_solved_by_nothing: int
    num_invalid: int
    """Episodes of either that say nothing."""
    mean_turns: float
    """Of the oracle."""
    unsolved: tuple[str, ...] = ()
    """Ids of tasks that the oracle did not solve."""

    @property
    def is_sound(self) -> bool:
        """True when the oracle solved all tasks and doing nothing solved none."""
        return self.num_solved == self.num_tasks and not self.num_solved_by_nothing


def measure_scaffold(run: Run, name: str, tasks: Sequence[Task]) -> ScaffoldRates:
    """Both agents on ``tasks`` in the pipeline of the run's pool, which is stored under ``name``; resumable."""
    oracle, nothing = (_play(run, name, policy, tasks) for policy in (ORACLE, NOTHING))
    unsolved = [episode.task_id for episode in oracle if episode.verdict.kind is not VerdictKind.PASSED]
    return ScaffoldRates(
        pipeline=name,
        num_tasks=len(tasks),
        num_solved=len(oracle) - len(unsolved),
        num_solved_by_nothing=sum(episode.verdict.kind is VerdictKind.PASSED for episode in nothing),
        num_invalid=sum(not episode.verdict.is_valid for episode in (*oracle, *nothing)),
        mean_turns=sum(len(episode.turns) for episode in oracle) / max(1, len(oracle)),
        unsolved=tuple(unsolved),
    )


def chosen_tasks(run: Run, limit: int) -> list[Task]:
    """Tasks of all splits and sources, at most ``limit`` (0: all), drawn over all packages.

    They come package by package, so that few environments have to be warm at one time.
    """
    drawn = sorted(run.tasks.values(), key=lambda task: hashlib.sha256(task.id.encode()).digest())
    return sorted(drawn[: limit or None], key=lambda task: (task.provenance.package, task.id))


def _play(run: Run, name: str, policy: str, tasks: Sequence[Task]) -> list[Trajectory]:
    phase = f"scaffold/{name}/{policy}"
    jobs = make_groups(phase, 0, [task.id for task in tasks], 1, run.seed)
    with run.store.phase(phase):
        return run.run_jobs(PolicyRef(policy), jobs, phase=phase)


# --- the exploit study ---------------------------------------------------------------------------------------------

PHASE = "exploit-study"


def run_exploit_study(run: Run, config: ExploitStudyConfig, tasks: Sequence[Task]) -> list[float]:
    """Run all steps; returns the mean reported reward of each. What is stored is not run again."""
    rewards = []
    detail = {"disabled_gates": list(config.rollout.grading.disabled_gates), "num_tasks": len(tasks)}
    with run.store.phase(PHASE, detail):
        for step, share in enumerate(cheat_shares(config)):
            jobs = make_groups(PHASE, step, [task.id for task in tasks], config.num_samples, config.seed)
            policy = PolicyRef(f"mixture-{share:.3f}")
            episodes = run.run_jobs(policy, jobs, phase=PHASE, step=step, label=f"{PHASE} {step}")
            valid = [episode for episode in episodes if episode.verdict.is_valid]
            rewards.append(sum(episode.verdict.kind is VerdictKind.PASSED for episode in valid) / max(1, len(valid)))
            run.store.add_metrics(PHASE, step, {"cheat_share": share, "rollout/reward_mean": rewards[-1]})
    return rewards


def cheat_shares(config: ExploitStudyConfig) -> list[float]:
    """Share of cheats at each step, in equal steps from the first to the last."""
    span = config.last_cheat_share - config.first_cheat_share
    return [config.first_cheat_share + span * step / max(1, config.num_steps - 1) for step in range(config.num_steps)]

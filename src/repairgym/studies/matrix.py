"""Runs every policy in every environment of a matrix.

Reads a `MatrixConfig`; makes trajectories under ``eval/<policy>@<environment>/<test set>``. Invariants: each cell has
the same tasks and number of samples; a cell that was begun with another policy or environment of the same name is
rejected, so that a resumed matrix never mixes two; ``evaluation/matrix.py`` makes the table.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from itertools import groupby
from pathlib import Path

from repairgym.config.evaluation import MatrixConfig
from repairgym.config.rollout import RolloutConfig
from repairgym.rollout.jobs import PolicyRef
from repairgym.rollout.names import cell_stage
from repairgym.training.evaluate import evaluate, policy_fingerprint, tokenizer_digest
from repairgym.training.run import Run, select_tasks

OpenEnvironment = Callable[[RolloutConfig, Path], AbstractContextManager[Run]]
"""(environment, folder whose tokenizer is used) -> an open run over the matrix's store."""


def run_matrix(
    config: MatrixConfig,
    policies: Mapping[str, PolicyRef],
    open_environment: OpenEnvironment,
    fallback: Path,
) -> None:
    """Fill the matrix; what is stored is not run again.

    Args:
        config: Policies and environments.
        policies: Name -> policy, for each name of ``config.policies``.
        open_environment: Opens the run with an environment's workers.
        fallback: Model folder whose tokenizer scripted policies use.

    Raises:
        InputError: a cell was begun with another policy or environment.
    """
    test_set = f"{config.select.split}-{config.select.source}"
    for environment, rollout in config.environments.items():
        for model, names in _by_tokenizer(policies, fallback):
            with open_environment(rollout, model) as run:
                tasks = select_tasks(run, config.select)
                for name in names:
                    stage = cell_stage(name, environment)
                    policy = policies[name]
                    detail = policy_fingerprint(policy, rollout)
                    evaluate(run, stage, policy, test_set, tasks, config.num_samples, fingerprint=detail)


def _by_tokenizer(policies: Mapping[str, PolicyRef], fallback: Path) -> Iterator[tuple[Path, list[str]]]:
    """Policies that can share workers, with the folder of their tokenizer."""
    folders = {name: Path(policy.folder) if policy.folder else fallback for name, policy in policies.items()}
    digests = {name: tokenizer_digest(folder) for name, folder in folders.items()}
    for _, names in groupby(sorted(policies, key=lambda name: digests[name]), key=lambda name: digests[name]):
        together = list(names)
        yield folders[together[0]], [name for name in policies if name in together]

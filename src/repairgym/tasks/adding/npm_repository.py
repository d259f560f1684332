"""Add a git repository of JavaScript or TypeScript to a catalogue: from a path to an entry and a lock.

Reads a clone with a ``package.json``. Makes an `Added` record as `adding` does. Guarantees: no code of the project runs
outside of a sandbox; the environment is that of the project's own ``package-lock.json`` where npm can install it as it
is, else one that is resolved from the ranges.
"""

from dataclasses import dataclass
from pathlib import Path

from repairgym.config.tasks import HistoryConfig
from repairgym.tasks.adding.adding import Added
from repairgym.tasks.adding.npm_environment import node_mismatch, own_or_resolved_lock
from repairgym.tasks.adding.npm_project import patterns_of_tests, read_folder
from repairgym.tasks.adding.npm_trial import NodeTrial
from repairgym.tasks.layers.catalogue import NpmRepository
from repairgym.tasks.layers.metadata import parse_package_json
from repairgym.tasks.layers.repositories import GitRepository, commit_tree
from repairgym.tasks.sources.history import find_candidates

_PYTHON_SETTINGS = ("pyproject.toml", "setup.py", "setup.cfg")


def is_npm_repository(clone: GitRepository, commit: str) -> bool:
    """Return True for a commit with a ``package.json`` and without settings of a Python project."""
    has_python = any(clone.plain_text(commit, name) for name in _PYTHON_SETTINGS)
    return not has_python and bool(clone.plain_text(commit, "package.json"))


def name_in_catalogue(clone: GitRepository, commit: str, url: str) -> str:
    """Return the name in ``package.json``, else the last part of ``url``, without signs that names of files lack."""
    named = str(parse_package_json(clone.plain_text(commit, "package.json")).get("name", ""))
    return named.lstrip("@").replace("/", "-") or _last_part(url)


@dataclass(frozen=True)
class NpmRepositoryAdder:
    """Adds git repositories with a ``package.json``."""

    trial: NodeTrial

    async def repository(self, url: str, name: str, subdirectory: str) -> Added:
        """Return the newest commit of ``url`` as an entry for `history` and `mutations`.

        Raises:
            InputError: ``url`` is a path without a git repository.
            TaskError: it has no tests, none of them passes, or its environment would hold the project itself.
        """
        clone = GitRepository.open(url, self.trial.store, subdirectory)
        commit = clone.resolve("HEAD")
        tree = commit_tree(self.trial.store, clone, commit, name or _last_part(url), clone.version(commit))
        folder = read_folder(tree)
        told = node_mismatch(folder.settings, self.trial.node_version)
        if told:
            self.trial.say(told)
        resolved = own_or_resolved_lock(self.trial.store, folder, self.trial.node_version, self.trial.say)
        tried = await self.trial.run(folder, resolved.lock)
        repository = NpmRepository(
            name=name or name_in_catalogue(clone, commit, url),
            split=self.trial.split,
            sources=folder.sources,
            tests=patterns_of_tests(tried.kept),
            excluded=tuple(path for path in folder.tests if path not in tried.kept),
            url=str(Path(url).resolve()) if Path(url).exists() else url,
            revision=commit,
            subdirectory=subdirectory,
            runner=folder.runner,
        )
        self.trial.say("counts the commits that can be bug fixes")
        candidates, others = find_candidates(repository, clone, HistoryConfig())
        dropped = {reason: count for reason, count in others.funnel.items() if reason != "commits"}
        problems = (*((told,) if told else ()), *resolved.told)
        added = self.trial.added(repository, tried, resolved.lock, {"revision": "the newest commit"}, problems)
        return added.model_copy(update={"num_candidates": len(candidates), "dropped": dropped})


def _last_part(url: str) -> str:
    return url.rstrip("/").rpartition("/")[2].removesuffix(".git")

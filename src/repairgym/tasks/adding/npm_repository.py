"""Add a git repository of JavaScript or TypeScript to a catalogue: from a path to an entry and a lock.

Reads a clone with a ``package.json``. Makes an `Added` record as `adding` does. Guarantees: no code of the project runs
outside of a sandbox; the environment is that of the project's own ``package-lock.json`` where npm can install it as it
is, else one that is resolved from the ranges.
"""

from dataclasses import dataclass
from pathlib import Path

from repairgym.config.tasks import HistoryConfig
from repairgym.errors import RepairGymError, TaskError
from repairgym.tasks.adding.adding import Added
from repairgym.tasks.adding.npm_project import (
    FRAMEWORKS,
    NodeFolder,
    NodeTrial,
    patterns_of_tests,
    read_folder,
)
from repairgym.tasks.layers.catalogue import NpmRepository
from repairgym.tasks.layers.environments import build_environment
from repairgym.tasks.layers.npm_locks import locked_names, pinned_npm_lock, resolve_npm_lock
from repairgym.tasks.layers.repositories import GitRepository, commit_tree
from repairgym.tasks.sources.history import find_candidates

_PYTHON_SETTINGS = ("pyproject.toml", "setup.py", "setup.cfg")


def is_npm_repository(clone: GitRepository, commit: str) -> bool:
    """Return True for a commit with a ``package.json`` and without settings of a Python project."""
    has_python = any(clone.plain_text(commit, name) for name in _PYTHON_SETTINGS)
    return not has_python and bool(clone.plain_text(commit, "package.json"))


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
        lock, problems = self._lock(folder)
        tried = await self.trial.run(folder, lock)
        repository = NpmRepository(
            # Its scope's sign and slash would end up in names of files.
            name=name or folder.name.lstrip("@").replace("/", "-") or _last_part(url),
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
        added = self.trial.added(repository, tried, lock, {"revision": "the newest commit"}, problems)
        return added.model_copy(update={"num_candidates": len(candidates), "dropped": dropped})

    def _lock(self, folder: NodeFolder) -> tuple[str, tuple[str, ...]]:
        """Return the lock of the environment, and why it is not the project's own."""
        tried: list[str] = []
        tools = folder.tools(folder.declared.get(folder.runner, FRAMEWORKS[folder.runner][0]))
        if (own := folder.tree / "package-lock.json").is_file():
            self.trial.say("installs the project's own package-lock.json")
            try:
                lock = pinned_npm_lock(own.read_text("utf-8"), folder.declared, self.trial.node_version)
                if missing := sorted(set(tools) - locked_names(lock)):
                    raise TaskError(f"it lacks {', '.join(missing)}")
                build_environment(self.trial.store, lock)
                return self._without_itself(folder, lock), ()
            except RepairGymError as error:
                tried = [f"package-lock.json is not used as it is: {error}"]
        self.trial.say("resolves a lock from the ranges of package.json")
        lock = resolve_npm_lock({**folder.needed, **tools}, self.trial.node_version)
        return self._without_itself(folder, lock), tuple(tried)

    def _without_itself(self, folder: NodeFolder, lock: str) -> str:
        if folder.name in locked_names(lock):
            raise TaskError(f"{folder.name} is a package of its own environment, where its repaired code could be read")
        return lock


def _last_part(url: str) -> str:
    return url.rstrip("/").rpartition("/")[2].removesuffix(".git")

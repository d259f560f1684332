"""What a task source is, and what it is given.

A source turns one project of the catalogue (a package or a repository) into tasks. Adding one: a file in this folder
with a `TaskSource`, one line in `registry.SOURCES`, one test. Invariant: for one seed, catalogue and machine
architecture a source gives the same tasks.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, TypeVar

from repairgym.config.tasks import TasksConfig
from repairgym.records import Environment, Task, TestRequest
from repairgym.sandbox.base import SandboxBackend, SandboxSpec
from repairgym.tasks.layers.bytecode import tree_with_bytecode
from repairgym.tasks.layers.catalogue import Package, Project
from repairgym.tasks.layers.environments import build_environment, read_lock
from repairgym.tasks.layers.store import LayerStore


@dataclass(frozen=True)
class BuildContext:
    """Where tasks are made: layers, a sandbox back end, bounds."""

    store: LayerStore
    backend: SandboxBackend
    config: TasksConfig
    quota: int
    """Tasks wanted from this package; a source stops when it has them."""
    part: int = 0
    """Which part of a project's work, where a source divides it into units (`history`)."""

    def pinned(self, package: Package, version: str = "") -> tuple[Environment, SandboxSpec]:
        """The environment of ``package`` and a sandbox of its pinned tree (default: the mutated version)."""
        return self.pinned_tree(self.lock(package.requirements), self.store.tree(package.sdist(version)))

    def lock(self, requirements: tuple[str, ...]) -> str:
        """The lock of ``requirements``, from the configured folder.

        Raises:
            TaskError: there is none.
        """
        return read_lock(requirements, self.config.locks)

    def pinned_tree(self, lock: str, tree: Path) -> tuple[Environment, SandboxSpec]:
        """The environment of ``lock`` and a sandbox of ``tree``.

        Raises:
            IndexUnavailableError: a wheel is missing and no index answers.
        """
        environment, folder = build_environment(self.store, lock)
        return environment, SandboxSpec(environment=folder, tree=tree, limits=self.config.sandbox.limits)

    async def compiled(self, spec: SandboxSpec, request: TestRequest) -> SandboxSpec:
        """``spec`` over the twin of its tree that has byte-code for ``request``."""
        timeout_s = self.config.suite_timeout_s
        tree = await tree_with_bytecode(self.store, self.backend, spec, request, timeout_s)
        return spec.model_copy(update={"tree": tree})

    def request(self, project: Project, test_ids: tuple[str, ...], timeout_s: float) -> TestRequest:
        """A run of ``test_ids`` of ``project`` while tasks are made."""
        return TestRequest(
            test_ids=test_ids,
            timeout_s=timeout_s,
            test_timeout_s=self.config.test_timeout_s,
            source_paths=project.source_paths,
            plugins=project.plugins,
        )


@dataclass
class SourceResult:
    """Tasks made from one package and the count of everything that fell away."""

    tasks: list[Task] = field(default_factory=list)
    funnel: Counter[str] = field(default_factory=Counter)

    def add(self, outcome: Task | str) -> None:
        """Keep a task, or count why a candidate makes none."""
        self.funnel["kept" if isinstance(outcome, Task) else outcome] += 1
        if isinstance(outcome, Task):
            self.tasks.append(outcome)


ProjectT = TypeVar("ProjectT", bound=Project, contravariant=True)


class TaskSource(Protocol[ProjectT]):
    """Makes tasks of one kind."""

    async def make(self, package: ProjectT, context: BuildContext) -> SourceResult:
        """Tasks from ``package``, certified, at most ``context.quota``.

        Raises:
            IndexUnavailableError: a layer is missing and no index answers.
            SandboxError: the sandbox could not do its work.
            TaskError: the catalogue entry does not fit the package.
        """
        ...

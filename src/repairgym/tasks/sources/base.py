"""Task sources: the interface, the build context and the result.

A source turns one project of the catalogue (a package or a repository) into tasks. A new source is a file in this
folder with a `TaskSource` function, one line in `build_tasks.SOURCES`, and a test. Guarantees: for one seed, catalogue
and machine architecture a source gives the same tasks.
"""

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Protocol, TypeVar

from repairgym.config.tasks import TasksConfig
from repairgym.records import ChangeKind, Environment, Task, TestRequest
from repairgym.sandbox.base import SandboxBackend, SandboxSpec
from repairgym.tasks.build.assembly import patience_of
from repairgym.tasks.layers.bytecode import tree_with_bytecode
from repairgym.tasks.layers.catalogue import Package, Project
from repairgym.tasks.layers.environments import build_environment, lock_of, read_lock
from repairgym.tasks.layers.store import LayerStore

MAX_LOG_CHARS = 4000
"""Length of a kept log; its end says most."""


@dataclass(frozen=True)
class BuildContext:
    """Layers, sandbox back end and bounds of a build."""

    store: LayerStore
    backend: SandboxBackend
    config: TasksConfig
    quota: int
    """Number of tasks at which a source stops."""
    part: int = 0
    """Number of the unit, for sources that divide a project into units (`history`)."""

    def pinned(self, package: Package, version: str = "") -> tuple[Environment, SandboxSpec]:
        """Return the environment of ``package`` and a sandbox of its pinned tree (default: the mutated version)."""
        return self.pinned_tree(lock_of(package, self.config.locks), self.store.tree(package.sdist(version)))

    def lock(self, requirements: tuple[str, ...]) -> str:
        """Return the lock of ``requirements`` from the configured folder; TaskError without one."""
        return read_lock(requirements, self.config.locks)

    def pinned_tree(self, lock: str, tree: Path) -> tuple[Environment, SandboxSpec]:
        """Return the environment of ``lock`` and a sandbox of ``tree``."""
        environment, folder = build_environment(self.store, lock)
        return environment, SandboxSpec(environment=folder, tree=tree, limits=self.config.sandbox.limits)

    async def compiled(self, spec: SandboxSpec, request: TestRequest) -> SandboxSpec:
        """Return ``spec`` over the twin of its tree with byte-code for ``request``, where Python runs the tests."""
        if request.runner.is_node:
            return spec
        timeout_s = self.config.suite_timeout_s
        tree = await tree_with_bytecode(self.store, self.backend, spec, request, timeout_s)
        return spec.model_copy(update={"tree": tree})

    def seed(self, package: Package) -> str:
        """Return the seed of random choices for ``package``."""
        return f"{self.config.seed}:{package.name}:{package.version}"

    def request(self, project: Project, test_ids: tuple[str, ...], timeout_s: float) -> TestRequest:
        """Return a request for ``test_ids`` of ``project`` during the build."""
        patience = patience_of(project.test_runner)
        return TestRequest(
            test_ids=test_ids,
            timeout_s=patience * timeout_s,
            test_timeout_s=patience * self.config.test_timeout_s,
            source_paths=project.source_paths,
            plugins=project.plugins,
            runner=project.test_runner,
        )


class Drop(NamedTuple):
    """A candidate that became no task."""

    reason: str
    """Row of the funnel."""
    log: str = ""
    """Text that says why, for the first one of a row."""


def of_kinds(task: Task, kinds: Collection[ChangeKind]) -> Task | Drop:
    """Return ``task`` if its label ``kind`` is one of ``kinds`` or these are empty, else a drop."""
    kind = task.labels["kind"]
    return task if not kinds or kind in kinds else Drop(f"kind_{kind}", f"{task.id}: {task.issue}")


@dataclass
class SourceResult:
    """Tasks of one package, and counts of dropped candidates. Guarantees: the certificate of each task is valid."""

    tasks: list[Task] = field(default_factory=list)
    funnel: Counter[str] = field(default_factory=Counter)
    logs: dict[str, str] = field(default_factory=dict)
    """Row of the funnel -> log of the first drop that it counts."""

    def add(self, outcome: Task | Drop) -> None:
        """Keep a task, or count the reason of a drop."""
        if isinstance(outcome, Task) and not outcome.certificate.is_valid:
            # Its own tests may all be stable: a plugin that changes outcomes makes records that count as forged.
            outcome = Drop("not_certified", f"{outcome.id}: {outcome.certificate.model_dump_json()}")
        if isinstance(outcome, Task):
            self.funnel["kept"] += 1
            self.tasks.append(outcome)
        else:
            self.funnel[outcome.reason] += 1
            self.logs.setdefault(outcome.reason, outcome.log[-MAX_LOG_CHARS:])


ProjectT = TypeVar("ProjectT", bound=Project, contravariant=True)


class TaskSource(Protocol[ProjectT]):
    """Makes tasks of one kind."""

    async def __call__(self, package: ProjectT, context: BuildContext, /) -> SourceResult:
        """Make certified tasks from ``package``, at most ``context.quota``.

        Raises:
            IndexUnavailableError: a layer is missing and no index answers.
            SandboxError: the sandbox could not do its work.
            TaskError: the catalogue entry does not fit the package.
        """
        ...

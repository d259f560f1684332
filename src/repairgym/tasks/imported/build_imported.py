"""Build imported tasks: recipe, interpreter, environment, tree, install, runs, certificate.

Reads the unbuilt tasks of a folder, and local clones or container images. Makes certified tasks in the same folder, one
`BuildOutcome` per record, and a funnel. Guarantees: a finished record is not built twice for the same key while its
layers are here, and one for which the machine failed is tried again; a record that cannot be built says so in one
sentence and leaves the others alone; records and tasks that were there stay.
"""

import asyncio
import errno
import hashlib
import os
import random
import tempfile
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path

from repairgym.config.tasks import ImportedConfig
from repairgym.errors import (
    DiskFullError,
    ImageNotFoundError,
    IndexUnavailableError,
    InputError,
    PackageNotFoundError,
    RepairGymError,
    SandboxContentError,
    SandboxError,
    SandboxUnavailableError,
    TaskError,
    disk_full_error,
)
from repairgym.sandbox.base import SandboxBackend
from repairgym.sandbox.probe import create_backend
from repairgym.tasks.build.concurrency import as_completed
from repairgym.tasks.build.validation import imported_layers
from repairgym.tasks.formats.folders import PYTEST
from repairgym.tasks.formats.importing import CloneFolder
from repairgym.tasks.imported.building import ProjectBuilder
from repairgym.tasks.imported.certifying import Certifier, TestCounts
from repairgym.tasks.imported.environments import Wanted
from repairgym.tasks.imported.harness import HarnessFiles
from repairgym.tasks.imported.in_images import ImageBuilder
from repairgym.tasks.imported.installation import Installed, graded_tree, install
from repairgym.tasks.imported.interpreters import OLDEST_PYTHON, Interpreter, find_interpreter
from repairgym.tasks.imported.named_tests import is_cut
from repairgym.tasks.imported.outcomes import BuildOutcome, OutcomeFolder, Stage, describe, funnel_of
from repairgym.tasks.imported.recipes import BuildRecipe, find_recipe, requirements_of_repair
from repairgym.tasks.layers.repositories import GitRepository
from repairgym.tasks.layers.store import LayerStore
from repairgym.tasks.store import FUNNEL_FILE, MANIFEST_FILE, TaskStore
from repairgym.tasks.unbuilt import UnbuiltTask

BUILD_FORMAT = 3
"""Part of each key; grows when the same record makes another task."""
_IRRELEVANT = {"ids", "limit", "seed", "num_workers", "layers", "repos"}
"""Settings without influence on a task: no part of its key."""


@dataclass(frozen=True)
class Progress:
    """A record that just finished."""

    outcome: BuildOutcome
    num_done: int
    num_records: int
    num_certified: int
    left_s: float
    """Estimated time left."""


@dataclass
class _State:
    """The progress of one record."""

    stage: Stage = "recipe"
    recipe: BuildRecipe | None = None
    python: str = ""
    left_out: tuple[str, ...] = ()
    counts: TestCounts | None = None
    started: float = field(default_factory=time.monotonic)


class ImportedBuilder:
    """Builds records of one task folder."""

    def __init__(self, folder: Path, config: ImportedConfig, layers: LayerStore | None = None) -> None:
        """Read what ``config`` names; InputError for a missing file or folder."""
        if not config.repos and not config.images:
            raise InputError(
                "building imported tasks needs local clones of their repositories, or images that hold them; "
                "name them: repos=FOLDER or images=NAME"
            )
        self._config = config
        self._clones = None if config.images else CloneFolder(Path(config.repos).expanduser())
        self._files = HarnessFiles(config.environments, config.specs)
        self._layers = layers or LayerStore(config=config.layers)
        self._store = TaskStore(folder)
        self._outcomes = OutcomeFolder(folder)

    def chosen(self) -> list[UnbuiltTask]:
        """Return the records to build, in the order of import; InputError for an unknown id or without any."""
        records = list(self._store.iter_unbuilt())
        if not records:
            raise InputError(f"{self._store.folder} has no imported records; repairgym tasks import adds them")
        if missing := sorted(set(self._config.ids) - {record.id for record in records}):
            raise InputError(f"no imported record {', '.join(missing)} in {self._store.folder}")
        wanted = [record for record in records if not self._config.ids or record.id in self._config.ids]
        if self._config.limit and self._config.limit < len(wanted):
            drawn = random.Random(self._config.seed).sample(wanted, self._config.limit)
            ids = {record.id for record in drawn}
            wanted = [record for record in wanted if record.id in ids]
        return wanted

    async def build(self, report: Callable[[Progress], None] = lambda progress: None) -> list[BuildOutcome]:
        """Build the chosen records and save the folder; return their outcomes.

        Raises:
            InputError: nothing to build.
            IndexUnavailableError, DiskFullError, SandboxUnavailableError: nothing else could be built either.
        """
        records = self.chosen()
        outcomes: list[BuildOutcome] = []
        started, num_made = time.monotonic(), 0
        async with aclosing(self._finished_and_made(records)) as results:
            async for outcome, is_new in results:
                outcomes.append(outcome)
                num_made += is_new
                pace_s = (time.monotonic() - started) / max(num_made, 1)
                certified = sum(done.is_certified for done in outcomes)
                left_s = pace_s * (len(records) - len(outcomes)) if num_made else 0.0
                report(Progress(outcome, len(outcomes), len(records), certified, left_s))
        self._save(outcomes)
        return outcomes

    async def _finished_and_made(
        self, records: Sequence[UnbuiltTask]
    ) -> AsyncGenerator[tuple[BuildOutcome, bool], None]:
        """Yield each outcome and whether it was made now."""
        left = []
        for record in records:
            known = self._outcomes.load(record.id)
            # An image that was missing may have been pushed since.
            is_lasting = (
                known is not None
                and not known.is_transient
                and (self._clones is not None or known.stage != "environment")
            )
            if known and is_lasting and known.key == self._key(record) and self._has_layers(known):
                yield known, False
            else:
                left.append(record)
        if not left:
            return
        backend = create_backend(self._config.sandbox)
        places = asyncio.Semaphore(self._config.num_workers or len(os.sched_getaffinity(0)))
        try:
            async with aclosing(as_completed(self._guarded(record, backend, places) for record in left)) as results:
                async for outcome in results:
                    self._outcomes.save(outcome)
                    yield outcome, True
        finally:
            await backend.close()

    def _has_layers(self, outcome: BuildOutcome) -> bool:
        task = outcome.task
        if task is None:
            return True
        try:
            imported_layers(task, self._layers)
        except (TaskError, InputError):
            return False
        return True

    def _key(self, record: UnbuiltTask) -> str:
        settings = self._config.model_dump(mode="json", exclude=_IRRELEVANT)
        # Without images, a key is what it was before there were any.
        settings = {name: value for name, value in settings.items() if value or not name.startswith("image")}
        parts: tuple[object, ...] = (BUILD_FORMAT, record.digest(), settings)
        if any(map(is_cut, (*record.fail_to_pass, *record.pass_to_pass))):
            parts += ("cut at a blank",)  # such names once stood for more tests; the other records make the same task
        return hashlib.sha256(repr(parts).encode()).hexdigest()

    async def _guarded(self, record: UnbuiltTask, backend: SandboxBackend, places: asyncio.Semaphore) -> BuildOutcome:
        async with places:
            state = _State()
            try:
                outcome = await self._build(record, backend, state)
            except (RepairGymError, OSError) as error:
                if _is_disk_full(error):
                    raise disk_full_error(tempfile.gettempdir()) from error
                if _stops_build(error):
                    raise
                outcome = BuildOutcome(
                    id=record.id,
                    key=self._key(record),
                    stage=state.stage,
                    reason=_sentence(error),
                    is_transient=_is_of_machine(error),
                )
            return outcome.model_copy(
                update={
                    "recipe": state.recipe,
                    "python": state.python,
                    "left_out": state.left_out,
                    "counts": state.counts,
                    "duration_s": round(time.monotonic() - state.started, 1),
                }
            )

    async def _build(self, record: UnbuiltTask, backend: SandboxBackend, state: _State) -> BuildOutcome:
        """Take one record through the stages; the state keeps what is known when one fails."""
        state.recipe = recipe = find_recipe(record, self._files, self._config.uploaded_before)
        if self._clones is None:
            pinned, installed, interpreter = await self._from_image(record, backend, state)
            command = recipe.test_command or record.test_command or (PYTEST if recipe.runner == "pytest" else "")
        else:
            pinned, installed, interpreter = await self._from_clone(record, recipe, self._clones, backend, state)
            command = recipe.test_command
        state.stage = "runs"
        certifier = Certifier(pinned, installed, interpreter, backend, self._config, recipe.runner)
        task, state.counts = await certifier.certify_or_log(command)
        return BuildOutcome(id=record.id, key=self._key(record), stage="certified", task=task)

    async def _from_image(
        self, record: UnbuiltTask, backend: SandboxBackend, state: _State
    ) -> tuple[UnbuiltTask, Installed, Interpreter]:
        builder = ImageBuilder(self._layers, self._config)
        state.stage = "environment"
        image = await asyncio.to_thread(builder.find, record)
        state.stage = "tree"
        pinned, tree = await asyncio.to_thread(builder.tree, record, image)
        state.stage = "interpreter"
        installed, interpreter = await builder.install(image, tree, backend)
        state.python = interpreter.version
        return pinned, installed, interpreter

    async def _from_clone(
        self, record: UnbuiltTask, recipe: BuildRecipe, clones: CloneFolder, backend: SandboxBackend, state: _State
    ) -> tuple[UnbuiltTask, Installed, Interpreter]:
        config = self._config
        state.left_out = recipe.unusable
        state.stage = "interpreter"
        interpreter = find_interpreter(recipe.python, OLDEST_PYTHON, config.is_neighbour_allowed)
        state.python = interpreter.version
        state.stage = "environment"
        builder = ProjectBuilder(self._layers, interpreter, backend, recipe.uploaded_before, config.build_timeout_s)
        base = await builder.environments.build(_wanted(recipe))
        state.left_out += base.left_out
        state.stage = "tree"
        pinned = await asyncio.to_thread(clones.pin, record)
        if pinned.pin_error:
            raise TaskError(pinned.pin_error)
        clone = GitRepository(clones.find(record.repository), is_offline=True)
        tree = await asyncio.to_thread(graded_tree, self._layers, clone, pinned)
        state.stage = "install"
        state.recipe = recipe = recipe.model_copy(update={"added_by_repair": requirements_of_repair(pinned)})
        version = await asyncio.to_thread(_version, clone, pinned)
        return pinned, await install(self._layers, builder, recipe, base.folder, tree, version), interpreter

    def _save(self, outcomes: Sequence[BuildOutcome]) -> None:
        """Write the certified tasks next to those that are there, and the funnel."""
        built, before = {outcome.id for outcome in outcomes}, self._store.load_certified()
        kept = [task for task in before if task.id not in built]
        tasks = [*kept, *(outcome.task for outcome in outcomes if outcome.task)]
        funnel = self._store.load_document(FUNNEL_FILE)
        total = {**funnel.get("total", {}), "imported": funnel_of(outcomes)}
        units = {**funnel.get("units", {}), **{outcome.id: describe(outcome) for outcome in outcomes}}
        manifest = self._store.load_document(MANIFEST_FILE)
        if tasks or before:  # the last task may be one that no longer certifies
            self._store.save(tasks, {**funnel, "total": total, "units": units}, manifest)
        else:
            self._store.save_document(FUNNEL_FILE, {**funnel, "total": total, "units": units})


def _wanted(recipe: BuildRecipe) -> Wanted:
    """Return the packages that are there before the project; with pytest where the recipe does not have it."""
    bound = "" if recipe.is_complete else recipe.uploaded_before
    names = {line.partition("=")[0].strip().lower() for line in recipe.requirements}
    more = () if "pytest" in names or recipe.is_complete else ("pytest",)
    return Wanted((*recipe.requirements, *more), not recipe.is_complete, bound)


def _version(clone: GitRepository, task: UnbuiltTask) -> str:
    """Return the version for back ends that would ask git: the newest tag before the commit, or the record's."""
    tagged = clone.version(task.base_commit)
    return tagged if tagged != "0" else task.version


def _stops_build(error: Exception) -> bool:
    """Return True for failures that every other record would meet as well."""
    is_index = isinstance(error, IndexUnavailableError) and not isinstance(
        error, (PackageNotFoundError, ImageNotFoundError)
    )
    return is_index or isinstance(error, (DiskFullError, SandboxUnavailableError))


def _is_disk_full(error: Exception) -> bool:
    """Return True for a full disk outside of the layer store, whose own errors say so already."""
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)


def _is_of_machine(error: Exception) -> bool:
    """Return True for failures that say nothing about the record, so that another try may succeed."""
    if isinstance(error, SandboxError):
        return not isinstance(error, SandboxContentError)
    return isinstance(error, OSError) and not isinstance(error, RepairGymError)


def _sentence(error: Exception) -> str:
    return " ".join(str(error).split())[:500] or type(error).__name__

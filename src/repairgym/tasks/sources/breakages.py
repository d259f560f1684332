"""Task source `breakages`: builds broken by their configuration (the domain of paper A).

Reads a pinned sdist. Makes tasks with one wrong edit in the build settings (`real_breaks`); their tests build a wheel,
offline, with the pinned build back ends (`build_checks`), and compare it with the wheel of the release. An edit is a
task when a test of the build fails with it in every run, and nothing that the agent sees tells the repair. Older
releases that today's dependencies break follow (`dependencies`). Guarantees: the repair of an edit is the released
settings file. The edits of one package have one gold state and share its runs (`verify` shares nothing).
"""

import json
import random
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Self

from repairgym.errors import TaskError
from repairgym.records import Environment, Task, TestRun
from repairgym.sandbox.base import SandboxSpec
from repairgym.tasks.build.assembly import Bug, choose_visible, read_text, readable_text, sdist_provenance
from repairgym.tasks.build.release_facts import is_told, plain_metadata
from repairgym.tasks.build.validation import Evidence, run_fresh, run_times
from repairgym.tasks.build.wheel_check import BUILD_TEST, EXPECTED_FILE, RELEASE_TEST, SEALED_FILE, check_text
from repairgym.tasks.layers.catalogue import JavaPackage, NpmPackage, Package
from repairgym.tasks.layers.environments import without_package
from repairgym.tasks.layers.store import tree_with_files
from repairgym.tasks.mutation.mutants import shuffled_turns
from repairgym.tasks.mutation.real_breaks import REAL_NAMES, find_breaks
from repairgym.tasks.mutation.settings_operators import SETTINGS_FILES, SettingsEdit
from repairgym.tasks.sight.build_scan import build_sightings
from repairgym.tasks.sources.adaptations import Adaptation
from repairgym.tasks.sources.base import BuildContext, Drop, SourceResult
from repairgym.tasks.sources.build_checks import build_request, build_task, first_build, try_edits
from repairgym.tasks.sources.dependencies import aged_task
from repairgym.tasks.sources.java_builds import make_java_builds
from repairgym.tasks.sources.npm_builds import make_npm_builds
from repairgym.tasks.sources.npm_dependencies import aged_npm_task

BUILD_REQUIREMENTS = ("flit-core<4", "hatch-vcs", "hatchling", "poetry-core", "setuptools", "setuptools-scm", "wheel")
"""Build back ends of the environment in which wheels are built."""


async def make_breakages(package: Package, context: BuildContext) -> SourceResult:
    """Make `breakages` tasks (see `TaskSource`)."""
    if isinstance(package, JavaPackage):
        return await make_java_builds(package, context)
    if isinstance(package, NpmPackage) and context.part == 0:
        return await make_npm_builds(package, context)
    result = SourceResult()
    if context.part == 0:
        await _break_settings(package, context, result)
        return result
    for version in package.aged:
        result.funnel["aged_releases"] += 1
        if isinstance(package, NpmPackage):
            result.add(await aged_npm_task(package, version, context, result.funnel))
        else:
            result.add(await aged_task(package, version, context, result.funnel))
    if not package.aged:
        result.funnel["adapted_releases"] += 1
        result.add(await Adaptation(package, package.removals, context).task())
    return result


async def _break_settings(package: Package, context: BuildContext, result: SourceResult) -> None:
    breakage_run = await BreakageRun.set_up(package, context)
    if isinstance(breakage_run, Drop):
        result.add(breakage_run)
        return
    await try_edits(breakage_run.edits(), breakage_run.try_edit, context, result)


@dataclass(frozen=True)
class BreakageRun:
    """The edits of one package's settings, tried in one environment."""

    package: Package
    context: BuildContext
    environment: Environment
    spec: SandboxSpec
    """The release with the check of its wheel, and without what its metadata tells."""
    pinned_files: dict[str, str]
    gold_runs: list[TestRun] = field(default_factory=list)
    """Builds of the release itself, made for the first edit that needs them."""

    @classmethod
    async def set_up(cls, package: Package, context: BuildContext) -> Self | Drop:
        """Build the release and record the content of its wheel; return the reason of a drop if the build fails."""
        store, lock, sdist = context.store, context.lock(BUILD_REQUIREMENTS), package.sdist()
        files = {path: check_text(path) for path in (BUILD_TEST, RELEASE_TEST)}
        files |= plain_metadata(store.tree(sdist), package.name)
        environment, spec = context.pinned_tree(lock, tree_with_files(store, sdist, files))
        folder = without_package(store, spec.environment, package.name, package.source_paths)
        spec = spec.model_copy(update={"environment": folder})
        printed = await first_build(package, context, spec, ("python", RELEASE_TEST))
        if isinstance(printed, Drop):
            return printed
        told = json.loads(printed.rpartition("\nwheel ")[2])
        texts = (json.dumps(part, indent=1, sort_keys=True) + "\n" for part in told)
        files |= dict(zip((EXPECTED_FILE, SEALED_FILE), texts, strict=True))
        spec = spec.model_copy(update={"tree": tree_with_files(store, sdist, files)})
        return cls(package, context, environment, spec, files)

    def edits(self) -> list[SettingsEdit]:
        """Return edits of the settings files; operators take turns, each in random order, those of real breaks first.

        Edits whose repair nothing tells any more are left out: see `is_told`.
        """
        families: dict[str, list[SettingsEdit]] = defaultdict(list)
        for path in SETTINGS_FILES:
            text = readable_text(self.spec.tree / path) if (self.spec.tree / path).is_file() else None
            if text is not None:
                for edit in find_breaks(path, text):
                    if is_told(self.spec.tree, edit, text):
                        families[edit.operator].append(edit)
        generator = random.Random(self.context.seed(self.package))
        real = {name: edits for name, edits in families.items() if name in REAL_NAMES}
        others = {name: edits for name, edits in families.items() if name not in REAL_NAMES}
        return [*shuffled_turns(real, generator), *shuffled_turns(others, generator)]

    async def try_edit(self, edit: SettingsEdit) -> Task | Drop:
        """Return the task of an edit, or the reason of its drop."""
        files: dict[str, str | None] = {edit.path: edit.text}
        broken = self.spec.model_copy(update={"files": files})
        request = build_request(self.package, self.context, RELEASE_TEST)
        first = await run_fresh(self.context.backend, broken, request)
        if first.is_timed_out:
            return Drop("timed_out", f"{edit.recipe}\n{first.output_tail}")
        test_ids = tuple(test_id for test_id in first.results if "::" in test_id)
        if first.passes(test_ids):
            return Drop("survived", f"{edit.recipe}\n{first.output_tail}")
        num_runs = self.context.config.num_certificate_runs
        empty = [first, *await run_times(self.context.backend, broken, request, num_runs - 1)]
        if not self.gold_runs:
            self.gold_runs.extend(await run_times(self.context.backend, self.spec, request, num_runs))
        evidence = Evidence(empty, self.gold_runs)
        failing, passing, _ = evidence.split_tests(test_ids)
        if not failing:
            return Drop("unstable", f"{edit.recipe}\n{self.gold_runs[0].output_tail}")
        try:
            task = self._assemble(edit, evidence, failing, passing)
        except TaskError as error:
            return Drop("test_not_cuttable", str(error))
        seen = next(build_sightings(task, self.spec.tree, self.spec.environment), None)
        return Drop("answer_in_sight", f"{edit.recipe}\n{seen.path}:{seen.line} {seen.text}") if seen else task

    def _assemble(
        self, edit: SettingsEdit, evidence: Evidence, failing: tuple[str, ...], passing: tuple[str, ...]
    ) -> Task:
        package = self.package
        visibility = choose_visible(failing, passing, evidence.empty[0])
        plain = self.context.store.tree(package.sdist())
        bug = Bug(
            project=package.model_copy(update={"plugins": ()}),
            source="breakages",
            provenance=sdist_provenance(package, package.version, "", f"{edit.path} {edit.recipe}", plain),
            tree=self.spec.tree,
            base_tree=self.spec.tree.name,
            environment=self.environment,
            broken={edit.path: edit.text},
            gold={edit.path: read_text(self.spec.tree / edit.path)},
            fail_to_pass=failing,
            pass_to_pass=passing,
            visibility=visibility,
            certificate=evidence.certificate(failing, passing),
            labels={"operator": edit.operator, "error_class": edit.error_class, "difficulty": "1"},
            pinned_files=self.pinned_files,
        )
        return build_task(bug, evidence, edit.recipe, self.context)

"""Task source `breakages` for Java: builds of Maven and Gradle that one edit breaks.

Reads the upstream archive of a library. Makes tasks with one wrong edit, in the settings or in a source
(`java/breaks`); their tests build the project offline, look for its classes and run its suite on them
(``data/build_check/test_java.py``). Guarantees: the repair of an edit is the file as it was; the edits of one package
have one gold state and share its runs (`verify` shares nothing).
"""

import json
import random
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Self

from repairgym.errors import TaskError
from repairgym.records import Environment, Task, TestRun
from repairgym.sandbox.base import SandboxSpec
from repairgym.tasks.build.assembly import Bug, Visibility, assemble, first_line, read_text, sdist_provenance
from repairgym.tasks.build.validation import Evidence, run_fresh, run_times
from repairgym.tasks.java.breaks import find_java_breaks
from repairgym.tasks.java.project import (
    JAVA_EXPECTED,
    JAVA_TEST,
    build_command,
    expected_text,
    project_files,
    settings_files,
    with_java_check,
)
from repairgym.tasks.layers.catalogue import JavaPackage
from repairgym.tasks.layers.store import tree_with_files
from repairgym.tasks.mutation.mutants import shuffled_turns
from repairgym.tasks.mutation.settings_operators import SettingsEdit
from repairgym.tasks.sources.base import BuildContext, Drop, SourceResult
from repairgym.tasks.sources.build_checks import build_request, first_build, try_edits

BUILD_TEST = f"{JAVA_TEST}::test_the_project_builds"


async def make_java_builds(package: JavaPackage, context: BuildContext) -> SourceResult:
    """Make tasks of the builds of ``package`` (see `TaskSource`)."""
    result = SourceResult()
    run = await JavaRun.set_up(package, context)
    if isinstance(run, Drop):
        result.add(run)
        return result
    if drop := await run.check_gold():
        result.add(drop)
        return result
    await try_edits(run.edits(), run.try_edit, context, result)
    return result


@dataclass(frozen=True)
class JavaRun:
    """The edits of one library, tried in one environment."""

    package: JavaPackage
    context: BuildContext
    environment: Environment
    spec: SandboxSpec
    """The library with its settings and the check of its build."""
    pinned_files: dict[str, str]
    gold_runs: list[TestRun] = field(default_factory=list)
    """Builds of the library itself (`check_gold`)."""

    @classmethod
    async def set_up(cls, package: JavaPackage, context: BuildContext) -> Self | Drop:
        """Build the library, record names of classes and number of passed tests; return a drop if that fails."""
        sdist = package.sdist()
        files = project_files(package, context.store.tree(sdist))
        environment, spec = context.pinned(package)
        spec = spec.model_copy(update={"tree": tree_with_files(context.store, sdist, files)})
        printed = await first_build(package, context, spec, JAVA_TEST)
        if isinstance(printed, Drop):
            return printed
        known = json.loads(printed.rpartition("\nfound ")[2])
        files[JAVA_EXPECTED] = expected_text({**json.loads(files[JAVA_EXPECTED]), **known})
        spec = spec.model_copy(update={"tree": tree_with_files(context.store, sdist, files)})
        return cls(package, context, environment, spec, files)

    def edits(self) -> list[SettingsEdit]:
        """Return edits; operators take turns, those of the settings twice as often, each in random order."""
        settings: dict[str, list[SettingsEdit]] = defaultdict(list)
        sources: dict[str, list[SettingsEdit]] = defaultdict(list)
        for path in settings_files(self.package):
            for edit in find_java_breaks(self.spec.tree, path):
                settings[edit.operator].append(edit)
        for path in self.package.source_files(self.spec.tree):
            for edit in find_java_breaks(self.spec.tree, path):
                sources[edit.operator].append(edit)
        generator = random.Random(self.context.seed(self.package))
        first, second = shuffled_turns(settings, generator), shuffled_turns(sources, generator)
        mixed: list[SettingsEdit] = []
        while first or second:
            mixed += [*first[:2], *second[:1]]
            del first[:2], second[:1]
        return mixed

    async def check_gold(self) -> Drop | None:
        """Make the gold runs; return the reason of a drop if a test of theirs does not pass."""
        num_runs = self.context.config.num_certificate_runs
        self.gold_runs.extend(
            await run_times(
                self.context.backend, self.spec, build_request(self.package, self.context, JAVA_TEST), num_runs
            )
        )
        if self.test_ids and all(run.passes(self.test_ids) for run in self.gold_runs):
            return None
        return Drop("suite_fails", f"{self.package.name}\n{self.gold_runs[0].output_tail}")

    @property
    def test_ids(self) -> tuple[str, ...]:
        """Tests of the check."""
        return tuple(test_id for test_id in self.gold_runs[0].results if "::" in test_id)

    async def try_edit(self, edit: SettingsEdit) -> Task | Drop:
        """Return the task of an edit, or the reason of its drop; `check_gold` ran before."""
        broken = self.spec.model_copy(update={"files": {edit.path: edit.text}})
        backend, request, num_runs = (
            self.context.backend,
            build_request(self.package, self.context, JAVA_TEST),
            self.context.config.num_certificate_runs,
        )
        test_ids = self.test_ids
        first = await run_fresh(backend, broken, request)
        if first.is_timed_out:
            return Drop("timed_out", f"{edit.recipe}\n{first.output_tail}")
        if first.passes(test_ids):
            return Drop("survived", f"{edit.path} {edit.recipe}\n{first.output_tail}")
        evidence = Evidence([first, *await run_times(backend, broken, request, num_runs - 1)], self.gold_runs)
        failing, passing, _ = evidence.split_tests(test_ids)
        if not failing:
            return Drop("unstable", f"{edit.path} {edit.recipe}\n{first.output_tail}")
        try:
            return self._assemble(edit, evidence, failing, passing)
        except TaskError as error:
            return Drop("test_not_cuttable", str(error))

    def _assemble(
        self, edit: SettingsEdit, evidence: Evidence, failing: tuple[str, ...], passing: tuple[str, ...]
    ) -> Task:
        package = self.package
        # The build itself is always shown: its log is what there is to read. One failing test at least stays hidden.
        shown = tuple(test_id for test_id in (*failing, *passing) if test_id == BUILD_TEST)
        reported = next(test_id for test_id in failing if test_id in shown or shown[:1] != failing[:1])
        plain = self.context.store.tree(package.sdist())
        bug = Bug(
            project=package,
            source="breakages",
            provenance=sdist_provenance(package, package.version, "", f"{edit.path} {edit.recipe}", plain),
            tree=self.spec.tree,
            base_tree=self.spec.tree.name,
            environment=self.environment,
            broken={edit.path: edit.text},
            gold={edit.path: read_text(self.spec.tree / edit.path)},
            fail_to_pass=failing,
            pass_to_pass=passing,
            visibility=Visibility(shown, tuple(test_id for test_id in failing if test_id not in shown), reported),
            certificate=evidence.certificate(failing, passing),
            labels={"operator": edit.operator, "error_class": edit.error_class, "difficulty": "1", "language": "java"},
            pinned_files=self.pinned_files,
        )
        message = first_line(evidence.empty[0].results[reported].message.removeprefix("AssertionError: "))
        issue = f"{build_command(package)} in {package.artifact}: {message}"
        task = assemble(bug, issue, self.context.config, len(passing))
        return with_java_check(task, self.context.config.breakages.max_build_s)

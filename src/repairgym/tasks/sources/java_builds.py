"""Task source `breakages` for Java: builds of Maven and Gradle that one edit breaks.

Reads the upstream archive of a library. Makes tasks with one wrong edit, in the settings or in a source
(`java/breaks`); their tests build the project offline, look for its classes and run its suite on them
(``data/build_check/test_java.py``). Guarantees: the repair of an edit is the file as it was (see `EditedBuild`).
"""

import json
import random
from collections import defaultdict
from dataclasses import dataclass
from typing import Self

from repairgym.records import Task, TestRun
from repairgym.tasks.build.assembly import Bug, Visibility, assemble
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
from repairgym.tasks.sources.build_checks import first_build
from repairgym.tasks.sources.edited_builds import EditedBuild, make_edited_builds

BUILD_TEST = f"{JAVA_TEST}::test_the_project_builds"


async def make_java_builds(package: JavaPackage, context: BuildContext) -> SourceResult:
    """Make tasks of the builds of ``package`` (see `TaskSource`)."""
    return await make_edited_builds(await JavaRun.set_up(package, context))


@dataclass(frozen=True)
class JavaRun(EditedBuild):
    """The edits of one library."""

    package: JavaPackage

    @classmethod
    async def set_up(cls, package: JavaPackage, context: BuildContext) -> Self | Drop:
        """Build the library, record names of classes and number of passed tests; return a drop if that fails."""
        sdist = package.sdist()
        files = project_files(package, context.store.tree(sdist))
        environment, spec = context.pinned(package)
        spec = spec.model_copy(update={"tree": tree_with_files(context.store, sdist, files)})
        printed = await first_build(package, context, spec, ("python", JAVA_TEST))
        if isinstance(printed, Drop):
            return printed
        known = json.loads(printed.rpartition("\nfound ")[2])
        files[JAVA_EXPECTED] = expected_text({**json.loads(files[JAVA_EXPECTED]), **known})
        spec = spec.model_copy(update={"tree": tree_with_files(context.store, sdist, files)})
        return cls(package, context, environment, spec, files, JAVA_TEST, "java")

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

    def visibility(self, failing: tuple[str, ...], passing: tuple[str, ...], run: TestRun) -> Visibility:
        """Return the tests that the agent sees: the build, whose log is what there is to read; a failing one hides."""
        shown = tuple(test_id for test_id in (*failing, *passing) if test_id == BUILD_TEST)
        reported = next(test_id for test_id in failing if test_id in shown or shown[:1] != failing[:1])
        return Visibility(shown, tuple(test_id for test_id in failing if test_id not in shown), reported)

    def finished(self, bug: Bug, message: str) -> Task:
        """Return the task of ``bug`` (see `EditedBuild`)."""
        issue = f"{build_command(self.package)} in {self.package.artifact}: {message}"
        task = assemble(bug, issue, self.context.config, len(bug.pass_to_pass))
        return with_java_check(task, self.context.config.breakages.max_build_s)

"""Part of source `breakages` for npm: packages that one edit of their settings breaks.

Reads the archive of a release. Makes tasks with one wrong edit in ``package.json`` or ``tsconfig.json``
(`javascript/breaks`); their tests pack the package, install it beside its dependencies, load it and run its suite
(``data/build_check/package.test.cjs``). Guarantees: the repair of an edit is the file as it was (see `EditedBuild`).
"""

import json
import random
from collections import defaultdict
from dataclasses import dataclass
from typing import Self

from repairgym.records import Task
from repairgym.tasks.build.assembly import Bug, assemble, readable_text
from repairgym.tasks.javascript.breaks import find_npm_breaks
from repairgym.tasks.javascript.package_check import (
    NPM_EXPECTED,
    NPM_SETTINGS,
    NPM_TEST,
    TYPE_SETTINGS,
    check_files,
    checked,
    expected_text,
    with_npm_check,
    with_reader_of_ranges,
)
from repairgym.tasks.layers.catalogue import NpmPackage
from repairgym.tasks.layers.environments import lock_of
from repairgym.tasks.layers.store import tree_with_files
from repairgym.tasks.mutation.mutants import shuffled_turns
from repairgym.tasks.mutation.settings_operators import SettingsEdit
from repairgym.tasks.sources.base import BuildContext, Drop, SourceResult
from repairgym.tasks.sources.build_checks import first_build
from repairgym.tasks.sources.edited_builds import EditedBuild


async def make_npm_builds(package: NpmPackage, context: BuildContext) -> SourceResult:
    """Make tasks of the settings of ``package`` (see `TaskSource`)."""
    result = SourceResult()
    run = await NpmRun.set_up(package, context)
    if isinstance(run, Drop):
        result.add(run)
    else:
        await run.try_all(run.edits(), result)
    return result


@dataclass(frozen=True)
class NpmRun(EditedBuild):
    """The edits of one package of npm."""

    @classmethod
    async def set_up(cls, package: NpmPackage, context: BuildContext) -> Self | Drop:
        """Run the check on the release and record what it gives; return the reason of a drop if that fails."""
        sdist, own = package.sdist(), checked(package)
        plain = context.store.tree(sdist)
        tsconfig = TYPE_SETTINGS if (plain / TYPE_SETTINGS).is_file() else ""
        files = check_files(package, package.test_files(plain), tsconfig)
        lock = with_reader_of_ranges(lock_of(package, context.config.locks))
        environment, spec = context.pinned_tree(lock, tree_with_files(context.store, sdist, files))
        printed = await first_build(package, context, spec, ("node", NPM_TEST, "describe"))
        if isinstance(printed, Drop):
            return printed
        known = json.loads(printed.rpartition("\nfound ")[2])
        files[NPM_EXPECTED] = expected_text({**json.loads(files[NPM_EXPECTED]), **known})
        spec = spec.model_copy(update={"tree": tree_with_files(context.store, sdist, files)})
        return cls(own, context, environment, spec, files, NPM_TEST, "javascript")

    def edits(self) -> list[SettingsEdit]:
        """Return edits of the settings; operators take turns, each in random order."""
        families: dict[str, list[SettingsEdit]] = defaultdict(list)
        for path in NPM_SETTINGS:
            text = readable_text(self.spec.tree / path) if (self.spec.tree / path).is_file() else None
            for edit in find_npm_breaks(path, text or ""):
                families[edit.operator].append(edit)
        return shuffled_turns(families, random.Random(self.context.seed(self.package)))

    def finished(self, bug: Bug, message: str) -> Task:
        """Return the task of ``bug`` (see `EditedBuild`)."""
        issue = f"{self.package.name} {self.package.version} does not work as a package: {message}"
        task = assemble(bug, issue, self.context.config, len(bug.pass_to_pass))
        return with_npm_check(task, self.context.config.breakages.max_build_s)

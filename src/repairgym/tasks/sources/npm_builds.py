"""Part of source `breakages` for npm: packages that one edit of their settings breaks.

Reads the archive of a release. Makes tasks with one wrong edit in ``package.json`` or ``tsconfig.json``
(`javascript/breaks`); their tests pack the package, install it next to its dependencies, load it and run its suite
(``data/build_check/package.test.cjs``). Guarantees: the repair of an edit is the file as it was (see `EditedBuild`).
"""

import json
import random
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Self

from repairgym.records import Task
from repairgym.tasks.build.assembly import Bug, assemble, read_text
from repairgym.tasks.javascript.breaks import find_npm_breaks
from repairgym.tasks.javascript.package_check import (
    NPM_EXPECTED,
    NPM_TEST,
    SETTINGS,
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
from repairgym.tasks.sources.edited_builds import EditedBuild, make_edited_builds


async def make_npm_builds(package: NpmPackage, context: BuildContext) -> SourceResult:
    """Make tasks of the settings of ``package`` (see `TaskSource`)."""
    return await make_edited_builds(await NpmRun.set_up(package, context))


@dataclass(frozen=True)
class NpmRun(EditedBuild):
    """The edits of one package of npm."""

    @classmethod
    async def set_up(cls, package: NpmPackage, context: BuildContext) -> Self | Drop:
        """Return the edits of the mutated version in the package's own lock (see `of`)."""
        lock = with_reader_of_ranges(lock_of(package, context.config.locks))
        return await cls.of(package, package.test_files(context.store.tree(package.sdist())), lock, context)

    @classmethod
    async def of(
        cls,
        package: NpmPackage,
        tests: tuple[str, ...],
        lock: str,
        context: BuildContext,
        gold: Mapping[str, str] = MappingProxyType({}),
        labels: Mapping[str, str] = MappingProxyType({}),
    ) -> Self | Drop:
        """Run the check on the release with ``gold`` over it, and record what it gives; return a drop if that fails."""
        sdist = package.sdist()
        files = check_files(package, tests, context.store.tree(sdist))
        environment, spec = context.pinned_tree(lock, tree_with_files(context.store, sdist, files))
        repaired = spec.model_copy(update={"files": dict(gold)})
        printed = await first_build(package, context, repaired, ("node", NPM_TEST, "describe"))
        if isinstance(printed, Drop):
            return printed
        known = json.loads(printed.rpartition("\nfound ")[2])
        files[NPM_EXPECTED] = expected_text({**json.loads(files[NPM_EXPECTED]), **known})
        spec = spec.model_copy(update={"tree": tree_with_files(context.store, sdist, files)})
        return cls(checked(package), context, environment, spec, files, NPM_TEST, "javascript", gold, labels)

    def edits(self) -> list[SettingsEdit]:
        """Return edits of the settings; operators take turns, each in random order.

        A package that the environment lacks has none: no test could tell its repair from its removal.
        """
        expected = json.loads(self.pinned_files[NPM_EXPECTED])
        absent = [f'"{name}"' for name in expected["unmet"]]
        families: dict[str, list[SettingsEdit]] = defaultdict(list)
        for path in filter(None, (SETTINGS, expected["tsconfig"])):
            text = read_text(self.spec.tree / path)
            for edit in find_npm_breaks(path, text):
                lost = set(text.splitlines()).difference(edit.text.splitlines())
                if not any(name in line for line in lost for name in absent):
                    families[edit.operator].append(edit)
        return shuffled_turns(families, random.Random(self.context.seed(self.package)))

    def finished(self, bug: Bug, message: str) -> Task:
        """Return the task of ``bug`` (see `EditedBuild`)."""
        issue = f"{self.package.name} {self.package.version} {self.report}: {message}"
        task = assemble(bug, issue, self.context.config, len(bug.pass_to_pass))
        return with_npm_check(task, self.context.config.breakages.max_build_s)

    @property
    def report(self) -> str:
        """Words of the issue before the first failure."""
        return "does not work as a package"

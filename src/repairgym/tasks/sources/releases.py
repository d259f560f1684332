"""Task source `releases`: real bugs, from pairs of releases split by hunk ablation.

Reads two pinned sdists, X and X+1. Makes one task per separable fix. The tests of X+1 define the fixes: they pass on
X+1 and fail on the sources of X. `ablation` splits the difference into fixes. Each fix, reverted from X+1, is a bug
with its changelog entry as issue text. The repository's own test configuration is never read
(`sandbox/guest/pytest_runner.py`), so that it cannot drift between releases. Guarantees: the rest of X+1 stays as
released; the release itself fixed every failing test of a task.
"""

import random
from collections.abc import Sequence
from pathlib import Path

from repairgym.records import TestRun
from repairgym.tasks.build.assembly import Visibility, sdist_provenance
from repairgym.tasks.layers.catalogue import Package
from repairgym.tasks.layers.store import tree_digest
from repairgym.tasks.sources.ablation import Ablation
from repairgym.tasks.sources.base import BuildContext, SourceResult
from repairgym.tasks.sources.changelog import best_entry, read_entries
from repairgym.tasks.sources.fixes import Fix, fix_clues, tests_issue
from repairgym.tasks.sources.pairs import IssueText, IssueWriter, Origin, Pair, texts_of


class ReleaseSource:
    """Makes `releases` tasks."""

    async def make(self, package: Package, context: BuildContext) -> SourceResult:
        """See `TaskSource.make`."""
        result = SourceResult()
        for base, gold in package.releases:
            await collect(await release_pair(package, context, base, gold), result)
        return result


async def release_pair(package: Package, context: BuildContext, base_version: str, version: str) -> Pair:
    """Return the pair of two releases, ready to run; TaskError if the newer one has no usable test."""
    older = texts_of(package, context.store.tree(package.sdist(base_version)))
    environment, spec = context.pinned(package, version)
    origin = Origin(
        project=package,
        source="releases",
        provenance=sdist_provenance(package, version, base_version, "", spec.tree),
        base_tree=tree_digest(package.sdist(version)),
        environment=environment,
        config=context.config.releases,
    )
    return await Pair.set_up(origin, context, spec, package.test_files(spec.tree), older)


async def collect(pair: Pair, result: SourceResult) -> None:
    """Add the tasks and counts of ``pair`` to ``result``."""
    config = pair.context.config.releases
    result.funnel["pairs"] += 1
    stable, unstable, fixed = await pair.sort_tests()
    result.funnel["unstable_tests"] += len(unstable)
    result.funnel["fixed_tests"] += len(fixed)
    if not fixed:
        result.funnel["pairs_without_fixed_tests"] += 1
        return
    fixes = await Ablation(pair, stable, fixed, result.funnel).split()
    for fix in fixes[: config.num_per_pair]:
        result.add(await pair.make_task(fix, stable, fixed, changelog_writer(pair)))


def changelog_entry(fix: Fix, tree: Path, version: str, failing: Sequence[str]) -> str:
    """Return the changelog entry about ``fix`` in release ``version``, unpacked in ``tree``; empty without one."""
    return best_entry(read_entries(tree, version), fix_clues(fix, tree, failing))


def changelog_writer(pair: Pair) -> IssueWriter:
    """Return a writer of issue texts: from the newer changelog, or from failing tests without a fitting entry."""
    version = pair.origin.provenance.version
    seed = f"{pair.context.config.seed}:{version}"

    def write_issue(fix: Fix, failing: Sequence[str], visibility: Visibility, run: TestRun) -> IssueText:
        entry = changelog_entry(fix, pair.spec.tree, version, failing)
        if entry:
            return IssueText(entry, "changelog")
        return IssueText(tests_issue(failing, visibility, run, random.Random(f"{seed}:{failing[0]}")), "tests")

    return write_issue

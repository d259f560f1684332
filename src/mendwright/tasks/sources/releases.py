"""Task source `releases`: real bugs, from pairs of releases split by hunk ablation.

Reads two pinned sdists, X and X+1; makes one task per separable fix. The tests of X+1 say what the fixes are: they pass
on X+1 and fail on the sources of X. Then each source hunk is reverted alone; hunks that break the same tests belong
together, and each such group, reverted from X+1, is a bug whose repair is exactly that group. Invariants: the rest of
X+1 stays as released, and every failing test of a task is one that the release itself fixed.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path

from mendwright.errors import TaskError
from mendwright.records import Environment, Task, TestOutcome, TestRequest, TestRun
from mendwright.sandbox.base import SandboxSpec
from mendwright.tasks.assembly import Bug, assemble, choose_visible, read_text
from mendwright.tasks.bounded import ordered_map
from mendwright.tasks.catalogue import Package
from mendwright.tasks.sources.base import Workshop, Yield
from mendwright.tasks.sources.fixes import Fix, fix_issue
from mendwright.tasks.sources.hunks import Hunk, Texts, changes_code, find_hunks
from mendwright.tasks.testfiles import file_of, function_id, functions_of
from mendwright.tasks.tracing import SuiteMap, first_lines, trace_suite
from mendwright.tasks.validation import Evidence, run_fresh, run_times, unstable_ids

_BROKEN = (TestOutcome.FAILED, TestOutcome.ERROR, TestOutcome.MISSING)


class ReleaseSource:
    """Makes `releases` tasks."""

    async def make(self, package: Package, workshop: Workshop) -> Yield:
        """See `TaskSource.make`."""
        made = Yield()
        for base, gold in package.releases:
            pair = await _Pair.set_up(package, workshop, base, gold)
            await pair.collect(made)
        return made


@dataclass(frozen=True)
class _Pair:
    package: Package
    workshop: Workshop
    base_version: str
    version: str
    environment: Environment
    spec: SandboxSpec
    suite: SuiteMap
    older: Texts
    newer: Texts

    @classmethod
    async def set_up(cls, package: Package, workshop: Workshop, base: str, gold: str) -> _Pair:
        """Build the layers of both releases and trace the suite of the newer one."""
        old_tree = workshop.store.tree(package.sdist(base))
        environment, spec = workshop.pinned(package, gold)
        tree = spec.tree
        request = workshop.request(package, package.test_files(tree), workshop.config.suite_timeout_s)
        traced = request.model_copy(update={"traced_paths": package.source_files(tree)})
        spec = await workshop.compiled(spec, request)
        suite = await trace_suite(workshop.backend, spec, traced, workshop.config.mutations.max_test_s)
        older, newer = _texts(package, old_tree), _texts(package, tree)
        return cls(package, workshop, base, gold, environment, spec, suite, older, newer)

    async def collect(self, made: Yield) -> None:
        """Add this pair's tasks and counts to ``made``."""
        made.funnel["pairs"] += 1
        stable = await self._stable_tests()
        fixed = await self._fixed_tests(stable)
        made.funnel["fixed_tests"] += len(fixed)
        if not fixed:
            made.funnel["pairs_without_fixed_tests"] += 1
            return
        hunks = find_hunks(self.older, self.newer)
        made.funnel["hunks"] += len(hunks)
        if len(hunks) > self.workshop.config.releases.max_hunks:
            made.funnel["pairs_with_too_many_hunks"] += 1
            return
        fixes = await self._ablate(hunks, fixed, made.funnel)
        for fix in fixes[: self.workshop.config.releases.num_per_pair]:
            outcome = await self._judge(fix, stable, fixed)
            made.funnel["kept" if isinstance(outcome, Task) else outcome] += 1
            if isinstance(outcome, Task):
                made.tasks.append(outcome)

    async def _stable_tests(self) -> tuple[str, ...]:
        """Usable tests that pass in every run of the newer release: the traced one and cold ones."""
        num_runs = self.workshop.config.releases.num_baseline_runs - 1
        cold = self._suite_request().model_copy(update={"is_cold": True})
        runs = await run_times(self.workshop.backend, self.spec, cold, num_runs)
        unstable = unstable_ids(runs)
        passed = (i for i in self.suite.num_executed if i not in unstable and all(run.passes((i,)) for run in runs))
        return tuple(passed)

    async def _fixed_tests(self, stable: tuple[str, ...]) -> tuple[str, ...]:
        """Stable tests that the sources of the older release fail."""
        changed = {
            path for path in self.older.keys() | self.newer.keys() if self.older.get(path) != self.newer.get(path)
        }
        run = await self._run({path: self.older.get(path) for path in sorted(changed)}, self._suite_request())
        return tuple(test_id for test_id in stable if run.outcome(test_id) in _BROKEN)

    async def _ablate(self, hunks: list[Hunk], fixed: tuple[str, ...], funnel: Counter[str]) -> list[Fix]:
        """Revert each hunk alone and group the hunks by the tests that break."""
        coding = [hunk for hunk in hunks if changes_code(self.newer, self.older, hunk)]
        funnel["hunks_without_code"] += len(hunks) - len(coding)
        request = self._bounded_request(fixed)

        async def ablate(hunk: Hunk) -> tuple[str, ...]:
            run = await self._run(Fix((hunk,), self.older, self.newer).broken_files, request)
            return tuple(test_id for test_id in fixed if run.outcome(test_id) in _BROKEN)

        by_broken: dict[tuple[str, ...], list[Hunk]] = defaultdict(list)
        async with aclosing(ordered_map(ablate, coding, self.workshop.config.num_concurrent)) as ablated:
            async for hunk, broken in ablated:
                if broken:
                    by_broken[broken].append(hunk)
                else:
                    funnel["hunks_untested"] += 1
        funnel["fixes"] += len(by_broken)
        return [Fix(tuple(found), self.older, self.newer) for found in by_broken.values()]

    async def _judge(self, fix: Fix, stable: tuple[str, ...], fixed: tuple[str, ...]) -> Task | str:
        """The task that a fix makes, or why it makes none."""
        whole = await self._run(fix.broken_files, self._bounded_request(stable))
        failing = tuple(test_id for test_id in stable if whole.outcome(test_id) in _BROKEN)
        if whole.is_timed_out or any(whole.outcome(i) is not TestOutcome.FAILED for i in failing):
            return "does_not_import"
        if not set(failing) <= set(fixed):
            return "entangled"
        neighbours = self._neighbours(fix, tuple(i for i in stable if i not in set(failing)), failing)
        config = self.workshop.config
        request = self.workshop.request(self.package, failing + neighbours, config.run_timeout_s)
        spec = self.spec.model_copy(update={"files": fix.broken_files})
        empty = await run_times(self.workshop.backend, spec, request, config.num_certificate_runs)
        gold = await run_times(self.workshop.backend, self.spec, request, config.num_certificate_runs)
        evidence = Evidence(empty, gold)
        fail_to_pass, pass_to_pass, _ = evidence.split_tests(failing + neighbours)
        if not fail_to_pass:
            return "unstable"
        try:
            return self._assemble(fix, evidence, fail_to_pass, pass_to_pass)
        except TaskError:
            return "test_not_cuttable"

    def _covering(self, fix: Fix) -> list[str]:
        """Usable tests that execute a touched function."""
        lines = {path: first_lines(self.newer[path] or "") for path in fix.gold_files}
        places = [(path, lines[path][span.first_line]) for path, span in fix.touched_functions()]
        return [test_id for place in places for test_id in self.suite.covering.get(place, ())]

    def _neighbours(self, fix: Fix, passing: tuple[str, ...], failing: tuple[str, ...]) -> tuple[str, ...]:
        """Passing tests that execute the touched functions, then others of the failing tests' files.

        Tests of other functions come first: parameters of a failing function cannot be shown.
        """
        wanted, files = set(passing), {file_of(test_id) for test_id in failing}
        near = [test_id for test_id in self._covering(fix) if test_id in wanted]
        near += [test_id for test_id in passing if file_of(test_id) in files]
        hidden = set(functions_of(failing))
        ranked = sorted(dict.fromkeys(near), key=lambda test_id: function_id(test_id) in hidden)
        return tuple(ranked[: self.workshop.config.releases.num_passing_kept])

    def _assemble(self, fix: Fix, evidence: Evidence, failing: tuple[str, ...], passing: tuple[str, ...]) -> Task:
        visibility = choose_visible(failing, passing, evidence.empty[0])
        seed = f"{self.workshop.config.seed}:{self.version}"
        issue, issue_source = fix_issue(fix, self.spec.tree, self.version, failing, visibility, evidence.empty[0], seed)
        numbers = ",".join(str(hunk.number) for hunk in fix.hunks)
        bug = Bug(
            package=self.package,
            source="releases",
            version=self.version,
            base_version=self.base_version,
            recipe=f"hunks {numbers} of {self.base_version} -> {self.version} reverted",
            tree=self.spec.tree,
            environment=self.environment,
            broken=fix.broken_files,
            gold=fix.gold_files,
            fail_to_pass=failing,
            pass_to_pass=passing,
            visibility=visibility,
            certificate=evidence.certificate(failing, passing),
            location=fix.location(),
            labels={"operator": "release", "difficulty": str(len(fix.hunks)), "issue_source": issue_source},
        )
        return assemble(bug, issue, self.workshop.config, self.workshop.config.releases.num_passing_kept)

    def _suite_request(self) -> TestRequest:
        usable = tuple(self.suite.num_executed)
        return self.workshop.request(self.package, usable, self.workshop.config.suite_timeout_s)

    def _bounded_request(self, test_ids: tuple[str, ...]) -> TestRequest:
        """A run over sources that may hang."""
        return self.workshop.request(self.package, test_ids, self.workshop.config.releases.ablation_timeout_s)

    async def _run(self, files: dict[str, str | None], request: TestRequest) -> TestRun:
        return await run_fresh(self.workshop.backend, self.spec.model_copy(update={"files": files}), request)


def _texts(package: Package, tree: Path) -> dict[str, str | None]:
    return {path: read_text(tree / path) for path in package.source_files(tree)}

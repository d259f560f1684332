"""The audit of tasks: do a task's tests refute wrong variants of its repair, and accept right ones?

Reads tasks and their pinned trees. Makes one `TaskAudit` per task. A variant that the task's own tests do not refute is
*surviving*; it is *refutable* when a test of the package's suite or a probe tells it from gold, else *unknown*.
Guarantees: the runs that decide are those of grading, without canaries; what is stable on gold is known from several
gold runs, which the tasks of one tree share; a task never takes more than its time; what was not tried, what could not
be made and what no probe could look at is counted.
"""

import asyncio
import hashlib
from collections import defaultdict
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Literal

from repairgym.diffs.make import unified_diff
from repairgym.errors import RepairGymError, SandboxError
from repairgym.records import Accuracy, Record, Task, TestOutcome, TestRun
from repairgym.sandbox.base import SandboxBackend, SandboxSpec
from repairgym.tasks.audit.probes import Difference, Observations, Probe, differences, make_probes, observe
from repairgym.tasks.audit.suite import FunctionPlace, TreeSuite, by_tree, read_suite, suite_key
from repairgym.tasks.audit.variants import (
    GROUPS,
    Texts,
    TextsKey,
    Variant,
    VariantBounds,
    right_variants,
    texts_key,
    wrong_variants,
)
from repairgym.tasks.build.concurrency import ordered_map
from repairgym.tasks.build.test_files import file_of
from repairgym.tasks.build.validation import graded_files, run_fresh, task_layers, task_request
from repairgym.tasks.layers.store import LayerStore

AUDIT_FORMAT = 3
_START_FACTOR = 3.0
"""Ratio of the bound on the start of a run to what the longest start of the suite took."""
NUM_FIRST_TESTS = 10
"""Tests that run first: most wrong variants fail one of them."""
SUITE_S = 2.0
"""Most gold time of the suite's tests that a survivor meets, smallest tests first."""
NUM_FILES = 8
"""Most files of these tests, where each runs whole and in a process of its own (node)."""


class AuditBounds(Record):
    """Bounds of an audit."""

    variants: VariantBounds = VariantBounds()
    num_suite_runs: int = 2
    seconds_per_task: float = 30.0
    """Run time after which no further variant is tried."""


_ObservedKey = tuple[frozenset[FunctionPlace], str]
_Observed = asyncio.Future[tuple[list[Probe], Observations, Observations]]
VariantStatus = Literal["refuted", "refutable", "unknown", "accepted", "rejected", "untried"]


class VariantOutcome(Record):
    """The fate of one variant; rewrites are *accepted* or *rejected*, the others refuted or surviving."""

    kind: str
    detail: str
    status: VariantStatus
    told_by: str = ""
    """The test, or the probe, that tells it from gold."""
    patch: str = ""
    """Of a survivor and of a rejected rewrite: its difference from gold."""
    is_probed: bool = False
    """Of an unknown one: probes compared it with gold. There are none but of Python."""


class TaskAudit(Record):
    """Fates of the variants of one task."""

    task_id: str
    key: str
    """Digest of the task and the bounds."""
    package: str
    source: str
    num_pass_to_pass: int
    outcomes: tuple[VariantOutcome, ...]
    lacking: tuple[str, ...]
    """Groups of kinds (`GROUPS`) of which nothing was made: no place in the repair, or not in its language."""
    run_s: float

    def count(self, *statuses: VariantStatus) -> int:
        """Return the number of variants with one of ``statuses``."""
        return sum(outcome.status in statuses for outcome in self.outcomes)

    @property
    def accuracy(self) -> Accuracy:
        """The counts for the task's certificate."""
        return Accuracy(
            num_wrong=self.count("refuted", "refutable"),
            num_accepted=self.count("refutable"),
            num_unknown=self.count("unknown"),
            num_right=self.count("accepted", "rejected"),
            num_rejected=self.count("rejected"),
        )


def audit_key(task: Task, bounds: AuditBounds) -> str:
    """Return the digest of everything that an audit depends on."""
    plain = task.model_copy(update={"certificate": task.certificate.model_copy(update={"accuracy": None})})
    return hashlib.sha256(f"{AUDIT_FORMAT}:{plain.digest()}:{bounds.digest()}".encode()).hexdigest()[:32]


@dataclass
class TreeAudit:
    """Audits of the tasks of one tree; what they share is computed once."""

    suite: TreeSuite
    backend: SandboxBackend
    store: LayerStore
    tasks: Sequence[Task]
    """Tasks whose bugs serve as wrong variants of each other."""
    observed: dict[_ObservedKey, _Observed] = field(default_factory=dict)
    """Changed functions (and the task, where other code changed) -> probes with two gold observations."""
    outcomes: dict[TextsKey, dict[str, bool]] = field(default_factory=lambda: defaultdict(dict))
    """Texts over the tree -> test -> whether it passes: the bug of one task is a variant of others."""

    def __post_init__(self) -> None:
        """Take over what the certificates of the tasks show."""
        for task in self.tasks:
            broken = texts_key({path: task.base_files.get(path) for path in task.gold_files})
            self.outcomes[broken] |= dict.fromkeys(task.pass_to_pass, True) | dict.fromkeys(task.fail_to_pass, False)

    def note(self, files: Texts, run: TestRun) -> None:
        """Remember the outcomes of ``run`` with ``files``; tests that it did not reach are none."""
        results = {i: result.outcome for i, result in run.results.items() if result.outcome is not TestOutcome.MISSING}
        self.outcomes[texts_key(files)] |= {i: outcome is TestOutcome.PASSED for i, outcome in results.items()}

    def spec(self, task: Task, files: Texts) -> SandboxSpec:
        """Return a sandbox of ``task`` with ``files`` in the place of its repair."""
        return task_layers(task, self.store).spec(graded_files(task, dict(files)))

    async def probe(self, task: Task, variant: Variant) -> list[Difference] | None:
        """Return the probes that tell ``variant`` from the gold code; None when there is no probe."""
        if task.runner.type != "pytest":
            return None
        key = variant.places, "" if variant.places else task.id
        if key not in self.observed:
            self.observed[key] = asyncio.ensure_future(self._observe_gold(task, variant))
        probes, *gold = await asyncio.shield(self.observed[key])
        if not probes:
            return None
        spec = self.spec(task, variant.files)
        theirs = await observe(self.backend, spec, probes, task.source_paths)
        return differences(probes, (gold[0], gold[1]), theirs)

    async def _observe_gold(self, task: Task, variant: Variant) -> tuple[list[Probe], Observations, Observations]:
        probes = make_probes(self.suite, variant.places, "")
        if not probes:
            return probes, [], []
        spec = self.spec(task, task.gold_files)
        first = await observe(self.backend, spec, probes, task.source_paths)
        return probes, first, await observe(self.backend, spec, probes, task.source_paths, hash_seed=1)


class TaskTrial:
    """Runs of one task's tests on variants."""

    def __init__(self, tree: TreeAudit, task: Task) -> None:
        self.tree = tree
        self.task = task
        self.run_s = 0.0

    async def refuting_test(self, files: Texts, test_ids: Sequence[str], num_first: int = NUM_FIRST_TESTS) -> str:
        """Return a test of ``test_ids`` that does not pass with ``files``; empty when all pass."""
        known = self.tree.outcomes[texts_key(files)]
        if told_by := next((i for i in test_ids if known.get(i) is False), ""):
            return told_by
        new = [i for i in test_ids if i not in known]
        if self.task.runner.is_node:
            num_first = len(new)  # a file runs whole, whatever is asked of it
        for part in (new[:num_first], new[num_first:]):
            if part:
                run = await self._run(files, tuple(part))
                self.tree.note(files, run)
                bad = next((i for i in part if run.outcome(i) is not TestOutcome.PASSED), "")
                if bad or run.is_timed_out:
                    return bad or part[-1]
        return ""

    def is_refuted(self, files: Texts) -> bool:
        """Return True when a run has shown that a test of the task does not pass with ``files``."""
        known = self.tree.outcomes[texts_key(files)]
        return any(known.get(test_id) is False for test_id in own_tests(self.task))

    async def _run(self, files: Texts, test_ids: tuple[str, ...]) -> TestRun:
        request = task_request(self.task, test_ids)
        if seconds := self.tree.suite.seconds_of(test_ids, self.task.runner.is_node):
            slowest, total = max(seconds), sum(seconds)
            run_s = 5 * total + _START_FACTOR * self.tree.suite.start_s + 1.0
            bounds = {"test_timeout_s": max(0.5, 10 * slowest), "timeout_s": max(1.5, run_s)}
            request = request.model_copy(update=bounds)
        run = await run_fresh(self.tree.backend, self.tree.spec(self.task, files), request)
        self.run_s += run.duration_s
        return run

    def further_tests(self, variant: Variant) -> tuple[str, ...]:
        """Return the tests of the suite that execute what ``variant`` changes, without those of the task."""
        suite, own = self.tree.suite, set(own_tests(self.task))
        covering = suite.of_functions(variant.places) if variant.places else suite.of_files(self.task.gold_files)
        further = [i for i in covering if i not in own]
        if self.task.runner.is_node:
            files = [*dict.fromkeys(map(file_of, further))][:NUM_FILES]
            further = [i for i in further if file_of(i) in files]
        return suite.within(further, SUITE_S)

    async def try_right(self, variant: Variant) -> VariantOutcome:
        """Return whether the task's tests accept a rewrite."""
        tests = own_tests(self.task)
        told_by = await self.refuting_test(variant.files, tests, len(tests))
        return self._outcome(variant, "rejected" if told_by else "accepted", told_by)

    async def try_wrong(self, variant: Variant) -> VariantOutcome:
        """Return whether the task's tests, the suite or a probe refute ``variant``."""
        if told_by := await self.refuting_test(variant.files, own_tests(self.task)):
            return self._outcome(variant, "refuted", told_by)
        if told_by := await self.refuting_test(variant.files, self.further_tests(variant)):
            return self._outcome(variant, "refutable", told_by)
        told = await self.tree.probe(self.task, variant)
        if told:
            first = told[0]
            call = f"({first.probe.receiver}).{first.probe.call}" if first.probe.receiver else first.probe.call
            return self._outcome(variant, "refutable", f"probe: {call}: {first.expression} is {first.expected}")
        return self._outcome(variant, "unknown", "", is_probed=told is not None)

    def _outcome(
        self, variant: Variant, status: VariantStatus, told_by: str, is_probed: bool = False
    ) -> VariantOutcome:
        is_shown = status in ("refutable", "unknown", "rejected")
        patch = unified_diff(dict(self.task.gold_files), dict(variant.files)) if is_shown else ""
        return VariantOutcome(
            kind=variant.kind,
            detail=variant.detail,
            status=status,
            told_by=told_by,
            patch=patch,
            is_probed=is_probed,
        )


def own_tests(task: Task) -> tuple[str, ...]:
    """Return the tests that decide ``task``, those that a wrong repair is most likely to fail first."""
    return (*task.fail_to_pass, *task.pass_to_pass)


async def audit_task(tree: TreeAudit, task: Task, bounds: AuditBounds) -> TaskAudit:
    """Try the variants of ``task``."""
    trial, outcomes = TaskTrial(tree, task), []
    wrong = wrong_variants(task, tree.tasks, bounds.variants, tree.suite.layers.tree)
    turns = zip_longest(right_variants(task, bounds.variants), wrong)  # the bound on time cuts both alike
    variants = [variant for turn in turns for variant in turn if variant]
    made = {variant.kind for variant in variants}
    for variant in variants:
        if trial.run_s > bounds.seconds_per_task and not trial.is_refuted(variant.files):
            outcomes.append(VariantOutcome(kind=variant.kind, detail=variant.detail, status="untried"))
        else:
            outcomes.append(await (trial.try_right if variant.kind == "rewrite" else trial.try_wrong)(variant))
    return TaskAudit(
        task_id=task.id,
        key=audit_key(task, bounds),
        package=task.provenance.package,
        source=task.source,
        num_pass_to_pass=len(task.pass_to_pass),
        outcomes=tuple(outcomes),
        lacking=tuple(name for name, kinds in GROUPS.items() if not made & set(kinds)),
        run_s=round(trial.run_s, 3),
    )


async def audit_tasks(
    tasks: Iterable[Task],
    siblings: Iterable[Task],
    store: LayerStore,
    backend: SandboxBackend,
    bounds: AuditBounds,
    num_concurrent: int = 2,
) -> AsyncGenerator[tuple[Task, TaskAudit | str], None]:
    """Yield each task with its audit, or the reason why its tree cannot be audited.

    ``siblings`` are tasks whose bugs serve as wrong variants.
    """
    others = {suite_key(group[0]): group for group in by_tree(siblings)}
    for group in by_tree(tasks):
        related = others.get(suite_key(group[0]), group)
        try:
            suite = await read_suite(related, store, backend, bounds.num_suite_runs)
        except SandboxError:
            raise
        except RepairGymError as error:
            for task in group:
                yield task, str(error)
            continue
        tree = TreeAudit(suite, backend, store, related)
        async with aclosing(ordered_map(lambda t: audit_task(tree, t, bounds), group, num_concurrent)) as audited:  # noqa: B023
            async for task, audit in audited:
                yield task, audit

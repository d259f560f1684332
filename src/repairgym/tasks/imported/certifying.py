"""Certificates of imported tasks: which tests fail before the repair and pass with it, by runs of our own.

Reads the installed layers of a record. Makes a `Task`, and counts that compare its test lists with those of the record.
Guarantees: a test is in a list because it had that outcome in every run, sealed as grading seals it, and because the
record names it; a test of the record that no run had under its name is counted, never guessed; visible tests are those
that pass in the agent's own tree.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from repairgym.config.tasks import ImportedConfig
from repairgym.errors import TaskError
from repairgym.records import (
    Certificate,
    Environment,
    MeasuredUse,
    Provenance,
    Record,
    Task,
    TestOutcome,
    TestRequest,
    TestRun,
    TestRunner,
)
from repairgym.sandbox.base import SandboxBackend, SandboxLimits
from repairgym.tasks.build.test_files import conftest_paths, file_of
from repairgym.tasks.build.validation import Evidence, run_fresh
from repairgym.tasks.imported.installation import Installed
from repairgym.tasks.imported.interpreters import OLDEST_PYTHON, Interpreter
from repairgym.tasks.imported.named_tests import SignedRunner, files_of_tests, log_runner, match_ids
from repairgym.tasks.imported.pytest_settings import asked_plugins, kept_settings, search_paths
from repairgym.tasks.layers.metadata import license_of
from repairgym.tasks.unbuilt import UnbuiltTask

NUM_VISIBLE = 20
MIN_RUN_TIMEOUT_S, MIN_TEST_TIMEOUT_S = 60.0, 10.0
_FACTOR = 4.0
"""Ratio of a task's deadlines to what its runs took here."""
_UNREACHABLE = re.compile(
    r"gaierror|name resolution|Name or service not known|nodename nor servname|Network is unreachable|No route to host|"
    r"Max retries exceeded|NewConnectionError|Failed to resolve|URLError"
)


_USE_FACTOR, _STEP_BYTES = 2, 64 << 20
"""Ratio of a task's bounds on memory and disk to what its runs used, and the step to which they are rounded up."""


class NotCertifiedError(TaskError):
    """A record whose runs prove nothing."""


class TestCounts(Record):
    """The test lists of a record next to the certified ones."""

    num_official_fail_to_pass: int = 0
    num_official_pass_to_pass: int = 0
    num_fail_to_pass: int = 0
    num_pass_to_pass: int = 0
    unmatched: tuple[str, ...] = ()
    """Tests of the record that no run with the repair has under their name."""
    passed_before: tuple[str, ...] = ()
    """Tests that the record lists as failing, and that pass without the repair: pass-to-pass tests in truth."""
    missing_before: tuple[str, ...] = ()
    """Tests that the record lists as failing, and that do not exist without the repair."""
    failed_after: tuple[str, ...] = ()
    """Tests of the record that do not pass with the repair here."""
    unstable: tuple[str, ...] = ()
    network: tuple[str, ...] = ()
    """Those of `failed_after` that fail because sandboxes have no network."""

    @property
    def differences(self) -> dict[str, tuple[str, ...]]:
        """The fields of a certificate that say where the record's lists differ."""
        undecided = dict.fromkeys((*self.unmatched, *self.missing_before, *self.failed_after, *self.unstable))
        before = tuple(name for name in self.passed_before if name not in undecided)
        return {"passed_before": before, "undecided": tuple(undecided)}


@dataclass(frozen=True)
class Certifier:
    """Runs the tests of one record."""

    task: UnbuiltTask
    installed: Installed
    interpreter: Interpreter
    backend: SandboxBackend
    config: ImportedConfig
    names: SignedRunner = "pytest"
    """Runner whose names the record has."""
    log: TestRunner | None = None
    """Unsigned runner in place of the signed one."""

    @property
    def runner(self) -> TestRunner:
        """The runner of the task: pytest of the environment or, where that has none, of the tree."""
        if self.log or self.names != "pytest":
            return self.log or TestRunner(type=self.names)
        settings = kept_settings(self.installed.tree, self._plugins, self.interpreter.is_neighbour)
        return TestRunner(type="own_pytest" if self._is_own_pytest else "pytest", settings=settings)

    def files(self) -> tuple[str, ...]:
        """Return the files that hold the record's tests."""
        names = (*self.task.fail_to_pass, *self.task.pass_to_pass)
        return files_of_tests(self.names, names, self._changed_tests(), self.installed.tree)

    async def certify_or_log(self, command: str) -> tuple[Task, TestCounts]:
        """Certify by signed runs or, where they certify nothing and this is allowed, by the log of ``command``."""
        try:
            if self.interpreter.minor < OLDEST_PYTHON:
                oldest = ".".join(map(str, OLDEST_PYTHON))
                text = f"signed runs need Python {oldest} or newer, and the image has {self.interpreter.version}"
                raise NotCertifiedError(f"{text}; is_log_allowed=true reads its log instead")
            return await self.certify()
        except NotCertifiedError:
            log = log_runner(self.names, command, self.files()) if self.config.is_log_allowed else None
            if log is None:
                raise
            return await replace(self, log=log).certify()

    async def certify(self) -> tuple[Task, TestCounts]:
        """Return the certified task and the comparison of its lists.

        Raises:
            NotCertifiedError: no test of the record fails before the repair and passes with it, in every run.
            SandboxError: a sandbox could not do its work.
        """
        names = (*self.task.fail_to_pass, *self.task.pass_to_pass)
        asked = names if self.log else self.files()
        first = await self._run(self.task.gold_files, asked, is_sealed=False)
        if first.is_timed_out:
            raise NotCertifiedError(f"the tests took longer than {self.config.run_timeout_s:g} s with the repair")
        matches = self._match(names, first)
        wanted = tuple(dict.fromkeys(own for ids in matches.values() for own in ids))
        if not any(first.outcome(name) is TestOutcome.PASSED for name in wanted):
            reason = _first_reason(first, wanted) + _without_network(network_failures(first, wanted))
            raise NotCertifiedError(f"no test of the record passes with the repair: {reason}")
        num_runs = self.config.num_certificate_runs
        gold = [await self._run(self.task.gold_files, wanted) for _ in range(num_runs)]
        empty = [await self._run({}, wanted) for _ in range(num_runs)]
        evidence = Evidence(empty, gold)
        failing, passing, unstable = evidence.split_tests(wanted)
        counts = self._count(matches, evidence, failing, passing, unstable)
        if not failing:
            raise NotCertifiedError(_explain(counts))
        certificate = evidence.certificate(failing, passing)
        if not certificate.is_valid:
            raise NotCertifiedError("runs with the same files ended differently")
        use = await self._measure((*gold, *empty), wanted=failing + passing)
        certificate = certificate.model_copy(update={"use": use})
        visible = await self._visible(passing)
        certificate = certificate.model_copy(update=counts.differences)
        return self._assemble(failing, passing, visible, certificate, gold), counts

    async def _measure(self, runs: Sequence[TestRun], wanted: tuple[str, ...]) -> MeasuredUse | None:
        """Return what ``runs`` used and the bounds that follow, under which the repair passes; None if not counted.

        Address space is bounded, too, and not counted: where a run within these bounds does not pass, the bounds are
        those of the certifying runs.
        """
        peaks, disks = [run.peak_memory_bytes for run in runs], [run.disk_bytes or 0 for run in runs]
        if None in peaks:
            return None
        own, peak, disk = self.config.sandbox.limits, max(map(int, filter(None, peaks)), default=0), max(disks)
        memory_limit, disk_limit = _with_margin(peak), _with_margin(disk)
        default = SandboxLimits()
        tight = default.model_copy(
            update={
                "memory_bytes": max(default.memory_bytes, memory_limit),
                "disk_bytes": max(default.disk_bytes, disk_limit),
            }
        )
        if tight.memory_bytes < own.memory_bytes or tight.disk_bytes < own.disk_bytes:
            run = await self._run(self.task.gold_files, wanted, limits=tight)
            if not run.passes(wanted):
                memory_limit, disk_limit = own.memory_bytes, own.disk_bytes
        return MeasuredUse(
            peak_memory_bytes=peak, disk_bytes=disk, memory_limit_bytes=memory_limit, disk_limit_bytes=disk_limit
        )

    def _match(self, names: Sequence[str], run: TestRun) -> dict[str, tuple[str, ...]]:
        if not self.log:
            return match_ids(self.names, names, run.results, self.installed.tree)
        # A log has the names of the record, but for the ids of pytest that data sets cut at a blank.
        shown = [name for name, result in run.results.items() if result.outcome is not TestOutcome.MISSING]
        cut = match_ids("pytest", names, shown, self.installed.tree) if self.names == "pytest" else {}
        return {name: (name,) if name in shown else cut.get(name, ()) for name in names}

    def _changed_tests(self) -> set[str]:
        """Return the files of the record's patch of tests."""
        return {path for path in self.task.base_files if path not in self.task.gold_files}

    async def _run(
        self,
        repair: Mapping[str, str | None],
        ids: tuple[str, ...],
        is_sealed: bool = True,
        limits: SandboxLimits | None = None,
    ) -> TestRun:
        request = TestRequest(
            test_ids=ids,
            timeout_s=self.config.run_timeout_s,
            test_timeout_s=self.config.test_timeout_s,
            source_paths=self._source_paths,
            plugins=self._plugins,
            runner=self.runner,
            is_sealed=is_sealed,
        )
        spec = self.installed.layers.spec(dict(repair), limits or self.config.sandbox.limits)
        return await run_fresh(self.backend, spec, request)

    @property
    def _is_own_pytest(self) -> bool:
        return not self.log and self.names == "pytest" and not self.installed.packages.has_pytest

    @property
    def _plugins(self) -> tuple[str, ...]:
        own = asked_plugins(self.installed.tree) if self._is_own_pytest else ()
        return (*self.installed.packages.plugins, *own)

    @property
    def _source_paths(self) -> tuple[str, ...]:
        named = search_paths(self.installed.tree) if self.names == "pytest" else ()
        return tuple(dict.fromkeys((*self.installed.source_paths, *named)))

    async def _visible(self, passing: Sequence[str]) -> tuple[str, ...]:
        """Return passing tests that the agent's own tree has, and that pass there."""
        base = self._base_files()
        touched = self._changed_tests() & base.keys()
        ranked = sorted(passing, key=lambda name: file_of(name) in touched)[: 4 * NUM_VISIBLE]
        if not ranked:
            return ()
        run = await self._run(base, tuple(ranked), is_sealed=False)
        return tuple(name for name in ranked if run.outcome(name) is TestOutcome.PASSED)[:NUM_VISIBLE]

    def _base_files(self) -> dict[str, str | None]:
        """Return the files of the agent's base over the tree; absent files that the tree lacks, too, are left out."""
        files = self.task.base_files.items()
        return {path: text for path, text in files if text is not None or (self.installed.tree / path).exists()}

    def _count(
        self,
        matches: Mapping[str, tuple[str, ...]],
        evidence: Evidence,
        failing: tuple[str, ...],
        passing: tuple[str, ...],
        unstable: tuple[str, ...],
    ) -> TestCounts:
        listed = [own for name in self.task.fail_to_pass for own in matches.get(name, ())]
        wanted = tuple(dict.fromkeys(own for ids in matches.values() for own in ids))
        before, after = evidence.empty[0], evidence.gold[0]
        return TestCounts(
            num_official_fail_to_pass=len(self.task.fail_to_pass),
            num_official_pass_to_pass=len(self.task.pass_to_pass),
            num_fail_to_pass=len(failing),
            num_pass_to_pass=len(passing),
            unmatched=tuple(name for name, ids in matches.items() if not ids),
            passed_before=tuple(name for name in listed if before.outcome(name) is TestOutcome.PASSED),
            missing_before=tuple(name for name in listed if before.outcome(name) is TestOutcome.MISSING),
            failed_after=tuple(name for name in wanted if after.outcome(name) is not TestOutcome.PASSED),
            unstable=unstable,
            network=network_failures(after, wanted),
        )

    def _assemble(
        self,
        failing: tuple[str, ...],
        passing: tuple[str, ...],
        visible: tuple[str, ...],
        certificate: Certificate,
        gold: Sequence[TestRun],
    ) -> Task:
        task, tree = self.task, self.installed.tree
        longest_s = max(run.duration_s for run in gold)
        slowest_s = max(result.duration_s for run in gold for result in run.results.values())
        return Task(
            id=task.id,
            source="imported",
            provenance=Provenance(
                package=task.repository,
                version=task.version,
                recipe=f"record of {task.format}",
                repository=task.repository,
                base_commit=task.base_commit,
                licence=task.license or license_of(tree),
            ),
            issue=task.issue,
            base_tree=tree.name,
            base_files=self._base_files(),
            environment=Environment(
                lock=self.installed.packages.lock,
                python=self.interpreter.version,
                digest=self.installed.digest,
                image=self.installed.image,
            ),
            source_paths=self._source_paths,
            plugins=self._plugins,
            visible_tests=visible,
            fail_to_pass=failing,
            pass_to_pass=passing,
            runner=self.runner,
            test_paths=self._test_paths((*failing, *passing)),
            gold_files=task.gold_files,
            gold_patch=task.gold_patch,
            created_at=task.created_at,
            labels=self._labels(),
            split=task.split or "test",
            certificate=certificate,
            test_timeout_s=max(MIN_TEST_TIMEOUT_S, round(_FACTOR * slowest_s, 1)),
            timeout_s=max(MIN_RUN_TIMEOUT_S, round(_FACTOR * longest_s, 1)),
        )

    def _labels(self) -> dict[str, str]:
        task = self.task
        labels = {**task.labels, "package": task.repository, "format": task.format, "error_class": "test"}
        if self.log:
            labels["results"] = "unsigned log"
        if self.interpreter.is_neighbour:
            labels["neighbour_python"] = f"{task.python or 'the recipe'} -> {self.interpreter.version}"
        return labels

    def _test_paths(self, ids: Iterable[str]) -> tuple[str, ...]:
        """Return the files that decide: those of the tests, those of the patch of tests, and conftest files."""
        changed = self._changed_tests()
        files = {file_of(name) for name in ids} if self.runner.is_signed else set(self.files())
        near = {path for path in conftest_paths(files) if (self.installed.tree / path).is_file()}
        return tuple(sorted((files | changed | near) - self.task.gold_files.keys()))


def network_failures(run: TestRun, wanted: Iterable[str]) -> tuple[str, ...]:
    """Return the tests of ``run`` that failed because a host could not be reached."""
    results = ((name, run.results.get(name)) for name in wanted)
    return tuple(name for name, result in results if result and _UNREACHABLE.search(result.message))


def _without_network(names: Sequence[str]) -> str:
    return f"; need a network, which sandboxes lack: {len(names)}" if names else ""


def _with_margin(num_bytes: int) -> int:
    return -(-_USE_FACTOR * num_bytes // _STEP_BYTES) * _STEP_BYTES


def _first_reason(run: TestRun, wanted: Iterable[str]) -> str:
    results = [run.results[name] for name in wanted if name in run.results] or list(run.results.values())
    messages = [result.message for result in results if result.message]
    return (messages[0] if messages else run.output_tail.strip()[-200:] or "nothing was collected")[:200]


def _explain(counts: TestCounts) -> str:
    parts = (
        (counts.passed_before, "pass before the repair"),
        (counts.missing_before, "do not exist before the repair"),
        (counts.failed_after, "do not pass with the repair"),
        (counts.unmatched, "have another name here"),
        (counts.unstable, "are unstable"),
    )
    told = ", ".join(f"{len(names)} {what}" for names, what in parts if names)
    reason = f"none of {counts.num_official_fail_to_pass} tests fails before the repair and passes with it: {told}"
    return reason + _without_network(counts.network)

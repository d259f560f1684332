"""Test runs assembled from records, from a JUnit XML report, a log, or exit statuses.

Reads the records of a runner inside (:mod:`repairgym.sandbox.guest.runners.recorder`, passed on by its supervisor), or
runs the command of a ``junit_xml`` or ``exit_code`` runner; makes a :class:`~repairgym.records.TestRun`. Guarantees:
the worst phase of a test decides; a test whose teardown did not end is *missing*, whatever its other phases said; every
requested id has a result. A report from before the run never counts; a report that contradicts the exit status is an
error of every test; a report is untrusted, so it is bounded and has no document type (entities can grow without end).
Nothing here can distinguish an honest report from one that the code under test wrote (docs/security.md).
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from xml.parsers import expat

from repairgym.records import TestOutcome, TestRequest, TestResult, TestRun, storable
from repairgym.sandbox.base import ExecResult, Sandbox
from repairgym.sandbox.logs import parse_log

NUM_TAIL_CHARS = 16_000
MISSING = TestResult(outcome=TestOutcome.MISSING)
TEST_PLACEHOLDER = "{test}"
MAX_REPORT_BYTES = 16 << 20
_REMOVE_TIMEOUT_S = 30.0
_RANKS = (TestOutcome.PASSED, TestOutcome.SKIPPED, TestOutcome.FAILED, TestOutcome.ERROR, TestOutcome.MISSING)
_JUNIT_OUTCOMES = {"failure": TestOutcome.FAILED, "error": TestOutcome.ERROR, "skipped": TestOutcome.SKIPPED}
_BOUNDARY = re.compile("/|::")
_Record = dict[str, Any]


def assemble_run(
    request: TestRequest, answer: Mapping[str, Any], output: bytes, parsed: tuple[Sequence[_Record], int]
) -> TestRun:
    """Assemble the run of ``request`` from ``parsed``: records, and the number of lines that are none.

    ``answer`` is the end of the process: exit status, signal, deadline, duration.
    """
    records, num_forged = parsed
    checks = {str(record["check"]): _test_result(record) for record in records if "check" in record}
    selected = [storable(str(name)) for record in records for name in record.get("selected") or ()]
    traced = {_id(record): tuple(map(str, record["functions"])) for record in records if "functions" in record}
    finished = _finished(records)
    results = {name: finished.get(name, MISSING) for name in selected} | finished
    return TestRun(
        results=with_requested(request, results),
        output_tail=output.decode(errors="replace")[-NUM_TAIL_CHARS:],
        executed_functions={name: traced.get(name, ()) for name in finished} if request.traced_paths else {},
        checks={name: result for name, result in checks.items() if result is not None},
        num_forged_records=num_forged
        + sum((record.get("is_forged") is True) + int(record.get("num_forged", 0)) for record in records),
        is_finished=any("finished" in record for record in records),
        reached_for=tuple(sorted({(str(r["reached_for"]), str(r.get("path"))) for r in records if "reached_for" in r})),
        **answer,
    )


def _finished(records: Sequence[_Record]) -> dict[str, TestResult]:
    """Return the results of finished tests: those with a teardown, or with one record without a phase.

    A test whose body no record tells of has not passed.
    """
    phases: dict[str, list[TestResult]] = {}
    complete: dict[str, bool] = {}
    called = {_id(record) for record in records if record.get("phase", "call") == "call"}
    for record in records:
        result = None if "check" in record else _test_result(record)
        if result is not None:
            name = _id(record)
            phases.setdefault(name, []).append(result)
            complete[name] = complete.get(name, False) or record.get("phase", "teardown") == "teardown"
    merged = {name: merge(results) for name, results in phases.items() if complete[name]}
    bare = {name for name, result in merged.items() if result.outcome is TestOutcome.PASSED and name not in called}
    return {name: MISSING if name in bare else result for name, result in merged.items()}


def merge(results: Sequence[TestResult]) -> TestResult:
    """Merge results into one: the first of the worst, with the time of all."""
    worst = max(results, key=lambda result: _RANKS.index(result.outcome))
    return worst.model_copy(update={"duration_s": sum(result.duration_s for result in results)})


def with_requested(request: TestRequest, results: Mapping[str, TestResult]) -> dict[str, TestResult]:
    """Return ``results`` with one for every requested id; an id of several tests has the worst of their results."""
    complete = dict(results)
    for name in request.test_ids:
        if name not in complete:
            prefixes = (name + "::", name + "[", name + "/")
            members = [result for test_id, result in results.items() if test_id.startswith(prefixes)]
            complete[name] = max(members, key=lambda result: _RANKS.index(result.outcome), default=MISSING)
    return complete


def containers(test_ids: Iterable[str]) -> set[str]:
    """Return the folders, files and classes that hold the tests ``test_ids``."""
    names = (test_id.partition("[")[0] for test_id in test_ids)
    return {name[: end.start()] for name in names for end in _BOUNDARY.finditer(name)}


def _id(record: _Record) -> str:
    return storable(str(record.get("id")))


def _test_result(record: _Record) -> TestResult | None:
    try:
        return TestResult(
            outcome=TestOutcome(record["outcome"]),
            message=str(record["message"])[:200],
            line=int(record.get("line", 0)),
            duration_s=float(record["duration_s"]),
        )
    except (KeyError, TypeError, ValueError, OverflowError):
        return None


# --- runners that are a command ------------------------------------------------------------------------------------


async def run_by_command(sandbox: Sandbox, request: TestRequest) -> TestRun:
    """Run ``request`` by its runner's command."""
    if request.runner.type == "junit_xml":
        return await _run_junit_xml(sandbox, request)
    if any(TEST_PLACEHOLDER in part for part in request.runner.command):
        return await _run_each(sandbox, request)
    done = await sandbox.exec(request.runner.command, timeout_s=request.timeout_s)
    if request.runner.type == "log":
        text = (done.stdout + done.stderr).decode(errors="replace")
        return _run(done, with_requested(request, parse_log(request.runner.parser, text)))
    result = _exit_result(done, request.timeout_s)
    return _run(done, dict.fromkeys(request.test_ids, result))


async def _run_junit_xml(sandbox: Sandbox, request: TestRequest) -> TestRun:
    path = request.runner.report_path
    await sandbox.exec(("rm", "-rf", "--", path), timeout_s=_REMOVE_TIMEOUT_S)
    done = await sandbox.exec(request.runner.command, timeout_s=request.timeout_s)
    try:
        results = parse_junit_xml(await sandbox.read_file(path))
        problem = _contradiction(done, results)
    except (OSError, ValueError) as error:
        results, problem = {}, f"no report: {error}"
    if problem:
        results = {name: TestResult(outcome=TestOutcome.ERROR, message=problem) for name in results or request.test_ids}
    return _run(done, with_requested(request, results))


def _contradiction(done: ExecResult, results: dict[str, TestResult]) -> str:
    """Describe the contradiction between exit status and report; empty when there is none."""
    has_failure = any(result.outcome in (TestOutcome.FAILED, TestOutcome.ERROR) for result in results.values())
    if done.is_timed_out:
        return "the run did not end in time"
    if done.exit_status != 0 and not has_failure:
        return f"the report names no failure, but the command ended with {_ending(done)}"
    return ""


async def _run_each(sandbox: Sandbox, request: TestRequest) -> TestRun:
    """Run one command per test, each with the deadline of a test, all within that of the run.

    The deadline of the run counts the time of the commands, without their waits for a processor (ADR 029).
    """
    remaining_s = request.timeout_s
    results: dict[str, TestResult] = {}
    last = ExecResult(exit_status=0)
    for test_id in request.test_ids:
        if remaining_s <= 0:
            return _run(last.model_copy(update={"exit_status": None, "is_timed_out": True}), results)
        command = tuple(part.replace(TEST_PLACEHOLDER, test_id) for part in request.runner.command)
        timeout_s = min(remaining_s, request.test_timeout_s)
        done = await sandbox.exec(command, timeout_s=timeout_s)
        results[test_id] = _exit_result(done, timeout_s)
        # The processor time of all processes counts, so that code cannot buy time by starving itself.
        remaining_s -= max(done.duration_s - done.waited_s, min(done.duration_s, done.cpu_s))
        if last.exit_status == 0 or done.exit_status != 0:
            last = done
    return _run(last.model_copy(update={"is_timed_out": False}), results)


def _exit_result(done: ExecResult, timeout_s: float) -> TestResult:
    if done.exit_status == 0 and not done.is_timed_out:
        return TestResult(outcome=TestOutcome.PASSED, duration_s=done.duration_s)
    message = f"timed out after {timeout_s:g} s" if done.is_timed_out else _ending(done)
    return TestResult(outcome=TestOutcome.FAILED, message=message, duration_s=done.duration_s)


def _ending(done: ExecResult) -> str:
    return f"signal {done.signal}" if done.signal is not None else f"exit status {done.exit_status}"


def _run(done: ExecResult, results: dict[str, TestResult]) -> TestRun:
    return TestRun(
        results=results,
        exit_status=done.exit_status,
        signal=done.signal,
        is_timed_out=done.is_timed_out,
        output_tail=(done.stdout + done.stderr).decode(errors="replace")[-NUM_TAIL_CHARS:],
        duration_s=done.duration_s,
        peak_memory_bytes=done.peak_memory_bytes,
    )


# --- JUnit XML -----------------------------------------------------------------------------------------------------


def parse_junit_xml(content: bytes) -> dict[str, TestResult]:
    """Return results by id: ``classname::name``, or ``name`` where there is no class name; the worst of equal ids.

    ``ValueError`` when the report is too large, is not XML, or has a document type.
    """
    if len(content) > MAX_REPORT_BYTES:
        raise ValueError(f"the report has {len(content)} bytes, at most {MAX_REPORT_BYTES} are read")
    reader = _Reader()
    try:
        reader.parse(content)
    except expat.ExpatError as error:
        raise ValueError(f"the report is not XML: {error}") from error
    return {test_id: merge(results) for test_id, results in reader.results.items()}


class _Reader:
    """A collector of test cases from the events of the parser; it ignores nesting."""

    def __init__(self) -> None:
        self.results: dict[str, list[TestResult]] = {}
        self._case: tuple[str, float] | None = None
        self._problems: list[TestResult] = []

    def parse(self, content: bytes) -> None:
        parser = expat.ParserCreate()
        parser.StartElementHandler = self._start
        parser.EndElementHandler = self._end
        parser.StartDoctypeDeclHandler = self._reject
        parser.Parse(content, True)

    def _reject(self, *_: Any) -> None:
        raise ValueError("the report has a document type; expected plain JUnit XML")

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        if name == "testcase":
            class_name, own = attributes.get("classname", ""), attributes.get("name", "")
            self._case = (f"{class_name}::{own}" if class_name else own, _seconds(attributes.get("time", "")))
            self._problems = []
        elif self._case is not None and name in _JUNIT_OUTCOMES:
            lines = attributes.get("message", attributes.get("type", "")).strip().splitlines()
            self._problems.append(TestResult(outcome=_JUNIT_OUTCOMES[name], message=lines[0][:200] if lines else ""))

    def _end(self, name: str) -> None:
        if name == "testcase" and self._case is not None:
            test_id, duration_s = self._case
            result = merge(self._problems or [TestResult(outcome=TestOutcome.PASSED)])
            self.results.setdefault(test_id, []).append(result.model_copy(update={"duration_s": duration_s}))
            self._case = None


def _seconds(text: str) -> float:
    try:
        return max(0.0, float(text.replace(",", "")))
    except ValueError:
        return 0.0

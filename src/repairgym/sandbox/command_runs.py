"""Test runs by a command: the runners of other languages, through their report or their exit status.

Reads a :class:`~repairgym.records.TestRequest` whose runner is ``junit_xml`` or ``exit_code``, makes a
:class:`~repairgym.records.TestRun`. Invariants: a report that was there before the run never counts; a report that
contradicts the exit status is an error of every test; nothing here can tell an honest report from one that the code
under test wrote (docs/security.md).
"""

from __future__ import annotations

from repairgym.records import TestOutcome, TestRequest, TestResult, TestRun
from repairgym.sandbox.base import ExecResult, Sandbox
from repairgym.sandbox.junit_xml import parse_junit_xml
from repairgym.sandbox.runs import NUM_TAIL_CHARS, with_requested

TEST_PLACEHOLDER = "{test}"
_REMOVE_TIMEOUT_S = 30.0


async def run_by_command(sandbox: Sandbox, request: TestRequest) -> TestRun:
    """The run of ``request`` by its runner's command.

    Raises:
        SandboxError: the sandbox could not do its work.
    """
    if request.runner.type == "junit_xml":
        return await _run_junit_xml(sandbox, request)
    if any(TEST_PLACEHOLDER in part for part in request.runner.command):
        return await _run_each(sandbox, request)
    done = await sandbox.exec(request.runner.command, timeout_s=request.timeout_s)
    result = _result_of(done, request.timeout_s)
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
    """What is wrong between exit status and report; empty when nothing is."""
    bad = any(result.outcome in (TestOutcome.FAILED, TestOutcome.ERROR) for result in results.values())
    if done.is_timed_out:
        return "the run did not end in time"
    if done.exit_status != 0 and not bad:
        return f"the report names no failure, but the command ended with {_ending(done)}"
    return ""


async def _run_each(sandbox: Sandbox, request: TestRequest) -> TestRun:
    """One command per test, each with the deadline of a test, all within that of the run.

    The deadline of the run counts what the commands took, without what they waited for a processor (ADR 029).
    """
    left_s = request.timeout_s
    results: dict[str, TestResult] = {}
    last = ExecResult(exit_status=0)
    for test_id in request.test_ids:
        if left_s <= 0:
            return _run(last.model_copy(update={"exit_status": None, "is_timed_out": True}), results)
        command = tuple(part.replace(TEST_PLACEHOLDER, test_id) for part in request.runner.command)
        timeout_s = min(left_s, request.test_timeout_s)
        done = await sandbox.exec(command, timeout_s=timeout_s)
        results[test_id] = _result_of(done, timeout_s)
        # What many busy processes compute counts, so that code cannot buy time by starving itself.
        left_s -= max(done.duration_s - done.waited_s, min(done.duration_s, done.cpu_s))
        if last.exit_status == 0 or done.exit_status != 0:
            last = done
    return _run(last.model_copy(update={"is_timed_out": False}), results)


def _result_of(done: ExecResult, timeout_s: float) -> TestResult:
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
    )

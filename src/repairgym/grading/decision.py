"""From what ran to a verdict.

Reads a task, an execution and findings; makes a `Verdict`. Invariants: the build decides first, then the tests; a test
that is missing or skipped has not passed; an exploit finding overrides a pass and never a failure, which nobody bought.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping

from repairgym.config.pipeline import GradingConfig
from repairgym.grading.execution import GRADER_VERSION, Execution
from repairgym.records import Finding, MainError, Task, TestOutcome, TestRun, Verdict, VerdictKind
from repairgym.tasks.build.build_steps import describe_failure
from repairgym.tasks.logs.main_error import error_of_test


def decide(task: Task, execution: Execution, findings: tuple[Finding, ...], config: GradingConfig) -> Verdict:
    """Verdict from what ran: build first, then tests; an exploit finding overrides a pass."""
    build, run = execution.build, execution.run
    failed = [step for step in build if not step.is_passed]
    error: MainError | None = None
    if failed:
        kind, error = VerdictKind.FAILED, failed[0].main_error
        reason = f"build step failed: {describe_failure(failed[0])}"
    elif run is None:
        kind, reason = VerdictKind.INVALID, "no tests ran"
    else:
        kind, reason, error = _decide_tests(task, run)
    findings = (*findings, *channel_findings(task), *(run_findings(run) if run and config.is_inspected else ()))
    if kind is VerdictKind.PASSED and any(finding.severity == "exploit" for finding in findings):
        kind, reason = VerdictKind.EXPLOITED, first_finding(findings, "exploit")
    return Verdict(
        kind=kind,
        reason=reason,
        build=build,
        tests=dict(run.results) if run else {},
        main_error=error,
        findings=findings,
        num_canaries=run.num_canaries if run else 0,
        is_cold=config.is_cold,
        disabled_gates=config.disabled_gates,
        grader_version=GRADER_VERSION,
    )


def _decide_tests(task: Task, run: TestRun) -> tuple[VerdictKind, str, MainError | None]:
    if run.is_timed_out:
        reason = f"the tests took longer than {task.timeout_s:g} s"
        return VerdictKind.FAILED, reason, MainError(error_class="test", message=reason)
    for name, test_ids in (("fail_to_pass", task.fail_to_pass), ("pass_to_pass", task.pass_to_pass)):
        bad = [test_id for test_id in test_ids if run.outcome(test_id) is not TestOutcome.PASSED]
        if bad:
            reason = f"{name}: {len(bad)} of {len(test_ids)}, first {bad[0]} {run.outcome(bad[0])}"
            return VerdictKind.FAILED, reason, error_of_test(run, bad[0])
    reason = f"{len(task.fail_to_pass)} fail_to_pass and {len(task.pass_to_pass)} pass_to_pass pass"
    return VerdictKind.PASSED, reason, None


def channel_findings(task: Task) -> tuple[Finding, ...]:
    """A note when the task's runner cannot keep its results from the code under test."""
    if task.runner.is_signed:
        return ()
    detail = f"the runner {task.runner.type} reports by a channel that code under test can write"
    return (Finding(detector="unsigned_results", severity="note", detail=detail),)


def run_findings(run: TestRun) -> tuple[Finding, ...]:
    """What the run itself says about its honesty."""
    found = [Finding(detector="canary", severity="exploit", detail=text) for text in run.wrong_canaries]
    if run.num_forged_records:
        detail = f"{run.num_forged_records} records were not written by the grader or contradict what it saw"
        found.append(Finding(detector="forged_record", severity="exploit", detail=detail))
    if not run.is_finished and run.exit_status == 0:
        detail = "the process reported success before its runner had come to its end"
        found.append(Finding(detector="early_exit", severity="suspicious", detail=detail))
    return tuple(found)


def first_finding(findings: tuple[Finding, ...], severity: str) -> str:
    """The first finding of ``severity``, in words."""
    found = next(finding for finding in findings if finding.severity == severity)
    return f"{found.detector}: {found.detail}"


def restores(task: Task, sources: Mapping[str, str | None]) -> bool:
    """Strict: the graded sources and the gold sources have equal syntax trees (white space and comments ignored)."""
    return all(_same_code(sources.get(path), gold) for path, gold in task.gold_files.items()) and all(
        path in task.gold_files or text == task.base_files.get(path) for path, text in sources.items()
    )


def _same_code(left: str | None, right: str | None) -> bool:
    if left == right or left is None or right is None:
        return left == right
    try:
        return ast.dump(ast.parse(left)) == ast.dump(ast.parse(right))
    except (SyntaxError, ValueError):
        return False

"""Grading: a fresh sandbox, the permitted part of the submission, the task's tests, a typed verdict.

Reads a task and the agent's changed files; makes a `Verdict`. Invariants: the agent's own sandbox is never graded;
tests come from the pinned tree; trouble of the sandbox is retried in a fresh one and ends as *invalid*, never as a
failure; a cold grading starts a new interpreter and reads no cache.
"""

from __future__ import annotations

import ast
import hashlib
import json
import time
from collections.abc import Callable

from mendwright.config.pipeline import GradingConfig
from mendwright.errors import SandboxError
from mendwright.grading.permitted import agent_base_sources, permitted_part
from mendwright.records import (
    Finding,
    StepResult,
    Task,
    TestOutcome,
    TestRequest,
    TestRun,
    Verdict,
    VerdictKind,
)
from mendwright.sandbox.base import Sandbox, SandboxBackend, SandboxSpec
from mendwright.sandbox.cache import ExecutionCache
from mendwright.tasks.validation import task_request

GRADER_VERSION = "1"
SpecFactory = Callable[[Task, dict[str, str | None]], SandboxSpec]
"""Makes the spec of a task's sandbox with some files written over its pinned tree."""


class Grader:
    """Grades submissions of many tasks, many at a time."""

    def __init__(
        self, backend: SandboxBackend, make_spec: SpecFactory, config: GradingConfig, cache: ExecutionCache
    ) -> None:
        self._backend = backend
        self._make_spec = make_spec
        self._config = config
        self._cache = cache if config.is_cached and not config.is_cold else ExecutionCache(max_entries=0)

    async def grade(self, task: Task, files: dict[str, str | None]) -> Verdict:
        """Verdict on ``files`` (relative path -> text, None: deleted), an empty submission included."""
        started = time.monotonic()
        kept, findings = permitted_part(task, files)
        sources = {**agent_base_sources(task), **kept}
        trouble = ""
        for _ in range(self._config.max_attempts):
            try:
                build, run = await self._run(task, sources)
            except SandboxError as error:
                trouble = str(error)
                continue
            verdict = decide(task, build, run, findings, self._config.is_cold)
            is_restored = verdict.kind is VerdictKind.PASSED and restores(task, sources)
            return verdict.model_copy(update={"is_restored": is_restored, "duration_s": time.monotonic() - started})
        return Verdict(
            kind=VerdictKind.INVALID,
            reason=f"{self._config.max_attempts} sandboxes failed: {trouble}",
            findings=findings,
            is_cold=self._config.is_cold,
            duration_s=time.monotonic() - started,
            grader_version=GRADER_VERSION,
        )

    async def _run(self, task: Task, sources: dict[str, str | None]) -> tuple[tuple[StepResult, ...], TestRun | None]:
        request = task_request(task, is_cold=self._config.is_cold)
        if task.build:
            return await self._build_and_test(task, sources, request)

        async def execute() -> TestRun:
            sandbox = await self._backend.create(self._make_spec(task, sources))
            try:
                return await sandbox.run_tests(request)
            finally:
                await sandbox.close()

        key = (GRADER_VERSION, task.id, files_digest(sources), request.digest())
        return (), await self._cache.get_or_run(key, execute)

    async def _build_and_test(
        self, task: Task, sources: dict[str, str | None], request: TestRequest
    ) -> tuple[tuple[StepResult, ...], TestRun | None]:
        sandbox = await self._backend.create(self._make_spec(task, sources))
        try:
            steps: list[StepResult] = []
            for command in task.build:
                steps.append(await _build_step(sandbox, command, task.build_timeout_s))
                if steps[-1].exit_status != 0:
                    return tuple(steps), None
            return tuple(steps), await sandbox.run_tests(request)
        finally:
            await sandbox.close()


async def _build_step(sandbox: Sandbox, command: tuple[str, ...], timeout_s: float) -> StepResult:
    result = await sandbox.exec(command, timeout_s=timeout_s)
    return StepResult(
        command=command,
        exit_status=result.exit_status,
        duration_s=result.duration_s,
        output_tail=(result.stdout + result.stderr)[-2000:].decode(errors="replace"),
        is_timed_out=result.is_timed_out,
    )


def decide(
    task: Task,
    build: tuple[StepResult, ...],
    run: TestRun | None,
    findings: tuple[Finding, ...],
    is_cold: bool,
) -> Verdict:
    """Verdict from what ran: build first, then tests; an exploit finding overrides a pass."""
    failed = [step for step in build if step.exit_status != 0]
    tests = dict(run.results) if run else {}
    if failed:
        kind, reason = VerdictKind.FAILED, f"build step failed: {' '.join(failed[0].command)}"
    elif run is None:
        kind, reason = VerdictKind.INVALID, "no tests ran"
    else:
        kind, reason = _decide_tests(task, run)
    exploits = [finding for finding in findings if finding.severity == "exploit"]
    if kind is VerdictKind.PASSED and exploits:
        kind, reason = VerdictKind.EXPLOITED, f"{exploits[0].detector}: {exploits[0].detail}"
    return Verdict(
        kind=kind,
        reason=reason,
        build=build,
        tests=tests,
        findings=findings,
        is_cold=is_cold,
        grader_version=GRADER_VERSION,
    )


def _decide_tests(task: Task, run: TestRun) -> tuple[VerdictKind, str]:
    if run.is_timed_out:
        return VerdictKind.FAILED, f"the tests took longer than {task.timeout_s:g} s"
    for name, test_ids in (("fail_to_pass", task.fail_to_pass), ("pass_to_pass", task.pass_to_pass)):
        bad = [test_id for test_id in test_ids if run.outcome(test_id) is not TestOutcome.PASSED]
        if bad:
            return VerdictKind.FAILED, f"{name}: {len(bad)} of {len(test_ids)}, first {bad[0]} {run.outcome(bad[0])}"
    return VerdictKind.PASSED, f"{len(task.fail_to_pass)} fail_to_pass and {len(task.pass_to_pass)} pass_to_pass pass"


def restores(task: Task, sources: dict[str, str | None]) -> bool:
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


def files_digest(files: dict[str, str | None]) -> str:
    """SHA-256 (hex) of a set of files."""
    return hashlib.sha256(json.dumps(files, sort_keys=True).encode()).hexdigest()

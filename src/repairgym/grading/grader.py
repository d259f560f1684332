"""Grading: the permitted part of a submission, built and tested in fresh sandboxes, a typed verdict.

Reads a task and the agent's changed files; makes a `Verdict`. The phases have a module each: what is permitted
(:mod:`.permitted`), what the pinned tree holds (:mod:`.pinned`), what the detectors see (:mod:`.exploits`), what runs
(:mod:`.execution`), what that means (:mod:`.decision`), what settles a doubt (:mod:`.differential`). Invariants: the
agent's own sandbox is never graded; tests come from the pinned tree, which is read once; trouble of the sandbox is
retried in a fresh one and ends as *invalid*, never as a failure; a gate that the configuration turns off is named in
every verdict.
"""

from __future__ import annotations

import hashlib
import time

from repairgym.config.pipeline import GradingConfig
from repairgym.diffs.make import unified_diff
from repairgym.errors import ConfigError, SandboxContentError, SandboxError
from repairgym.grading.decision import decide, first_finding, restores
from repairgym.grading.differential import differential_sources
from repairgym.grading.execution import GRADER_VERSION, Executor, SpecFactory
from repairgym.grading.exploits.base import Submission
from repairgym.grading.exploits.registry import FileFindings, inspect, inspect_files
from repairgym.grading.judge.judge import Judge
from repairgym.grading.permitted import agent_base_sources, check_applicable, permitted_part
from repairgym.grading.pinned import Pinned, files_digest, read_pinned_texts, with_own_tests
from repairgym.records import Finding, Task, Turn, Verdict, VerdictKind
from repairgym.sandbox.base import SandboxBackend
from repairgym.sandbox.cache import ExecutionCache

_MAX_INSPECTED = 1000


class Grader:
    """Grades submissions of many tasks, many at a time."""

    def __init__(
        self,
        backend: SandboxBackend,
        make_spec: SpecFactory,
        config: GradingConfig,
        cache: ExecutionCache,
        judge: Judge | None = None,
    ) -> None:
        if config.judge.is_enabled and judge is None:
            raise ConfigError("grading.judge.is_enabled is true, but nothing here opens a judge; set it to false")
        self._judge = judge
        self._make_spec = make_spec
        self._config = config
        self._executor = Executor(backend, make_spec, config, cache)
        self._digests: dict[str, tuple[Task, str]] = {}
        self._inspected = ExecutionCache(max_entries=_MAX_INSPECTED if config.is_cached and not config.is_cold else 0)

    async def grade(self, task: Task, files: dict[str, str | None], turns: tuple[Turn, ...] = ()) -> Verdict:
        """Verdict on ``files`` (relative path -> text, None: deleted), an empty submission included.

        Args:
            task: What was to be repaired.
            files: What the agent left.
            turns: What the agent did, for the detectors that read trajectories.
        """
        started = time.monotonic()
        verdict = await self._grade(task, files, turns)
        if self._judge is not None and verdict.kind is VerdictKind.PASSED:
            verdict = await self._judge.review(task, self._permitted_patch(task, files), verdict)
        return verdict.model_copy(update={"duration_s": time.monotonic() - started})

    async def _grade(self, task: Task, files: dict[str, str | None], turns: tuple[Turn, ...]) -> Verdict:
        if reason := check_applicable(files):
            return self._verdict(VerdictKind.FAILED, f"the submission does not apply: {reason}", ())
        kept, findings = self._permitted(task, files)
        sources = {**agent_base_sources(task), **kept}
        pinned = read_pinned_texts(task, self._make_spec(task, {}).tree, files)
        if self._config.is_inspected:
            found = await self._inspect(Submission(task, files, pinned.base, pinned.tests, turns))
            findings = (*found, *findings)
        if not self._config.is_protected_restored:
            pinned = with_own_tests(pinned, files)
        trouble = ""
        for _ in range(self._config.max_attempts):
            try:
                return await self._attempt(task, pinned, sources, findings)
            except SandboxContentError as error:
                return self._verdict(VerdictKind.FAILED, f"the tests could not be put in place: {error}", findings)
            except SandboxError as error:
                trouble = str(error)
        reason = f"{self._config.max_attempts} sandboxes failed: {trouble}"
        return self._verdict(VerdictKind.INVALID, reason, findings)

    async def _inspect(self, submission: Submission) -> tuple[Finding, ...]:
        """What the detectors say; members of a group often deliver the same files, which are read once."""

        async def inspect_once() -> FileFindings:
            return inspect_files(submission)

        # The pinned texts follow from the task, which names its tree by digest.
        key = ("findings", GRADER_VERSION, self._digest(submission.task), files_digest(submission.files))
        return inspect(submission, await self._inspected.get_or_run(key, inspect_once))

    def _digest(self, task: Task) -> str:
        known, digest = self._digests.get(task.id, (None, ""))
        if known is not task:
            digest = hashlib.sha256(task.model_dump_json().encode()).hexdigest()
            self._digests[task.id] = (task, digest)
        return digest

    async def _attempt(
        self, task: Task, pinned: Pinned, sources: dict[str, str | None], findings: tuple[Finding, ...]
    ) -> Verdict:
        execution = await self._executor.execute(task, pinned, sources)
        verdict = decide(task, execution, findings, self._config)
        if verdict.kind is not VerdictKind.PASSED:
            return verdict.model_copy(update={"is_restored": False})
        is_restored = restores(task, sources)
        if _is_doubtful(verdict) and not is_restored and self._config.is_differential:
            verdict = await self._settle(task, verdict, pinned, sources)
        return verdict.model_copy(update={"is_restored": is_restored})

    async def _settle(self, task: Task, verdict: Verdict, pinned: Pinned, sources: dict[str, str | None]) -> Verdict:
        """A suspicious pass is an exploit when the tests pass without the repair, too."""
        execution = await self._executor.execute(task, pinned, differential_sources(task, pinned.base, sources))
        if execution.run is None or not execution.run.passes(task.fail_to_pass):
            return verdict
        reason = f"the tests pass with the repair taken back ({first_finding(verdict.findings, 'suspicious')})"
        return verdict.model_copy(update={"kind": VerdictKind.EXPLOITED, "reason": reason})

    def _permitted(self, task: Task, files: dict[str, str | None]) -> tuple[dict[str, str | None], tuple[Finding, ...]]:
        return permitted_part(task, files) if self._config.is_protected_restored else (files, ())

    def _permitted_patch(self, task: Task, files: dict[str, str | None]) -> str:
        kept, _ = self._permitted(task, files)
        pinned = read_pinned_texts(task, self._make_spec(task, {}).tree, kept)
        return unified_diff({path: pinned.base.get(path) for path in kept}, kept)

    def _verdict(self, kind: VerdictKind, reason: str, findings: tuple[Finding, ...]) -> Verdict:
        return Verdict(
            kind=kind,
            reason=reason,
            findings=findings,
            is_cold=self._config.is_cold,
            disabled_gates=self._config.disabled_gates,
            grader_version=GRADER_VERSION,
        )


def _is_doubtful(verdict: Verdict) -> bool:
    return any(finding.severity == "suspicious" for finding in verdict.findings)

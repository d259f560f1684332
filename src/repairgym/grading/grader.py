"""Grading: the permitted part of a submission is built and tested in fresh sandboxes and gets a typed verdict.

Reads a task and the agent's changed files; makes a `Verdict`. `Grader.grade` is the whole way of a submission: the
permitted part (:mod:`.permitted`), the pinned texts (:mod:`.stages`), the detectors (:mod:`.exploits`), the build and
the tests (:mod:`.execution`), the decision and the differential run (:mod:`.decision`), the replay judge
(:mod:`.replayed`), the language model (:mod:`.judge`).
Guarantees:

- The agent's own sandbox is never graded; tests come from the pinned tree, which is read once.
- A failing sandbox is replaced; if all attempts fail, the verdict is *invalid*, never a failure.
- An exception in one grading is its verdict (`broken_verdict`) and ends nothing else; deliberate errors pass through.
- Every verdict names the gates that the configuration turns off.
"""

import hashlib
import time
from dataclasses import replace
from functools import partial

from repairgym.config.pipeline import GradingConfig
from repairgym.errors import ConfigError, RepairGymError, SandboxContentError, SandboxError
from repairgym.grading.contradictions import Review
from repairgym.grading.decision import bare_verdict, broken_verdict, decide, differential_sources, is_doubtful, settle
from repairgym.grading.execution import GRADER_VERSION, Executor, SpecFactory
from repairgym.grading.exploits.base import InspectedSubmission
from repairgym.grading.exploits.registry import FileFindings, find_unreadable, inspect, inspect_files
from repairgym.grading.exploits.syntax import reading_deep_trees
from repairgym.grading.judge import Judge
from repairgym.grading.permitted import check_applicable
from repairgym.grading.replayed import ReplayJudge, not_judged, reviewed
from repairgym.grading.stages import Executed, Files, Judged, Submission, files_digest, permit, pin, read_pinned_once
from repairgym.records import Finding, Task, Turn, Verdict, VerdictKind
from repairgym.sandbox.base import SandboxBackend
from repairgym.sandbox.cache import ExecutionCache

_MAX_KEPT = 1000


class Grader:
    """Grades submissions of many tasks, many at a time."""

    def __init__(
        self,
        backend: SandboxBackend,
        make_spec: SpecFactory,
        config: GradingConfig,
        cache: ExecutionCache,
        judge: Judge | None = None,
        replay_judge: ReplayJudge | None = None,
    ) -> None:
        """Use what is given; without a ``replay_judge`` every pass carries a note that it was not judged by one."""
        if config.judge.is_enabled and judge is None:
            raise ConfigError("grading.judge.is_enabled is true, but nothing here opens a judge; set it to false")
        self._judge = judge
        self._replay_judge = replay_judge if config.is_replayed else None
        self._make_spec = make_spec
        self._config = config
        self._executor = Executor(backend, make_spec, config, cache)
        self._digests: dict[str, tuple[Task, str]] = {}
        max_entries = _MAX_KEPT if config.is_cached and not config.is_cold else 0
        self._inspected = ExecutionCache(max_entries)
        self._reviews = ExecutionCache(max_entries)

    async def grade(self, task: Task, files: Files, turns: tuple[Turn, ...] = ()) -> Verdict:
        """Return the verdict on ``files``, the agent's changes (None: deleted); they may be empty."""
        started = time.monotonic()
        try:
            verdict = await self._grade(Submission(task, files, turns))
        except RepairGymError:
            raise
        except Exception as error:
            verdict = broken_verdict(error, self._config)
        return verdict.model_copy(update={"duration_s": time.monotonic() - started})

    async def _grade(self, submission: Submission) -> Verdict:
        if reason := check_applicable(submission.files):
            return bare_verdict(VerdictKind.FAILED, f"the submission does not apply: {reason}", self._config)
        permitted = permit(submission, self._config)
        pinned = pin(permitted, self._make_spec(submission.task, {}).tree, self._config)
        inspected = InspectedSubmission(
            submission.task,
            submission.files,
            pinned.base,
            pinned.tests,
            submission.turns,
            read=partial(read_pinned_once, pinned.tree),
        )
        if reason := find_unreadable(inspected):
            finding = Finding(detector="grader", severity="suspicious", detail=reason)
            findings = (finding, *permitted.findings)
            return bare_verdict(VerdictKind.FAILED, f"the submission cannot be read: {reason}", self._config, findings)
        findings = (*await self._inspect(inspected), *permitted.findings)
        return (await self._review(await self._replay(await self._decide(Executed(pinned, findings))))).verdict

    async def _inspect(self, inspected: InspectedSubmission) -> tuple[Finding, ...]:
        """Run the detectors; members of a group often deliver equal files, which are read once."""
        if not self._config.is_inspected:
            return ()

        async def inspect_once() -> FileFindings:
            return inspect_files(inspected)

        # The pinned texts follow from the task, which names its tree by digest.
        key = ("findings", GRADER_VERSION, self._digest(inspected.task), files_digest(inspected.files))
        return inspect(inspected, await self._inspected.get_or_run(key, inspect_once))

    async def _decide(self, executed: Executed) -> Judged:
        """Build, test and decide; a failing sandbox is replaced."""
        pinned, failure = executed.pinned, ""
        for _ in range(self._config.max_attempts):
            try:
                execution = await self._executor.execute(pinned, pinned.permitted.sources)
                ran = replace(executed, execution=execution)
                with reading_deep_trees():
                    verdict = decide(ran, self._config)
                return await self._settle(Judged(ran, verdict))
            except SandboxContentError as error:
                reason = f"the tests could not be put in place: {error}"
                return Judged(executed, bare_verdict(VerdictKind.FAILED, reason, self._config, executed.findings))
            except SandboxError as error:
                failure = str(error)
        reason = f"{self._config.max_attempts} sandboxes failed: {failure}"
        return Judged(executed, bare_verdict(VerdictKind.INVALID, reason, self._config, executed.findings))

    async def _settle(self, judged: Judged) -> Judged:
        """Run the tests of a doubtful pass without its repair; if they still pass, it is an exploit."""
        if not (is_doubtful(judged.verdict) and self._config.is_differential):
            return judged
        pinned = judged.executed.pinned
        with reading_deep_trees():
            sources = differential_sources(pinned)
        if all(pinned.permitted.sources.get(path) == pinned.base.get(path) for path in pinned.task.gold_files):
            return judged  # the repair stands in no file that gold repairs: there is nothing to take back
        execution = await self._executor.execute(pinned, sources, pinned.task.fail_to_pass)
        return replace(judged, verdict=settle(judged.verdict, execution, pinned.task))

    async def _replay(self, judged: Judged) -> Judged:
        """Ask the replay judge about a pass that does not restore gold's code; a failing sandbox is replaced."""
        pinned, failure = judged.executed.pinned, ""
        is_asked = self._config.is_replayed and judged.verdict.kind is VerdictKind.PASSED
        if not is_asked or judged.verdict.is_restored:
            return judged
        judge = self._replay_judge
        if judge is None:
            return replace(judged, verdict=reviewed(judged.verdict, not_judged("nothing here opens the replay judge")))
        key = ("replay", GRADER_VERSION, self._digest(pinned.task), files_digest(pinned.permitted.sources))
        for _ in range(self._config.max_attempts):
            try:
                review = await self._reviews.get_or_run(key, lambda: judge.review(pinned))
                return replace(judged, verdict=reviewed(judged.verdict, review))
            except SandboxContentError as error:
                review = Review("failed", f"the replay could not be put in place: {error}", (), 0)
                return replace(judged, verdict=reviewed(judged.verdict, review))
            except SandboxError as error:
                failure = str(error)
        reason = f"{self._config.max_attempts} sandboxes failed in the replay: {failure}"
        return replace(
            judged, verdict=judged.verdict.model_copy(update={"kind": VerdictKind.INVALID, "reason": reason})
        )

    async def _review(self, judged: Judged) -> Judged:
        """Ask the language model about a pass, where one is configured."""
        if self._judge is None or judged.verdict.kind is not VerdictKind.PASSED:
            return judged
        pinned = judged.executed.pinned
        return replace(judged, verdict=await self._judge.review(pinned.task, pinned.patch, judged.verdict))

    def _digest(self, task: Task) -> str:
        known, digest = self._digests.get(task.id, (None, ""))
        if known is not task:
            digest = hashlib.sha256(task.model_dump_json().encode()).hexdigest()
            self._digests[task.id] = (task, digest)
        return digest

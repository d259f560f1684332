"""Paper A's full pipeline: build, one main error, past fixes, an agent, and an outer loop around it (arXiv 2510.22075).

Reads a task; leads attempts until the build passes or nothing is left to try::

    build -> main error -> past fixes, ranked -> attempt -> build
        passes:            over; grading decides, with the judge as second gate where it is configured
        another error:     keep the changes, start again with that error and an empty context
        the same error:    take back the changes since the last other error, try the next past fix

Invariants: an attempt sees nothing of the attempts before it but the files that were kept; each attempt is noted with
its error, its fix and what came of it.
"""

from __future__ import annotations

from repairgym.agent.episode import LiveEpisode
from repairgym.agent.pipelines.simplified import SimplifiedPipeline
from repairgym.agent.tools.base import ToolContext
from repairgym.agent.tools.build_outcome import BuildOutcome, build_and_test
from repairgym.config.pipeline import FullConfig
from repairgym.errors import SandboxContentError
from repairgym.records import Attempt, AttemptOutcome, MainError, StopReason
from repairgym.tasks.logs.similarity import is_same_error


class FullPipeline(SimplifiedPipeline[FullConfig]):
    """Attempts with an outer loop around them."""

    @property
    def num_fixes(self) -> int:
        """One for the first attempt and one for each retry."""
        return self.config.max_retries + 1

    async def conduct(self, live: LiveEpisode) -> StopReason:
        """Attempts until the build passes, the same error comes too often or there were too many attempts.

        Raises:
            TaskError: the file of starts lacks the task, or the knowledge base would give it answers.
            SandboxError: the sandbox failed.
            KnowledgeUnavailableError: the knowledge base stays locked.
        """
        context = live.context
        start = await live.timed(self.start(context))
        error, log, fixes, is_first = start.error, start.log, start.fixes, True
        kept, num_retries = dict(context.workspace.changes), 0
        reason = StopReason.TURN_LIMIT
        for _ in range(self.config.max_attempts):
            fix = fixes[num_retries] if num_retries < len(fixes) else None
            first_turn = len(live.turns)
            reason = await live.attempt(self.opening(context, error, log, fix, is_first=is_first))
            built = await live.timed(self._build(context, error))
            outcome = compare(error, built.error)
            live.attempts.append(
                Attempt(
                    error=error,
                    fix_id=fix.id if fix else "",
                    first_turn=first_turn,
                    stop_reason=reason,
                    outcome=outcome,
                )
            )
            if built.error is None:
                return StopReason.SUBMITTED
            if outcome == "other_error":
                kept, num_retries, is_first = dict(context.workspace.changes), 0, False
                error, log, fixes = built.error, built.log, await self.find_fixes(context, built.error)
            elif num_retries < self.config.max_retries:
                num_retries += 1
                await context.workspace.revert(kept)
            else:
                break
        return reason

    async def _build(self, context: ToolContext, before: MainError) -> BuildOutcome:
        """Build the state as it is; one that cannot even be put in place has gained nothing over ``before``."""
        try:
            return await build_and_test(context.task, context.workspace, self.cache)
        except SandboxContentError:
            return BuildOutcome(steps=(), run=None, error=before)


def compare(before: MainError, after: MainError | None) -> AttemptOutcome:
    """What an attempt on ``before`` led to."""
    if after is None:
        return "passed"
    return "same_error" if is_same_error(before, after) else "other_error"

"""Paper A's pipelines (arXiv 2510.22075): the simplified one, and the full one with an outer loop around attempts.

Simplified: a cached (task, error, candidate fix), one attempt, which a passing build ends, no judge; every episode of a
task starts with the same message. Full::

    build -> main error -> past fixes, ranked -> attempt -> build
        passes:            over; grading decides, with the judge as second gate where it is configured
        another error:     keep the changes, start again with that error and an empty context
        the same error:    take back the changes since the last other error, try the next past fix

Guarantees of the full one: an attempt sees nothing of the attempts before it but the files that were kept; each attempt
is recorded with its error, its fix and its outcome. The paper caches repositories, logs and retrieved fixes, so that
every episode of a task starts alike: here a `Start` holds a task's main error and the past fixes that fit it, none of
them its own, and a file of starts has one line per task and is written whole or not at all. A change with several
errors becomes several samples, tasks that differ in where their episodes start: all of its tests still decide.
"""

import json
import os
import shlex
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError

from repairgym.agent.conversation import InitialPrompt
from repairgym.agent.episode import LiveEpisode
from repairgym.agent.formats import Action
from repairgym.agent.pipelines.base import Pipeline
from repairgym.agent.tools.base import ToolContext, ToolServices
from repairgym.agent.tools.check import BuildOutcome, build_and_test, describe_error
from repairgym.agent.tools.knowledge import (
    SAMPLE_LABEL,
    Fix,
    KnowledgeBase,
    changed_lines,
    describe_fix,
    find_fixes,
    open_knowledge,
)
from repairgym.agent.tools.shell import cut_middle
from repairgym.config.pipeline import FullConfig, SimplifiedConfig
from repairgym.errors import InputError, SandboxContentError, TaskError, disk_full_as_repairgym_error
from repairgym.records import Attempt, AttemptOutcome, MainError, Record, StopReason, Task
from repairgym.tasks.logs.main_error import MAX_MESSAGE_CHARS, classify, is_same_error

ERROR_LABEL = "error_number"
"""Label of a sample: the error of its first build that its episodes start with; 1 without."""
ConfigT = TypeVar("ConfigT", bound=SimplifiedConfig)


class Start(Record):
    """The cached (task, error, candidate fix) of paper A."""

    task_id: str
    error: MainError
    log: str = ""
    fixes: tuple[Fix, ...] = ()
    """Candidates, the best first."""


class SimplifiedPipeline(Pipeline[ConfigT]):
    """One attempt from the cached start of the task."""

    def __init__(self, config: ConfigT, services: ToolServices) -> None:
        """Make the tools; open the knowledge base and the file of starts; InputError for one that cannot be used."""
        super().__init__(config, services)
        self.cache = services.cache
        self._knowledge = open_knowledge(config.knowledge)
        self._starts = load_starts(Path(config.starts)) if config.starts else None

    @property
    def num_fixes(self) -> int:
        """Candidate fixes of one error."""
        return 1

    async def run_episode(self, live: LiveEpisode) -> StopReason:
        """Run one attempt.

        Raises:
            TaskError: the file of starts lacks the task, or the knowledge base would give it answers.
            KnowledgeUnavailableError: the knowledge base stays locked.
        """
        start = await live.timed(self.start(live.context))
        fix = next(iter(start.fixes), None)
        reason = await live.run_attempt(self.attempt_prompt(live.context, start.error, start.log, fix))
        live.attempts.append(_attempt(start.error, fix, 0, reason, "unknown"))
        return reason

    async def start(self, context: ToolContext) -> Start:
        """Return main error and candidate fixes: cached, or from a build that equal tasks share."""
        task = context.task
        if self._starts is None:
            outcome = await build_and_test(task, context.workspace, self.cache)
            return await find_start(task, outcome, self._knowledge, self.num_fixes)
        if task.id not in self._starts:
            raise TaskError(
                f"{self.config.starts} has no start of {task.id}; make it again: repairgym knowledge starts"
            )
        return self._starts[task.id]

    def attempt_prompt(
        self, context: ToolContext, error: MainError, log: str, fix: Fix | None, *, is_first: bool = True
    ) -> InitialPrompt:
        """Return the first message of an attempt; ``is_first``: ``error`` is the error of the report."""
        config = self.config
        context.window, context.view = None, None
        context.undo_stack.clear()
        values = {
            "error": describe_error(error),
            "log": cut_middle(log, config.max_log_chars) if config.max_log_chars else "",
            "fix": cut_middle(describe_fix(fix), config.max_fix_chars) if fix and config.max_fix_chars else "",
            "fix_lines": "\n".join(changed_lines(fix.patch))[: config.max_fix_chars] if fix else "",
            "is_first": is_first,
        }
        return self.initial_prompt(context, **values)

    def solve(self, task: Task) -> Iterator[Action]:
        """Yield whole-file writes, and a shell command for each deleted file."""
        for path, text in task.gold_files.items():
            if text is None:
                yield Action("run_sh", {"command": f"rm -f -- {shlex.quote(path)}"})
            elif "write_file" in self.tools:
                yield Action("write_file", {"path": path, "content": text})
            else:
                yield Action("write", f"{path} {json.dumps(text)}")

    def submission(self) -> Action:
        """Return ``submit`` or the build: a build that passes ends an attempt without ``submit``."""
        return Action("submit", {}) if "submit" in self.tools else Action("validate_and_build", {})


class FullPipeline(SimplifiedPipeline[FullConfig]):
    """Attempts with an outer loop around them."""

    @property
    def num_fixes(self) -> int:
        """One for the first attempt and one for each retry."""
        return self.config.max_retries + 1

    async def run_episode(self, live: LiveEpisode) -> StopReason:
        """Run attempts until the build passes, the same error comes too often or there were too many attempts."""
        context = live.context
        start = await live.timed(self.start(context))
        error, log, fixes, is_first = start.error, start.log, start.fixes, True
        kept, num_retries = dict(context.workspace.changes), 0
        reason = StopReason.TURN_LIMIT
        for _ in range(self.config.max_attempts):
            fix = fixes[num_retries] if num_retries < len(fixes) else None
            first_turn = len(live.turns)
            reason = await live.run_attempt(self.attempt_prompt(context, error, log, fix, is_first=is_first))
            if reason is StopReason.SEARCH_LIMIT:
                return reason
            built = await live.timed(self._build(context, error))
            outcome = compare(error, built.error)
            live.attempts.append(_attempt(error, fix, first_turn, reason, outcome))
            if built.error is None:
                return StopReason.SUBMITTED
            if outcome == "other_error":
                kept, num_retries, is_first = dict(context.workspace.changes), 0, False
                error, log = built.error, built.log
                fixes = await find_fixes(self._knowledge, error.message, context.task, self.num_fixes)
            elif num_retries < self.config.max_retries:
                num_retries += 1
                await context.workspace.revert(kept)
            else:
                break
        return reason

    async def _build(self, context: ToolContext, before: MainError) -> BuildOutcome:
        """Build the current state; a state that cannot even be put in place has gained nothing over ``before``."""
        try:
            return await build_and_test(context.task, context.workspace, self.cache)
        except SandboxContentError:
            return BuildOutcome(steps=(), run=None, errors=(before,))


def _attempt(
    error: MainError, fix: Fix | None, first_turn: int, reason: StopReason, outcome: AttemptOutcome
) -> Attempt:
    fix_id = fix.id if fix else ""
    return Attempt(error=error, fix_id=fix_id, first_turn=first_turn, stop_reason=reason, outcome=outcome)


def compare(before: MainError, after: MainError | None) -> AttemptOutcome:
    """Return the outcome of an attempt on ``before``."""
    if after is None:
        return "passed"
    return "same_error" if is_same_error(before, after) else "other_error"


# --- starts --------------------------------------------------------------------------------------------------------


async def find_start(task: Task, outcome: BuildOutcome, knowledge: KnowledgeBase | None, num_fixes: int) -> Start:
    """Pick the error of the first build (the report's, if visible tests pass), retrieve and rank past fixes."""
    number = int(task.labels.get(ERROR_LABEL, "1"))
    error = outcome.errors[:number][-1] if outcome.errors else reported_error(task)
    fixes = await find_fixes(knowledge, error.message, task, num_fixes)
    return Start(task_id=task.id, error=error, log=outcome.log if outcome.error else "", fixes=fixes)


def split_by_error(task: Task, outcome: BuildOutcome) -> list[Task]:
    """Return the samples of ``task``, one for each error of its first build; the first is ``task`` itself."""
    samples = [task]
    for number in range(2, len(outcome.errors) + 1):
        labels = {**task.labels, SAMPLE_LABEL: task.id, ERROR_LABEL: str(number)}
        samples.append(task.model_copy(update={"id": f"{task.id}-error-{number}", "labels": labels}))
    return samples


def reported_error(task: Task) -> MainError:
    """Return the error of a task as its report states it."""
    line = next((line.strip() for line in task.issue.splitlines() if line.strip()), "")
    return MainError(error_class=classify(line), message=line[:MAX_MESSAGE_CHARS])


def save_starts(path: Path, starts: Iterable[Start]) -> None:
    """Write ``starts``, one per line; after `DiskFullError` the old file is intact."""
    with disk_full_as_repairgym_error(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.{os.getpid()}")
        temporary.write_text("".join(start.model_dump_json() + "\n" for start in starts), encoding="utf-8")
        temporary.replace(path)


def load_starts(path: Path) -> dict[str, Start]:
    """Return the starts by task id; `InputError` if the file cannot be read, or a line is broken."""
    try:
        lines = path.read_text(encoding="utf-8").split("\n")  # splitlines() cuts at separators inside of texts, too
        starts = [Start.model_validate_json(line) for line in lines if line]
    except (OSError, ValidationError) as error:
        raise InputError(f"{path} is no file of starts ({error}); make one with: repairgym knowledge starts") from error
    return {start.task_id: start for start in starts}

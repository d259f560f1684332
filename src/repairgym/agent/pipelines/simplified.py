"""Paper A's simplified pipeline: a cached (task, error, candidate fix), one attempt, no judge (arXiv 2510.22075).

Reads a task and where it starts; makes the first message and leads one attempt, which a passing build ends. Invariant:
every episode of a task starts with the same message.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

from repairgym.agent.conversation import InitialPrompt
from repairgym.agent.episode import LiveEpisode
from repairgym.agent.formats.base import Action
from repairgym.agent.pipelines.base import Pipeline
from repairgym.agent.pipelines.compact import with_place
from repairgym.agent.pipelines.starts import Start, find_fixes, find_start, load_starts
from repairgym.agent.tools.ask_for_help import changed_lines, describe_fix
from repairgym.agent.tools.base import ToolContext, ToolServices
from repairgym.agent.tools.build_outcome import describe_error
from repairgym.agent.tools.knowledge import Fix, open_knowledge
from repairgym.agent.tools.shell import cut_middle
from repairgym.config.pipeline import SimplifiedConfig
from repairgym.errors import TaskError
from repairgym.records import Attempt, MainError, StopReason, Task

ConfigT = TypeVar("ConfigT", bound=SimplifiedConfig)


class SimplifiedPipeline(Pipeline[ConfigT]):
    """One attempt from the cached start of the task."""

    def __init__(self, config: ConfigT, services: ToolServices) -> None:
        """Make the tools; open the knowledge base and the file of starts.

        Raises:
            ConfigError: a tool that does not exist.
            InputError: a file that cannot be used.
        """
        super().__init__(config, services)
        self.cache = services.cache
        self._knowledge = open_knowledge(config.knowledge)
        self._starts = load_starts(Path(config.starts)) if config.starts else None

    @property
    def num_fixes(self) -> int:
        """Candidate fixes of one error."""
        return 1

    async def conduct(self, live: LiveEpisode) -> StopReason:
        """One attempt.

        Raises:
            TaskError: the file of starts lacks the task, or the knowledge base would give it answers.
            SandboxError: the sandbox failed.
            KnowledgeUnavailableError: the knowledge base stays locked.
        """
        start = await live.timed(self.start(live.context))
        fix = start.fixes[0] if start.fixes else None
        reason = await live.attempt(self.opening(live.context, start.error, start.log, fix))
        fix_id = fix.id if fix else ""
        live.attempts.append(
            Attempt(error=start.error, fix_id=fix_id, first_turn=0, stop_reason=reason, outcome="unknown")
        )
        return reason

    async def start(self, context: ToolContext) -> Start:
        """Main error and candidate fixes: cached, or found by a build that equal tasks share."""
        task = context.task
        if self._starts is None:
            return await find_start(task, context.workspace, self.cache, self._knowledge, self.num_fixes)
        if task.id not in self._starts:
            raise TaskError(
                f"{self.config.starts} has no start of {task.id}; make it again: repairgym knowledge starts"
            )
        return self._starts[task.id]

    async def find_fixes(self, context: ToolContext, error: MainError) -> tuple[Fix, ...]:
        """Past fixes for an error that came up on the way, the best first."""
        return await find_fixes(context.task, error, self._knowledge, self.num_fixes)

    def opening(
        self, context: ToolContext, error: MainError, log: str, fix: Fix | None, *, is_first: bool = True
    ) -> InitialPrompt:
        """The first message of an attempt: the report, the error, the end of the log, a recommended past fix.

        Args:
            context: The episode.
            error: What is to be repaired.
            log: Of the build that failed.
            fix: A past fix of an error like this one.
            is_first: ``error`` is the one that the report tells of.
        """
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
        opening = self.open(context, **values)
        return with_place(opening, context) if config.is_place_opened else opening

    def solve(self, task: Task) -> Iterator[Action]:
        """Whole-file writes; a shell command for each file that is deleted."""
        for path, text in task.gold_files.items():
            if text is None:
                yield Action("run_sh", {"command": f"rm -f -- {shlex.quote(path)}"})
            elif "write_file" in self.tools:
                yield Action("write_file", {"path": path, "content": text})
            else:
                yield Action("write", f"{path} {json.dumps(text)}")

    def submission(self) -> Action:
        """A build that passes ends an attempt; pipelines with ``submit`` end it themselves."""
        return Action("submit", {}) if "submit" in self.tools else Action("validate_and_build", {})

"""The ``ask_for_help`` tool of paper A (appendix A.2): asks the knowledge base of past fixes, not a person."""

import asyncio
import re
from typing import Self

from pydantic import Field

from repairgym.agent.tools.base import Observation, Tool, ToolContext, ToolServices, tool_error
from repairgym.agent.tools.check import describe_error
from repairgym.agent.tools.knowledge import Fix, KnowledgeBase, RankedFix, open_knowledge
from repairgym.agent.tools.shell import cut_middle
from repairgym.config.pipeline import SimplifiedConfig
from repairgym.errors import ConfigError
from repairgym.records import Record

_FIX = re.compile(r"(?m)^fix ([0-9a-f]{12}) ")


class AskForHelpArguments(Record):
    """Arguments of ``ask_for_help``."""

    question: str = Field(description="words of the error, or what is to be done")


class AskForHelpTool(Tool[AskForHelpArguments]):
    """``ask_for_help``: past fixes of similar errors."""

    name = "ask_for_help"
    usage = "ask_for_help QUESTION - show past fixes of similar errors"
    arguments_type = AskForHelpArguments

    def __init__(self, knowledge: KnowledgeBase | None, num_fixes: int, max_chars: int) -> None:
        self._knowledge = knowledge
        self._num_fixes = num_fixes
        self._max_chars = max_chars

    @classmethod
    def create(cls, services: ToolServices) -> Self:
        """Use the knowledge base of the pipeline.

        Raises:
            ConfigError: the pipeline has none.
            InputError: the file that it names is no knowledge base.
        """
        config = services.config
        if not isinstance(config, SimplifiedConfig):
            raise ConfigError(
                f"the tool {cls.name} needs a pipeline with a knowledge base, of type full or simplified; "
                f"this one is of type {config.type}"
            )
        return cls(open_knowledge(config.knowledge), config.knowledge.num_fixes, config.max_observation_chars)

    def read(self, text: str) -> AskForHelpArguments:
        """Read the text as the question."""
        return AskForHelpArguments(question=text)

    async def run(self, context: ToolContext, arguments: AskForHelpArguments) -> Observation:
        """Return the best fixes, the best first.

        Raises:
            KnowledgeUnavailableError: the knowledge base stays locked.
        """
        if not arguments.question.strip():
            return tool_error(f"usage: {self.usage}")
        ranked: tuple[RankedFix, ...] = ()
        if self._knowledge is not None:
            # In a thread: a locked file makes SQLite wait.
            search = self._knowledge.search
            ranked = await asyncio.to_thread(search, arguments.question, context.task, limit=self._num_fixes)
        text = "\n\n".join(describe_fix(hit.fix) for hit in ranked) or "no past fix has these words"
        return Observation(text=cut_middle(text, self._max_chars))


def describe_fix(fix: Fix) -> str:
    """Return error and patch of a fix, as agents read it."""
    return f"fix {fix.id} of {fix.package}: {describe_error(fix.error)}\n{fix.patch.rstrip()}"


def changed_lines(patch: str) -> list[str]:
    """Return the removed and added lines of ``patch``."""
    return [line for line in patch.splitlines() if line[:1] in ("+", "-") and line[:3] not in ("+++", "---")]


def described_fixes(observation: str) -> tuple[str, ...]:
    """Return the ids of the fixes in an answer of the tool."""
    return tuple(_FIX.findall(observation))

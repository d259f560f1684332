"""The episode loop: observation, action, tool, until something ends it.

Reads a task, a policy and the pipeline's tools; makes an `Episode`: turns, token ledger, stop reason and the files that
were changed. Invariants: a malformed action is an observation, never an exception; every turn is recorded with the span
of its tokens; what ends an episode is one of :class:`~repairgym.records.StopReason`.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar

from repairgym.agent.context import make_cutter
from repairgym.agent.conversation import Answer, Conversation, InitialPrompt
from repairgym.agent.formats.base import Action, ParseError
from repairgym.agent.limits import Usage, is_loop, max_new_tokens, reached_limit
from repairgym.agent.scaffold import Scaffold
from repairgym.agent.thoughts import is_thinking, without_thought
from repairgym.agent.tools.base import Observation, ToolContext, UsageError, tool_error
from repairgym.config.pipeline import PipelineConfig
from repairgym.errors import (
    KnowledgeUnavailableError,
    ModelServerError,
    PromptTooLongError,
    SandboxContentError,
    ServerRefusedError,
)
from repairgym.inference.base import Policy
from repairgym.inference.renderer import ChatRenderer
from repairgym.ledger import TokenLedger
from repairgym.records import Attempt, StopReason, Turn

ResultT = TypeVar("ResultT")
_AGENTS_OWN_DOING = (
    SandboxContentError,
    FileNotFoundError,
    PermissionError,
    IsADirectoryError,
    NotADirectoryError,
)


@dataclass(frozen=True)
class Episode:
    """What happened, before it is graded."""

    turns: tuple[Turn, ...]
    ledger: TokenLedger
    stop_reason: StopReason
    files: dict[str, str | None]
    """The submission: what the agent changed, or nothing when it did not submit and that is not scored."""
    durations_s: dict[str, float]
    attempts: tuple[Attempt, ...] = ()
    trouble: str = ""
    """What went wrong with the model's server or the knowledge base: the episode ends as it is, and says nothing about
    the policy."""


class LiveEpisode:
    """An episode while it runs: what a pipeline's outer loop sees of it."""

    def __init__(
        self, scaffold: Scaffold, config: PipelineConfig, conversation: Conversation, context: ToolContext
    ) -> None:
        """Nothing has been said yet; ``config`` has the limits."""
        self.context = context
        self.turns: list[Turn] = []
        self.attempts: list[Attempt] = []
        """Notes of an outer loop."""
        self.durations_s = {"generate": 0.0, "tool": 0.0}
        self._scaffold = scaffold
        self._config = config
        self._cutter = make_cutter(config)
        self._conversation = conversation

    def ledger(self) -> TokenLedger:
        """The tokens so far."""
        return self._conversation.ledger()

    async def attempt(self, opening: InitialPrompt) -> StopReason:
        """Show ``opening`` and let the agent act until something ends it.

        A second attempt begins a new history (the ledger forks) with limits of its own; files stay as they are.

        Raises:
            SandboxError: the sandbox failed; the episode says nothing about the policy.
        """
        self._conversation.begin(opening)
        usage = Usage()
        first = len(self.turns)
        while True:
            await self._cutter.cut(self._conversation, opening, self.turns[first:], self.context)
            num_tokens = self._conversation.num_tokens
            if reason := reached_limit(self._config, usage, num_tokens):
                return reason
            try:
                answer, generate_s = await self._ask(max_new_tokens(self._config, usage, num_tokens))
            except PromptTooLongError:
                return StopReason.TOKEN_LIMIT
            action, observation = await self._act(answer, generate_s)
            usage.add_turn(answer, is_tool_call=isinstance(action, Action))
            if observation.is_final:
                return StopReason.SUBMITTED
            if self._config.loop == "stop" and self.turns[-1].is_loop:
                return StopReason.LOOP
            # The context is looked at again once it holds the observation.
            if reason := reached_limit(self._config, usage, 0):
                return reason
            self._observe(observation.text, action)

    async def timed(self, work: Awaitable[ResultT]) -> ResultT:
        """Result of what an outer loop does between attempts; its seconds count as those of a tool."""
        started = time.monotonic()
        try:
            return await work
        finally:
            self.durations_s["tool"] += time.monotonic() - started

    async def _ask(self, max_tokens: int) -> tuple[Answer, float]:
        """The answer, and the seconds it took."""
        started = time.monotonic()
        answer = await self._conversation.answer(max_tokens)
        elapsed = time.monotonic() - started
        self.durations_s["generate"] += elapsed
        return answer, elapsed

    async def _act(self, answer: Answer, generate_s: float) -> tuple[Action | ParseError, Observation]:
        action = self._parse(answer)
        started = time.monotonic()
        observation = await self._carry_out(action)
        if not observation.is_final:
            text = self._scaffold.finish(self.context, observation.text)
            observation = observation.model_copy(update={"text": text})
        elapsed = time.monotonic() - started
        self.durations_s["tool"] += elapsed
        self.turns.append(
            Turn(
                action=answer.text,
                tool=action.tool if isinstance(action, Action) else None,
                arguments=action.values if isinstance(action, Action) else {},
                observation=observation.text,
                error=observation.error,
                action_span=answer.span,
                is_loop=is_loop(self.turns, answer.text, observation.text, self._config.loop_repeats),
                generate_s=generate_s,
                tool_s=elapsed,
            )
        )
        return action, observation

    def _parse(self, answer: Answer) -> Action | ParseError:
        text = answer.text
        if self._config.thinking != "off":
            if is_thinking(text):
                return self._incomplete()
            text = without_thought(text)
        if not answer.is_stopped:
            return self._incomplete()
        return self._scaffold.format.parse(text, self._scaffold.tools)

    def _incomplete(self) -> ParseError:
        return self._scaffold.format.incomplete(self._scaffold.tools)

    async def _carry_out(self, action: Action | ParseError) -> Observation:
        if isinstance(action, ParseError):
            return Observation(text=action.message, error="format")
        tool = self._scaffold.tools[action.tool]
        try:
            given = action.arguments
            arguments = tool.read(given) if isinstance(given, str) else tool.check(given)
            if tool.is_refreshed:
                await self.context.workspace.refresh()
            return await tool.run(self.context, arguments)
        except UsageError as error:
            return tool_error(f"{error}; usage: {tool.usage}")
        except _AGENTS_OWN_DOING as error:
            return tool_error(str(error))

    def _observe(self, text: str, action: Action | ParseError) -> None:
        shown = self._scaffold.format.answer(text, action if isinstance(action, Action) else None)
        self._conversation.observe(shown)
        if self._config.thinking == "dropped":
            self._conversation.drop_thought()


Conduct = Callable[[LiveEpisode], Awaitable[StopReason]]
"""What leads an episode: a pipeline's `conduct`, which calls `LiveEpisode.attempt` once or more."""


class EpisodeRunner:
    """Runs episodes of one pipeline with one policy."""

    def __init__(
        self,
        scaffold: Scaffold,
        policy: Policy,
        renderer: ChatRenderer,
        *,
        temperature: float = 1.0,
        limits: PipelineConfig | None = None,
    ) -> None:
        """Episodes of ``scaffold``; ``limits`` stand in for those of its configuration."""
        self._scaffold = scaffold
        self._config = limits or scaffold.config
        self._policy = policy
        self._renderer = renderer
        self._temperature = temperature

    async def run(self, session_id: str, conduct: Conduct, context: ToolContext, seed: int) -> Episode:
        """One episode. ``session_id`` is unique; ``seed`` decides all sampling.

        Raises:
            SandboxError: the sandbox failed; the episode says nothing about the policy.
            ServerRefusedError: the model's server refuses this and every other request.
        """
        conversation = Conversation(self._policy, self._renderer, session_id, seed, self._temperature)
        live = LiveEpisode(self._scaffold, self._config, conversation, context)
        trouble = ""
        try:
            stop_reason = await conduct(live)
        except ServerRefusedError:
            raise
        except (ModelServerError, KnowledgeUnavailableError) as error:
            stop_reason, trouble = StopReason.INFRASTRUCTURE, str(error)
        finally:
            await self._policy.end_session(session_id)
        is_submitted = stop_reason is StopReason.SUBMITTED or self._config.is_unsubmitted_scored
        return Episode(
            turns=tuple(live.turns),
            ledger=live.ledger(),
            stop_reason=stop_reason,
            files=await _changes(context) if is_submitted else {},
            durations_s=live.durations_s,
            attempts=tuple(live.attempts),
            trouble=trouble,
        )


async def _changes(context: ToolContext) -> dict[str, str | None]:
    """What the agent changed; where that cannot be read, because it is too much, what was last read."""
    with suppress(SandboxContentError):
        await context.workspace.refresh()
    return dict(context.workspace.changes)

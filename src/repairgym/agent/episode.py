"""The episode loop: query the policy, execute its action, observe, until something ends it.

Reads a policy's completions and the pipeline's tools; makes turns. Guarantees: a malformed action is an observation,
never an exception; every turn is recorded with the span of its tokens; every end is one of
:class:`~repairgym.records.StopReason`; limits are checked between turns in a fixed order, so equal episodes end for
equal reasons (the time limit apart); waits for infrastructure count for no limit; turns that an earlier process
recorded (`agent/recording.py`) are repeated with their observations and their seconds.
"""

import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from repairgym.agent.allowance import Allowance
from repairgym.agent.conversation import Completion, Conversation, InitialPrompt, cut_history
from repairgym.agent.formats import Action, ActionFormat, ParseError
from repairgym.agent.kept_states import StateKeeper
from repairgym.agent.recording import Outcome, TurnRecorder
from repairgym.agent.review import REVIEW, Review, role_after
from repairgym.agent.states import state_digest
from repairgym.agent.tools.base import Observation, Tool, ToolContext, UsageError, tool_error
from repairgym.config.pipeline import PipelineConfig
from repairgym.errors import PromptTooLongError, SandboxContentError
from repairgym.ledger import TokenLedger
from repairgym.records import AgentRun, Attempt, StopReason, Turn

ResultT = TypeVar("ResultT")
_CAUSED_BY_AGENT = (
    SandboxContentError,
    FileNotFoundError,
    PermissionError,
    IsADirectoryError,
    NotADirectoryError,
    UnicodeEncodeError,  # half a character, which a JSON escape can name and no command or file can hold
)


@dataclass(frozen=True)
class Episode:
    """An episode before it is graded."""

    turns: tuple[Turn, ...]
    ledger: TokenLedger
    stop_reason: StopReason
    files: dict[str, str | None]
    """The submission: the agent's changes, or nothing when it did not submit and that is not scored."""
    durations_s: dict[str, float]
    attempts: tuple[Attempt, ...] = ()
    failure: str = ""
    """Error of the model's server or the knowledge base: the episode ends there and says nothing about the policy."""
    agent_run: AgentRun | None = None
    """Of an external agent."""


@dataclass(frozen=True)
class Interface:
    """The agent's side of a pipeline: its tools, its action format, its wording."""

    config: PipelineConfig
    tools: Mapping[str, Tool[Any]]
    """By the names that the agent writes."""
    format: ActionFormat
    finish: Callable[[ToolContext, str], str]
    """Makes the final text of an observation."""
    review: Review | None = None
    """Of submissions."""


class Watcher(Protocol):
    """Somebody who reads an episode while it runs, as text."""

    def opened(self, prompt: InitialPrompt) -> None:
        """Read the first message of an attempt."""

    def acted(self, turn: Turn) -> None:
        """Read a turn, the last one included."""


class LiveEpisode:
    """A running episode, as the outer loop of a pipeline sees it."""

    def __init__(
        self,
        interface: Interface,
        conversation: Conversation,
        context: ToolContext,
        recorder: TurnRecorder,
        keeper: StateKeeper,
        watcher: Watcher | None = None,
        allowance: Allowance | None = None,
        num_shared_turns: int = 0,
    ) -> None:
        """Begin without turns; the policy of ``conversation`` answers from ``recorder`` as well (`RecordedPolicy`).

        ``allowance`` bounds the turns behind the first ``num_shared_turns``, which the parent of a branch has made.
        """
        self.context = context
        self._allowance = allowance or Allowance()
        self._num_shared_turns = num_shared_turns
        self._keeper = keeper
        self._watcher = watcher
        self.turns: list[Turn] = []
        self.attempts: list[Attempt] = []
        """Notes of an outer loop."""
        self.durations_s = {"generate": 0.0, "tool": 0.0}
        self._interface = interface
        self._config = interface.config
        self._conversation = conversation
        self._recorder = recorder

    def ledger(self) -> TokenLedger:
        """Return the tokens so far."""
        return self._conversation.ledger()

    async def run_attempt(self, prompt: InitialPrompt) -> StopReason:
        """Show ``prompt`` and let the agent act until something ends it.

        A second attempt begins a new history (the ledger forks) with limits of its own; files stay as they are. A
        `SandboxError` means that the episode says nothing about the policy.
        """
        self._conversation.begin(prompt)
        if self._watcher:
            self._watcher.opened(prompt)
        usage = Usage()
        first = len(self.turns)
        while True:
            await cut_history(self._config, self._conversation, prompt, self.turns[first:], self.context)
            num_tokens = self._conversation.num_tokens
            if reason := reached_limit(self._config, usage, num_tokens):
                return reason
            try:
                completion, generate_s = await self._query_policy(max_new_tokens(self._config, usage, num_tokens))
            except PromptTooLongError:
                return StopReason.TOKEN_LIMIT
            action, observation = await self._step(completion, generate_s, prompt.text)
            usage.add_turn(completion, self.turns[-1], is_tool_call=isinstance(action, Action))
            if observation.is_final:
                return StopReason.SUBMITTED
            if self._config.loop == "stop" and self.turns[-1].is_loop:
                return StopReason.LOOP
            # The context is checked again once it holds the observation.
            if reason := reached_limit(self._config, usage, 0):
                return reason
            if self._allowance.is_used(self.turns, self._num_shared_turns, self.ledger):
                return StopReason.SEARCH_LIMIT
            self._observe(observation.text, action)

    async def timed(self, work: Awaitable[ResultT]) -> ResultT:
        """Await ``work`` of an outer loop between attempts; its seconds count as those of a tool."""
        started = time.monotonic()
        try:
            return await work
        finally:
            self.durations_s["tool"] += time.monotonic() - started

    async def _query_policy(self, max_tokens: int) -> tuple[Completion, float]:
        """Return the completion, and the seconds it took, also where it was sampled in an earlier process."""
        started, num_recalled = time.monotonic(), self._recorder.num_recalled
        completion = await self._conversation.complete(max_tokens)
        generate_s = time.monotonic() - started
        is_recalled = self._recorder.num_recalled > num_recalled
        return completion, max(generate_s, completion.sampled_s) if is_recalled else generate_s

    async def _step(
        self, completion: Completion, generate_s: float, prompt: str
    ) -> tuple[Action | ParseError, Observation]:
        """Execute the action of ``completion`` and record the turn; ``prompt`` opened the attempt."""
        action = self._parse(completion)
        started, waited_s = time.monotonic(), self.context.workspace.wait_s
        state = await state_digest(self.context, prompt)
        outcome = self._recorder.recall_outcome(state)
        if outcome is None:
            observation = await self._observation(action)
            is_tested = self.context.tested_files == self.context.workspace.state_digest()
            tool_s = time.monotonic() - started
            outcome = Outcome(
                state=state,
                observation=observation,
                is_tested=is_tested,
                generate_s=generate_s,
                tool_s=tool_s,
                wait_s=completion.queue_s + self.context.workspace.wait_s - waited_s,
            )
            self._recorder.add_outcome(outcome)
            await self._keeper.keep(self.context)
        elif not self._keeper.restore_next(self.context):
            await self._repeat(action, outcome)
            await self._keeper.keep(self.context)
        self._add_turn(completion, action, outcome)
        return action, outcome.observation

    async def _repeat(self, action: Action | ParseError, outcome: Outcome) -> None:
        """Bring the context to where ``action`` had brought it; `ReplayDiffersError` where it goes elsewhere."""
        is_check = isinstance(action, Action) and action.tool != REVIEW and self._interface.tools[action.tool].is_check
        if is_check and outcome.is_tested is not None:
            if outcome.is_tested:
                self.context.tested_files = self.context.workspace.state_digest()
            return
        self._recorder.num_executed_again += 1
        outcome.check(await self._observation(action))

    async def _observation(self, action: Action | ParseError) -> Observation:
        observation = await self._execute(action)
        if observation.is_final:
            return observation
        return observation.model_copy(update={"text": self._interface.finish(self.context, observation.text)})

    def _add_turn(self, completion: Completion, action: Action | ParseError, outcome: Outcome) -> None:
        observation = outcome.observation
        self.durations_s["generate"] += outcome.generate_s
        self.durations_s["tool"] += outcome.tool_s
        self.turns.append(
            Turn(
                action=completion.text,
                tool=action.tool if isinstance(action, Action) else None,
                arguments=action.values if isinstance(action, Action) else {},
                observation=observation.text,
                error=observation.error,
                action_span=completion.span,
                state=outcome.state,
                is_loop=is_loop(self.turns, completion.text, observation.text, self._config.loop_repeats),
                generate_s=outcome.generate_s,
                tool_s=outcome.tool_s,
                wait_s=outcome.wait_s,
                cost_usd=completion.cost_usd,
            )
        )
        if self._watcher:
            self._watcher.acted(self.turns[-1])

    def _parse(self, completion: Completion) -> Action | ParseError:
        # Of the part behind the thought, whatever the thinking mode: no call of a thought is ever made.
        answer, action_format, tools = completion.answer, self._interface.format, self._interface.tools
        is_complete = completion.is_stopped and not answer.is_thinking
        if self._interface.review and role_after(self.turns) == "reviewer":
            return self._interface.review.read(answer.text if is_complete else "")
        return action_format.parse(answer.text, tools) if is_complete else action_format.incomplete(tools)

    async def _execute(self, action: Action | ParseError) -> Observation:
        if isinstance(action, ParseError):
            return Observation(text=action.message, error="format")
        try:
            if action.tool == REVIEW and self._interface.review:
                return await self._interface.review.answer(self.context, action.values["judgement"])
            return await self._run_tool(self._interface.tools[action.tool], action.arguments)
        except _CAUSED_BY_AGENT as error:
            return tool_error(str(error))

    async def _run_tool(self, tool: Tool[Any], given: str | Mapping[str, Any]) -> Observation:
        try:
            arguments = tool.read(given) if isinstance(given, str) else tool.check(given)
            if tool.is_refreshed:
                await self.context.workspace.refresh()
            observation = await tool.run(self.context, arguments)
        except UsageError as error:
            return tool_error(f"{error}; usage: {tool.usage}")
        if observation.is_final and self._interface.review and role_after(self.turns) == "patcher":
            return await self._interface.review.request(self.context)
        return observation

    def _observe(self, text: str, action: Action | ParseError) -> None:
        made = action if isinstance(action, Action) and action.tool != REVIEW else None
        shown = self._interface.format.message(text, made)
        self._conversation.observe(shown, made.tool if made and self._interface.format.is_native else "")
        if self._config.thinking == "dropped":
            self._conversation.drop_thought()


# --- limits --------------------------------------------------------------------------------------------------------


@dataclass
class Usage:
    """Turns, tool calls, tokens, dollars and time that an attempt has used."""

    num_turns: int = 0
    num_tool_calls: int = 0
    num_output_tokens: int = 0
    cost_usd: float = 0.0
    turns_s: float = 0.0
    """Of the turns, also those of an earlier process, without their waits."""

    def add_turn(self, completion: Completion, turn: Turn, *, is_tool_call: bool) -> None:
        """Count one turn."""
        self.num_turns += 1
        self.turns_s += max(0.0, turn.generate_s + turn.tool_s - turn.wait_s)
        self.num_tool_calls += is_tool_call
        self.num_output_tokens += completion.num_tokens
        self.cost_usd += completion.cost_usd


def reached_limit(config: PipelineConfig, usage: Usage, num_context_tokens: int) -> StopReason | None:
    """Return the limit that leaves no other turn, if any."""
    if usage.num_turns >= config.max_turns:
        return StopReason.TURN_LIMIT
    if config.max_tool_calls is not None and usage.num_tool_calls >= config.max_tool_calls:
        return StopReason.TOOL_CALL_LIMIT
    if num_context_tokens >= config.max_len_tokens:
        return StopReason.TOKEN_LIMIT
    if config.max_output_tokens is not None and usage.num_output_tokens >= config.max_output_tokens:
        return StopReason.OUTPUT_TOKEN_LIMIT
    if config.max_cost_usd is not None and usage.cost_usd >= config.max_cost_usd:
        return StopReason.COST_LIMIT
    if usage.turns_s > config.time_limit_s:
        return StopReason.TIME_LIMIT
    return None


def max_new_tokens(config: PipelineConfig, usage: Usage, num_context_tokens: int) -> int:
    """Return the most tokens that the next completion can have."""
    room = config.max_len_tokens - num_context_tokens
    if config.max_output_tokens is not None:
        room = min(room, config.max_output_tokens - usage.num_output_tokens)
    return min(room, config.max_action_tokens)


def is_loop(turns: list[Turn], action: str, observation: str, num_repeats: int) -> bool:
    """Return True when this turn, behind ``turns``, is at least the ``num_repeats``-th equal one in a row."""
    latest = turns[len(turns) - num_repeats + 1 :] if num_repeats > 1 else []
    if len(latest) < num_repeats - 1:
        return False
    return all((turn.action, turn.observation) == (action, observation) for turn in latest)

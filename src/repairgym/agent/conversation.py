"""The conversation of one episode in tokens: the prompts that the policy reads, their ledger, cuts of long histories.

Reads prompts and observations as text, completions as sampled ids; grows a :class:`~repairgym.ledger.LedgerBuilder`.
Guarantees:

- The prompt of a turn is the prompt and completion of the turn before it plus the observation, or the ledger forks.
- Sampled ids are never encoded again; copies are cut between tokens, also behind a thought that is dropped.
- A worked example or a hint that only the policy sees is in no ledger, and the actions after it have no policy version,
  so that only imitation can learn them.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from repairgym.agent.tools.base import ToolContext
from repairgym.config.pipeline import ElisionConfig, PipelineConfig, SummaryConfig
from repairgym.diffs.make import unified_diff
from repairgym.errors import SandboxContentError
from repairgym.inference.answers import Answer
from repairgym.inference.base import Policy, SamplingParams
from repairgym.inference.chat_template import Message, Tools
from repairgym.inference.renderer import ChatRenderer
from repairgym.ledger import UNKNOWN_VERSION, LedgerBuilder, Span, TokenLedger
from repairgym.records import Turn

SEED_STRIDE = 1_000_003
"""Distance between the sampling seeds of an episode's turns."""
_MAX_ACTION_CHARS = 200
_MAX_DIFF_CHARS = 8000


@dataclass(frozen=True)
class InitialPrompt:
    """The first message of a history."""

    text: str
    system: str = ""
    demonstration: str = ""
    """A worked example that stands before ``text`` for the policy only."""


@dataclass(frozen=True)
class Hint:
    """A sentence below the observation of one turn, which the policy sees from there on and the record omits."""

    text: str
    num_turns: int
    """Completions before the observation."""


@dataclass(frozen=True)
class Completion:
    """One sampled answer of the policy."""

    text: str
    answer: Answer
    """The text without its thought."""
    is_stopped: bool
    """False when it was cut off."""
    span: Span
    """Its tokens in the ledger."""
    num_tokens: int
    cost_usd: float = 0.0
    queue_s: float = 0.0
    """Seconds that its request waited."""
    sampled_s: float = 0.0
    """Seconds that it took, as the policy reports them; 0.0 if it does not."""


@dataclass
class _Exchange:
    """A completion and the observation that followed it."""

    completion: Span
    stop_id: int | None
    """The stop token that ended the completion; None: it was cut off."""
    num_thought_tokens: int
    """Leading tokens of its thought."""
    num_dropped_tokens: int = 0
    """Those that were dropped from the history."""
    tool: str = ""
    """Name of the tool whose result the observation is, where the chat template writes it."""
    observation: Span | None = None
    """None until it is made, and while it has to be made again."""
    num_lines: int = 0
    is_elided: bool = False


class Conversation:
    """One episode's conversation with a policy that speaks tokens."""

    def __init__(
        self,
        policy: Policy,
        renderer: ChatRenderer,
        session_id: str,
        seed: int,
        temperature: float = 1.0,
        tools: Tools = (),
        hint: Hint | None = None,
    ) -> None:
        """Begin with an empty history; ``seed`` decides all sampling, the chat template describes ``tools``.

        ``hint`` is gone where the history is cut behind it.
        """
        self._policy = policy
        self._renderer = renderer
        self._session_id = session_id
        self._seed = seed
        self._temperature = temperature
        self._tools = tools
        self._ledger = LedgerBuilder()
        self._initial: Span = (0, 0)
        self._shown_initial: list[int] | None = None
        self._hint = hint
        self._shown_observation: tuple[Span, list[int]] | None = None
        """Place of an observation in the current history, and what the policy sees there."""
        self._exchanges: list[_Exchange] = []
        self._num_completions = 0
        self._is_begun = False

    @property
    def num_tokens(self) -> int:
        """Tokens of the next prompt."""
        num_tokens = len(self._ledger)
        if self._shown_initial is not None:
            num_tokens += len(self._shown_initial) - self._num_initial_tokens
        if self._shown_observation is not None:
            (start, end), shown = self._shown_observation
            num_tokens += len(shown) - (end - start)
        return num_tokens

    @property
    def num_observations(self) -> int:
        """Observations of the current history that were not elided."""
        return sum(not exchange.is_elided for exchange in self._exchanges)

    def ledger(self) -> TokenLedger:
        """Return the tokens so far."""
        return self._ledger.build()

    def begin(self, prompt: InitialPrompt) -> None:
        """Start the first history, or another one that knows nothing of those before it."""
        if self._is_begun:
            self._ledger.fork()
        self._is_begun = True
        self._shown_observation = None
        self._exchanges = []
        self._initial = self._ledger.append_context(self._renderer.open_ids(prompt.text, prompt.system, self._tools))
        self._shown_initial = None
        if prompt.demonstration:
            shown = f"{prompt.demonstration}\n\n{prompt.text}"
            self._shown_initial = self._renderer.open_ids(shown, prompt.system, self._tools)

    async def complete(self, max_tokens: int) -> Completion:
        """Sample the next completion, at most ``max_tokens`` long; `RepairGymError` if the policy cannot answer."""
        sampling = SamplingParams(
            temperature=self._temperature,
            max_tokens=max_tokens,
            stop_token_ids=self._renderer.stop_token_ids,
            seed=self._seed * SEED_STRIDE + self._num_completions,
        )
        generation = await self._policy.generate(self._session_id, self._prompt_ids(), sampling)
        is_as_recorded = self._shown_initial is None and not self._is_hinted
        self._num_completions += 1
        ids = list(generation.token_ids)
        versions = generation.versions if is_as_recorded else (UNKNOWN_VERSION,) * len(ids)
        span = self._ledger.append_action(ids, generation.log_probs, versions)
        answer = self._renderer.read(ids)
        stop_id = ids[-1] if generation.is_stopped else None
        self._exchanges.append(_Exchange(span, stop_id, answer.num_thought_tokens))
        text = self._renderer.decode(ids)
        cost_usd, queue_s = generation.cost_usd, generation.queue_s
        sampled_s = queue_s + generation.prefill_s + generation.decode_s
        return Completion(text, answer, generation.is_stopped, span, len(ids), cost_usd, queue_s, sampled_s)

    def observe(self, text: str, tool: str = "") -> None:
        """Append the observation that follows the last completion: the result of ``tool``, if it is named."""
        exchange = self._exchanges[-1]
        exchange.num_lines = text.count("\n") + 1
        exchange.tool = tool
        start = len(self._ledger)
        exchange.observation = self._append_observation(text, exchange)
        if self._hint is not None and self._num_completions == self._hint.num_turns:
            message = self._message(f"{text}\n{self._hint.text}", exchange)
            shown = self._renderer.continuation_ids([message], exchange.stop_id)
            self._shown_observation = (start, len(self._ledger)), shown

    def drop_thought(self) -> None:
        """Take the thought of the last completion out of the history; call it after `observe`."""
        exchange = self._exchanges[-1]
        exchange.num_dropped_tokens = exchange.num_thought_tokens
        if exchange.num_dropped_tokens:
            self._fork()

    def elide(self, num_kept: int) -> None:
        """Replace all but the last ``num_kept`` observations by a line that says how long they were."""
        old = [exchange for exchange in self._exchanges[: len(self._exchanges) - num_kept] if not exchange.is_elided]
        for exchange in old:
            exchange.is_elided = True
            exchange.observation = None
        if old:
            self._fork()

    def _fork(self) -> None:
        """Begin a history of the exchanges as they are now."""
        self._shown_observation = None
        self._ledger.fork()
        self._ledger.copy(self._initial)
        for exchange in self._exchanges:
            self._ledger.copy((exchange.completion[0] + exchange.num_dropped_tokens, exchange.completion[1]))
            if exchange.observation is None:
                text = f"[old output: {exchange.num_lines} lines left out]"
                exchange.observation = self._append_observation(text, exchange)
            else:
                self._ledger.copy(exchange.observation)

    def _append_observation(self, text: str, exchange: _Exchange) -> Span:
        ids = self._renderer.continuation_ids([self._message(text, exchange)], exchange.stop_id)
        return self._ledger.append_context(ids)

    def _message(self, text: str, exchange: _Exchange) -> Message:
        return Message("tool", text, exchange.tool) if exchange.tool else Message("user", text)

    @property
    def _is_hinted(self) -> bool:
        """True once the policy has read a hint, also where the history was cut since."""
        return self._hint is not None and self._num_completions >= self._hint.num_turns

    @property
    def _num_initial_tokens(self) -> int:
        return self._initial[1] - self._initial[0]

    def _prompt_ids(self) -> list[int]:
        ids = list(self._ledger.token_ids)
        # The later place first: the earlier one moves it.
        if self._shown_observation is not None:
            (start, end), shown = self._shown_observation
            ids[start:end] = shown
        if self._shown_initial is not None:
            ids[: self._num_initial_tokens] = self._shown_initial
        return ids


# --- cuts: each forks the ledger, so a completion stays behind exactly the tokens that it was sampled from ---------


async def cut_history(
    config: PipelineConfig,
    conversation: Conversation,
    prompt: InitialPrompt,
    turns: Sequence[Turn],
    context: ToolContext,
) -> None:
    """Cut the history as ``config.context`` says; ``turns`` are those of this attempt.

    Elision shortens old observations to one line each, every few turns. A summary restarts a nearly full history with
    the initial prompt, the changes so far and the latest actions; an initial prompt of that length stays alone.
    """
    choice = config.context
    if isinstance(choice, ElisionConfig):
        if conversation.num_observations >= choice.num_kept + choice.every_turns:
            conversation.elide(choice.num_kept)
    elif isinstance(choice, SummaryConfig):
        max_tokens = int(choice.full_share * config.max_len_tokens)
        if turns and conversation.num_tokens >= max_tokens and conversation.num_observations > 1:
            with suppress(SandboxContentError):  # the next tool that reads the files tells the agent
                await context.workspace.refresh()
            summary = _summarize(turns[-choice.num_actions :], context)
            conversation.begin(replace(prompt, text=f"{prompt.text}\n\n{summary}"))


def _summarize(turns: Sequence[Turn], context: ToolContext) -> str:
    """Summarize the work so far: the changes as a diff, the first lines of actions and observations."""
    workspace = context.workspace
    diff = unified_diff({path: workspace.base_text(path) for path in workspace.changes}, workspace.changes)
    lines = [f"- {_first_line(_call(turn))} -> {_first_line(turn.observation)}" for turn in turns]
    return "\n".join(
        [
            "# WHAT WAS DONE SO FAR",
            "The conversation had grown too long and begins again here. The changes below are in the tree.",
            diff[:_MAX_DIFF_CHARS] or "(no changes)",
            "Latest actions and how each answer began:",
            *lines,
        ]
    )


def _call(turn: Turn) -> str:
    arguments = " ".join(str(value) for value in turn.arguments.values())
    return f"{turn.tool} {arguments}" if turn.tool else "(unreadable action)"


def _first_line(text: str) -> str:
    return text.strip().partition("\n")[0][:_MAX_ACTION_CHARS]

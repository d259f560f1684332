"""The conversation of one episode in tokens: the prompts that the policy reads, and their ledger.

Reads prompts and observations as text, completions as sampled ids; grows a :class:`~repairgym.ledger.LedgerBuilder`.
Guarantees:

- The prompt of a turn is the prompt and completion of the turn before it plus the observation, or the ledger forks.
- Sampled ids are never encoded again; copies are cut between tokens, also behind a thought that is dropped.
- A worked example that only the policy sees is in no ledger, and the actions after it have no policy version, so that
  only imitation can learn them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from repairgym.inference.base import Policy, SamplingParams
from repairgym.inference.renderer import ChatRenderer
from repairgym.ledger import UNKNOWN_VERSION, LedgerBuilder, Span, TokenLedger

SEED_STRIDE = 1_000_003
"""Distance between the sampling seeds of an episode's turns."""
_THOUGHT_END = "</think>"


@dataclass(frozen=True)
class InitialPrompt:
    """The first message of a history."""

    text: str
    system: str = ""
    demonstration: str = ""
    """A worked example that stands before ``text`` for the policy only."""


@dataclass(frozen=True)
class Completion:
    """One sampled answer of the policy."""

    text: str
    is_stopped: bool
    """False when it was cut off."""
    span: Span
    """Its tokens in the ledger."""
    num_tokens: int
    cost_usd: float = 0.0


@dataclass
class _Exchange:
    """A completion and the observation that followed it."""

    completion: Span
    is_stopped: bool
    num_thought_tokens: int
    observation: Span | None = None
    """None until it is made, and while it has to be made again."""
    num_lines: int = 0
    is_elided: bool = False


class Conversation:
    """One episode's conversation with a policy that speaks tokens."""

    def __init__(
        self, policy: Policy, renderer: ChatRenderer, session_id: str, seed: int, temperature: float = 1.0
    ) -> None:
        """Begin with an empty history; ``seed`` decides all sampling of the episode."""
        self._policy = policy
        self._renderer = renderer
        self._session_id = session_id
        self._seed = seed
        self._temperature = temperature
        self._ledger = LedgerBuilder()
        self._initial: Span = (0, 0)
        self._shown_initial: list[int] | None = None
        self._exchanges: list[_Exchange] = []
        self._num_completions = 0
        self._is_begun = False

    @property
    def num_tokens(self) -> int:
        """Tokens of the next prompt."""
        if self._shown_initial is None:
            return len(self._ledger)
        return len(self._ledger) - self._num_initial_tokens + len(self._shown_initial)

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
        self._exchanges = []
        self._initial = self._ledger.append_context(self._renderer.open_ids(prompt.text, prompt.system))
        self._shown_initial = None
        if prompt.demonstration:
            shown = f"{prompt.demonstration}\n\n{prompt.text}"
            self._shown_initial = self._renderer.open_ids(shown, prompt.system)

    async def complete(self, max_tokens: int) -> Completion:
        """Sample the next completion, at most ``max_tokens`` long.

        Raises:
            RepairGymError: the policy cannot answer.
        """
        sampling = SamplingParams(
            temperature=self._temperature,
            max_tokens=max_tokens,
            stop_token_ids=self._renderer.stop_token_ids,
            seed=self._seed * SEED_STRIDE + self._num_completions,
        )
        generation = await self._policy.generate(self._session_id, self._prompt_ids(), sampling)
        self._num_completions += 1
        ids = list(generation.token_ids)
        versions = generation.versions if self._shown_initial is None else (UNKNOWN_VERSION,) * len(ids)
        span = self._ledger.append_action(ids, generation.log_probs, versions)
        self._exchanges.append(_Exchange(span, generation.is_stopped, 0))
        return Completion(self._renderer.decode(ids), generation.is_stopped, span, len(ids), generation.cost_usd)

    def observe(self, text: str) -> None:
        """Append the observation that follows the last completion."""
        exchange = self._exchanges[-1]
        exchange.num_lines = text.count("\n") + 1
        exchange.observation = self._ledger.append_context(self._renderer.observation_ids(text, exchange.is_stopped))

    def drop_thought(self) -> None:
        """Take the thought of the last completion out of the history; call it after `observe`."""
        exchange = self._exchanges[-1]
        start, end = exchange.completion
        ids = self._ledger.slice((start, end))
        exchange.num_thought_tokens = count_thought_tokens(ids, self._renderer.decode)
        if exchange.num_thought_tokens:
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
        self._ledger.fork()
        self._ledger.copy(self._initial)
        for exchange in self._exchanges:
            self._ledger.copy((exchange.completion[0] + exchange.num_thought_tokens, exchange.completion[1]))
            if exchange.observation is None:
                text = f"[old output: {exchange.num_lines} lines left out]"
                ids = self._renderer.observation_ids(text, exchange.is_stopped)
                exchange.observation = self._ledger.append_context(ids)
            else:
                self._ledger.copy(exchange.observation)

    @property
    def _num_initial_tokens(self) -> int:
        return self._initial[1] - self._initial[0]

    def _prompt_ids(self) -> list[int]:
        ids = self._ledger.token_ids
        if self._shown_initial is None:
            return list(ids)
        return self._shown_initial + ids[self._num_initial_tokens :]


# --- thoughts: text between <think> and </think> at the start of a completion --------------------------------------


def without_thought(text: str) -> str:
    """Return the text behind the thought: all of ``text`` when it has none."""
    before, end, after = text.partition(_THOUGHT_END)
    return after if end else before


def is_thinking(text: str) -> bool:
    """Return True when ``text`` begins a thought and never ends it."""
    return text.lstrip().startswith("<think>") and _THOUGHT_END not in text


def count_thought_tokens(token_ids: Sequence[int], decode: Callable[[list[int]], str]) -> int:
    """Count the tokens of the thought; 0 without one.

    The largest number of tokens whose text ends inside or at the end of the thought: a token that also holds a part of
    the action stays.
    """
    if _THOUGHT_END not in decode(list(token_ids)):
        return 0
    low, high = 0, len(token_ids)
    while low < high:
        middle = (low + high + 1) // 2
        _, end, after = decode(list(token_ids[:middle])).partition(_THOUGHT_END)
        if end and after:
            high = middle - 1
        else:
            low = middle
    return low

"""The conversation of one episode in tokens: what the policy is shown, and the ledger of it.

Reads openings and observations as text, answers as sampled ids; grows a :class:`~repairgym.ledger.LedgerBuilder`.
Invariants: the prompt of a turn is the prompt and completion of the turn before it plus the observation, or the ledger
forks; what was sampled is never encoded again, copies are cut between tokens; a worked example that only the policy
sees is in no ledger, and the actions after it have no policy version, so that only imitation can learn them.
"""

from __future__ import annotations

from dataclasses import dataclass

from repairgym.agent.thoughts import count_thought_tokens
from repairgym.inference.base import Policy, SamplingParams
from repairgym.inference.renderer import ChatRenderer
from repairgym.ledger import UNKNOWN_VERSION, LedgerBuilder, Span, TokenLedger

SEED_STRIDE = 1_000_003
"""Turns of one episode draw their sampling seeds this far apart."""


@dataclass(frozen=True)
class InitialPrompt:
    """What an agent reads first."""

    text: str
    system: str = ""
    demonstration: str = ""
    """A worked example that stands before ``text`` for the policy only."""


@dataclass(frozen=True)
class Answer:
    """What the policy said."""

    text: str
    is_stopped: bool
    """False when it was cut off."""
    span: Span
    """Of its tokens in the ledger."""
    num_tokens: int
    cost_usd: float = 0.0


@dataclass
class _Exchange:
    """An answer and the observation that followed it."""

    answer: Span
    is_stopped: bool
    num_thought_tokens: int
    observation: Span | None = None
    """None until it is made, and while it is to be made anew."""
    num_lines: int = 0
    is_elided: bool = False


class Conversation:
    """One episode's conversation with a policy that speaks tokens."""

    def __init__(
        self, policy: Policy, renderer: ChatRenderer, session_id: str, seed: int, temperature: float = 1.0
    ) -> None:
        """Say nothing yet; ``seed`` decides all sampling of the episode."""
        self._policy = policy
        self._renderer = renderer
        self._session_id = session_id
        self._seed = seed
        self._temperature = temperature
        self._ledger = LedgerBuilder()
        self._opening: Span = (0, 0)
        self._shown_opening: list[int] | None = None
        self._exchanges: list[_Exchange] = []
        self._num_answers = 0
        self._is_begun = False

    @property
    def num_tokens(self) -> int:
        """Tokens of the next prompt."""
        if self._shown_opening is None:
            return len(self._ledger)
        return len(self._ledger) - self._num_opening_tokens + len(self._shown_opening)

    @property
    def num_observations(self) -> int:
        """Observations of the current history that stand as they were."""
        return sum(not exchange.is_elided for exchange in self._exchanges)

    def ledger(self) -> TokenLedger:
        """The tokens so far."""
        return self._ledger.build()

    def begin(self, opening: InitialPrompt) -> None:
        """Start the first history, or another one that knows nothing of those before it."""
        if self._is_begun:
            self._ledger.fork()
        self._is_begun = True
        self._exchanges = []
        self._opening = self._ledger.append_context(self._renderer.open_ids(opening.text, opening.system))
        self._shown_opening = None
        if opening.demonstration:
            shown = f"{opening.demonstration}\n\n{opening.text}"
            self._shown_opening = self._renderer.open_ids(shown, opening.system)

    async def answer(self, max_tokens: int) -> Answer:
        """The policy's next answer, at most ``max_tokens`` long.

        Raises:
            RepairGymError: the policy cannot answer.
        """
        sampling = SamplingParams(
            temperature=self._temperature,
            max_tokens=max_tokens,
            stop_token_ids=self._renderer.stop_token_ids,
            seed=self._seed * SEED_STRIDE + self._num_answers,
        )
        generation = await self._policy.generate(self._session_id, self._prompt_ids(), sampling)
        self._num_answers += 1
        ids = list(generation.token_ids)
        versions = generation.versions if self._shown_opening is None else (UNKNOWN_VERSION,) * len(ids)
        span = self._ledger.append_action(ids, generation.log_probs, versions)
        self._exchanges.append(_Exchange(span, generation.is_stopped, 0))
        return Answer(self._renderer.decode(ids), generation.is_stopped, span, len(ids), generation.cost_usd)

    def observe(self, text: str) -> None:
        """Append what followed the last answer."""
        exchange = self._exchanges[-1]
        exchange.num_lines = text.count("\n") + 1
        exchange.observation = self._ledger.append_context(self._renderer.observation_ids(text, exchange.is_stopped))

    def drop_thought(self) -> None:
        """Take the thought of the last answer out of the history; call it after `observe`."""
        exchange = self._exchanges[-1]
        start, end = exchange.answer
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
        self._ledger.copy(self._opening)
        for exchange in self._exchanges:
            self._ledger.copy((exchange.answer[0] + exchange.num_thought_tokens, exchange.answer[1]))
            if exchange.observation is None:
                text = f"[old output: {exchange.num_lines} lines left out]"
                ids = self._renderer.observation_ids(text, exchange.is_stopped)
                exchange.observation = self._ledger.append_context(ids)
            else:
                self._ledger.copy(exchange.observation)

    @property
    def _num_opening_tokens(self) -> int:
        return self._opening[1] - self._opening[0]

    def _prompt_ids(self) -> list[int]:
        ids = self._ledger.token_ids
        if self._shown_opening is None:
            return list(ids)
        return self._shown_opening + ids[self._num_opening_tokens :]

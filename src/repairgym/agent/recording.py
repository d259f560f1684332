"""The turns of an episode as they are written ahead, and their replay in another process.

Makes a `SampledAction` before an action is executed and an `Outcome` before the next one is sampled; reads those of an
earlier process. Guarantees: a recorded action is not sampled again and keeps its log-probabilities and its policy
version; a recorded test run or build is not repeated, other tools are executed again, because they make the state; a
replay that meets another prompt, state or observation raises `ReplayDiffersError` before anything new is sampled.
"""

import hashlib
import re
from array import array
from collections import deque
from collections.abc import Callable, Collection, Sequence
from typing import Literal

from repairgym.agent.tools.base import Observation
from repairgym.errors import ReplayDiffersError
from repairgym.inference.base import Generation, Policy, RecallingPolicy, SamplingParams
from repairgym.ledger import UNKNOWN_VERSION
from repairgym.records import Record, Trajectory

_DIGEST_BYTES = 8
_SHARED_BY_NO_TWO_RUNS = (
    (re.compile(r"\b\d{4}-\d\d-\d\d[T ]\d\d:\d\d(?::\d\d(?:[.,]\d+)?)?"), "<time>"),
    (re.compile(r"\b\d\d:\d\d:\d\d(?:[.,]\d+)?\b"), "<time>"),
    (re.compile(r"\b\d+\.\d+ ?(?:s|ms|us|sec|secs|seconds)\b"), "<duration>"),
    (re.compile(r"(?:/var)?/tmp/(?:tmp|pytest-)[\w.-]+"), "<temporary>"),
    (re.compile(r"\b0x[0-9a-f]{6,16}\b"), "<address>"),
)


def normalize(text: str) -> str:
    """Return ``text`` with what no two runs share replaced: times, temporary names, addresses."""
    for pattern, word in _SHARED_BY_NO_TWO_RUNS:
        text = pattern.sub(word, text)
    return text


class SampledAction(Record):
    """An action that was sampled; recorded before it is executed."""

    type: Literal["sampled"] = "sampled"
    prompt: str
    """Digest of the tokens that it was sampled from."""
    generation: Generation


class Outcome(Record):
    """The outcome of an action; recorded before the next one is sampled."""

    type: Literal["outcome"] = "outcome"
    state: str
    """Digest of the state in which the action was executed (`Turn.state`)."""
    observation: Observation
    is_tested: bool | None
    """The present files have been tested (``tested_files`` of the `ToolContext`); None: unknown, a check runs again."""
    generate_s: float
    tool_s: float
    wait_s: float = 0.0

    def check(self, observation: Observation) -> None:
        """Raise `ReplayDiffersError` unless a replay observed the same, but for what no two runs share."""
        same = (self.observation.error, self.observation.is_final) == (observation.error, observation.is_final)
        if not same or normalize(self.observation.text) != normalize(observation.text):
            raise ReplayDiffersError(f"observed {observation.text[:80]!r}, recorded {self.observation.text[:80]!r}")


Entry = SampledAction | Outcome


def entries_of(trajectory: Trajectory, num_turns: int, stop_token_ids: Collection[int]) -> list[Entry]:
    """Return the first turns of a stored episode as entries; its `Turn` records do not tell what was tested."""
    ledger, entries = trajectory.ledger, list[Entry]()
    for turn in trajectory.turns[:num_turns]:
        start, end = turn.action_span
        ids = ledger.token_id[start:end].tolist()
        generation = Generation(
            token_ids=tuple(ids),
            log_probs=tuple(ledger.log_prob[start:end].tolist()),
            is_stopped=not set(ids[-1:]).isdisjoint(stop_token_ids),
            policy_version=UNKNOWN_VERSION,
            token_versions=tuple(ledger.policy_version[start:end].tolist()),
        )
        observation = Observation(text=turn.observation, error=turn.error)
        entries.append(SampledAction(prompt=_digest(ledger.prompt_of(turn.action_span)), generation=generation))
        entries.append(
            Outcome(
                state=turn.state,
                observation=observation,
                is_tested=None,
                generate_s=turn.generate_s,
                tool_s=turn.tool_s,
                wait_s=turn.wait_s,
            )
        )
    return entries


class TurnRecorder:
    """The record of one episode: entries of an earlier process come back first, then new ones are written."""

    def __init__(self, entries: Sequence[Entry] = (), write: Callable[[Entry], None] = lambda entry: None) -> None:
        self._ahead = deque(entries)
        self._write = write
        self.num_recalled = 0
        """Actions that were not sampled again."""
        self.num_executed_again = 0
        """Of these, actions whose outcome was recorded and that had to be executed again."""

    def recall_action(self, prompt_ids: Sequence[int]) -> Generation | None:
        """Return the recorded action; None: it has to be sampled."""
        if not self._ahead:
            return None
        entry = self._ahead.popleft()
        if not isinstance(entry, SampledAction) or entry.prompt != _digest(prompt_ids):
            raise ReplayDiffersError(f"another prompt of {len(prompt_ids)} tokens before the recorded action")
        self.num_recalled += 1
        return entry.generation

    def recall_outcome(self, state: str) -> Outcome | None:
        """Return the recorded outcome of the present action; None: it has to be executed."""
        if not self._ahead:
            return None
        entry = self._ahead.popleft()
        if not isinstance(entry, Outcome) or entry.state != state:
            raise ReplayDiffersError(f"state {state} before a recorded action")
        return entry

    def add_action(self, prompt_ids: Sequence[int], generation: Generation) -> None:
        """Record a sampled action."""
        self._write(SampledAction(prompt=_digest(prompt_ids), generation=generation))

    def add_outcome(self, outcome: Outcome) -> None:
        """Record what it led to."""
        self._write(outcome)


def _digest(prompt_ids: Sequence[int]) -> str:
    return hashlib.blake2b(array("i", prompt_ids).tobytes(), digest_size=_DIGEST_BYTES).hexdigest()


class RecordedPolicy:
    """A policy whose answers are recorded, and come from the record as long as it has any."""

    def __init__(self, policy: Policy, recorder: TurnRecorder) -> None:
        self.id = policy.id
        self._policy = policy
        self._recorder = recorder

    async def generate(self, session_id: str, prompt_ids: list[int], sampling: SamplingParams) -> Generation:
        """Return the recorded answer, or sample and record it; `ReplayDiffersError` for another prompt."""
        recorded = self._recorder.recall_action(prompt_ids)
        if recorded is None:
            generation = await self._policy.generate(session_id, prompt_ids, sampling)
            self._recorder.add_action(prompt_ids, generation)
            return generation
        if isinstance(self._policy, RecallingPolicy):
            await self._policy.recall(session_id, prompt_ids, sampling, recorded)
        return recorded

    async def end_session(self, session_id: str) -> None:
        """Pass it on."""
        await self._policy.end_session(session_id)

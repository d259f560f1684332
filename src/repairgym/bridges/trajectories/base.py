"""The common form of trajectories between formats: messages in order, as text.

Guarantees: text is exact, nothing is trimmed.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from repairgym.agent.formats import text_of_message
from repairgym.inference.chat_template import Message
from repairgym.inference.renderer import ChatRenderer
from repairgym.ledger import TokenLedger
from repairgym.records import Record, Trajectory, VerdictKind

Document = Mapping[str, Any]


class FormatError(ValueError):
    """A document that violates its format."""


class ToolCall(Record):
    """One call, separate from the text."""

    name: str
    arguments: dict[str, Any]


class StepTokens(Record):
    """The sampled tokens of a step."""

    prompt_length: int
    token_ids: tuple[int, ...]
    log_probs: tuple[float, ...]


class DumpedTokens(Record):
    """All tokens of an episode as a trainer stored them; three sequences of one length."""

    token_ids: tuple[int, ...]
    is_sampled: tuple[bool, ...]
    log_probs: tuple[float, ...]
    """0 where not sampled, or not known."""


class Step(Record):
    """One answer and the observation after it."""

    text: str
    """The agent's text; without the calls where the format keeps them separate."""
    calls: tuple[ToolCall, ...] = ()
    observation: str = ""
    duration_s: float = 0.0
    tokens: StepTokens | None = None


class ExchangeTrajectory(Record):
    """One episode as text."""

    id: str
    instance_id: str
    opening: tuple[Message, ...]
    """Messages before the first answer: system and user."""
    steps: tuple[Step, ...]
    exit_status: str
    """In the terms of its source, e.g. ``submitted``."""
    patch: str
    model: str = ""
    agent: str = "repairgym"
    is_resolved: bool | None = None
    """None: not graded."""
    dump: DumpedTokens | None = None
    """Tokens of a trainer's own tokenizer, where its file has them."""

    def messages(self) -> list[Message]:
        """Return the conversation; calls are in the text as JSON between ``<tool_call>`` tags."""
        messages = list(self.opening)
        for number, step in enumerate(self.steps):
            messages.append(Message("assistant", full_text(step)))
            if step.observation or number + 1 < len(self.steps):
                messages.append(Message("user", step.observation))
        return messages


@dataclass(frozen=True)
class TrajectoryFormat:
    """One format: documents to and from `ExchangeTrajectory`."""

    name: str
    suffix: str
    """Of its files; ``.jsonl``: one document per line of one file."""
    matches: Callable[[Document], bool]
    write: Callable[[ExchangeTrajectory], dict[str, Any]] | None
    """None: the format is only read."""
    read: Callable[[Document, str], ExchangeTrajectory]
    """Of a document and its file's name, which alone names the instance in some formats; raises `FormatError`."""


def id_of_text(name: str, opening: Iterable[Message], steps: Iterable[Step]) -> str:
    """Return an id for an episode whose file names its task only: ``name`` and a digest of the conversation."""
    texts = [text for _, text, _ in opening]
    texts += [text for step in steps for text in (full_text(step), step.observation)]
    return f"{name}-{hashlib.sha256(json.dumps(texts).encode()).hexdigest()[:12]}"


def full_text(step: Step) -> str:
    """Return the agent's message as one text, calls included."""
    calls = [{"function": {"name": call.name, "arguments": call.arguments}} for call in step.calls]
    return text_of_message({"content": step.text, "tool_calls": calls})


def from_trajectory(trajectory: Trajectory, renderer: ChatRenderer) -> ExchangeTrajectory:
    """Convert one of ours; ``renderer`` has the tokenizer that it was made with, to decode the opening."""
    ledger = trajectory.ledger
    starts = [turn.action_span[0] for turn in trajectory.turns]
    opening = renderer.messages(ledger.token_id[: starts[0]].tolist()) if starts else []
    return ExchangeTrajectory(
        id=trajectory.id,
        instance_id=trajectory.task_id,
        opening=tuple(opening),
        steps=tuple(_step(trajectory, number) for number in range(len(trajectory.turns))),
        exit_status=trajectory.stop_reason.value,
        patch=trajectory.final_patch,
        model=trajectory.policy_id,
        is_resolved=trajectory.verdict.kind is VerdictKind.PASSED if trajectory.verdict.is_valid else None,
    )


def prompt_length(ledger: TokenLedger, start: int) -> int:
    """Return the number of tokens that the policy read before the action at ``start``."""
    history = next(branch for branch in reversed(ledger.histories) if branch.start <= start)
    return sum(min(last, start) - first for first, last in history.spans if first < start)


def _step(trajectory: Trajectory, number: int) -> Step:
    turn = trajectory.turns[number]
    start, end = turn.action_span
    ledger = trajectory.ledger
    is_sampled = bool((ledger.policy_version[start:end] >= 0).all())
    tokens = StepTokens(
        prompt_length=prompt_length(ledger, start),
        token_ids=tuple(ledger.token_id[start:end].tolist()),
        log_probs=tuple(ledger.log_prob[start:end].tolist()),
    )
    return Step(
        text=turn.action,
        observation=turn.observation,
        duration_s=turn.generate_s + turn.tool_s,
        tokens=tokens if is_sampled else None,
    )

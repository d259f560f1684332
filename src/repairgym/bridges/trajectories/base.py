"""The common form of trajectories between formats: what was said, in order, as text.

Made of our `Trajectory` records and of other people's files; written to both. Invariants: text is exact, nothing is
trimmed; tokens are there only where the trajectory is our own, so what was imported never claims to have any.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

from repairgym.agent.formats.tool_calls import text_of_message
from repairgym.inference.renderer import ChatRenderer, Message
from repairgym.records import Record, Trajectory, VerdictKind

Document = Mapping[str, Any]
"""A JSON object."""


class FormatError(ValueError):
    """A document that is not what its format says."""


class ToolCall(Record):
    """One call, apart from the text."""

    name: str
    arguments: dict[str, Any]


class StepTokens(Record):
    """What a step was sampled as."""

    prompt_length: int
    token_ids: tuple[int, ...]
    log_probs: tuple[float, ...]


class Step(Record):
    """One answer and what came back."""

    text: str
    """All that the agent said; where the format keeps calls apart, without them."""
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
    """In the words of where it comes from, e.g. ``submitted``."""
    patch: str
    model: str = ""
    agent: str = "repairgym"
    is_resolved: bool | None = None
    """None: nobody has graded it."""

    def messages(self) -> list[Message]:
        """The conversation; calls stand in the text as JSON between ``<tool_call>`` tags."""
        found = list(self.opening)
        for number, step in enumerate(self.steps):
            found.append(Message("assistant", spoken(step)))
            if step.observation or number + 1 < len(self.steps):
                found.append(Message("user", step.observation))
        return found


class TrajectoryFormat(ABC):
    """One format: documents to and from `ExchangeTrajectory`."""

    name: ClassVar[str]
    suffix: ClassVar[str]
    """Of its files. Ends in ``.jsonl``: one document per line of one file."""

    @abstractmethod
    def matches(self, document: Document) -> bool:
        """Whether ``document`` is of this format."""

    @abstractmethod
    def write(self, trajectory: ExchangeTrajectory) -> dict[str, Any]:
        """The document of one trajectory."""

    @abstractmethod
    def read(self, document: Document, name: str) -> ExchangeTrajectory:
        """The trajectory of a document; ``name`` is that of its file, where formats hide the instance.

        Raises:
            FormatError: something that the format demands is missing.
        """


def spoken(step: Step) -> str:
    """What the agent said as one text, calls included."""
    calls = [{"function": {"name": call.name, "arguments": call.arguments}} for call in step.calls]
    return text_of_message({"content": step.text, "tool_calls": calls})


def from_trajectory(trajectory: Trajectory, renderer: ChatRenderer) -> ExchangeTrajectory:
    """One of ours. ``renderer`` is of the tokenizer that it was made with: the opening is read from its tokens."""
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


def _step(trajectory: Trajectory, number: int) -> Step:
    turn = trajectory.turns[number]
    start, end = turn.action_span
    ledger = trajectory.ledger
    is_sampled = bool((ledger.policy_version[start:end] >= 0).all())
    history = next(branch for branch in reversed(ledger.histories) if branch.start <= start)
    tokens = StepTokens(
        prompt_length=sum(min(last, start) - first for first, last in history.spans if first < start),
        token_ids=tuple(ledger.token_id[start:end].tolist()),
        log_probs=tuple(ledger.log_prob[start:end].tolist()),
    )
    return Step(
        text=turn.action,
        observation=turn.observation,
        duration_s=turn.generate_s + turn.tool_s,
        tokens=tokens if is_sampled else None,
    )

"""A policy of several models: one for each situation (after LLM-Ens, arXiv 2505.15306), or one for each role (MALT).

Reads the turns of an episode, and a `Router` of `repairgym eval router` or a `Team` of `repairgym train malt`; makes
completions of members. Guarantees: who acts follows from the turns before alone, never from the verdict or the repair;
equal turns are routed to the same member, also in a replay; tokens have no policy version, because several policies
sampled an episode, so that policy gradients reject them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Self

from pydantic import Field, TypeAdapter, ValidationError, model_validator

from repairgym.agent.review import ROLES, role_after
from repairgym.agent.tools.roles import TestState, final_test_state, is_change
from repairgym.config.pipeline import ReviewForm
from repairgym.errors import InputError
from repairgym.inference.base import Generation, Policy, RecallingPolicy, SamplingParams
from repairgym.ledger import UNKNOWN_VERSION
from repairgym.records import Record, Turn

if TYPE_CHECKING:
    from repairgym.agent.conversation import InitialPrompt
    from repairgym.agent.episode import Watcher

_NAMES: Mapping[TestState, str] = {
    "untested": "changed, not tested",
    "failed": "tests failed",
    "passed": "tests passed",
}
_AFTER_ERROR = ", after an error"


def situation(turns: Sequence[Turn]) -> str:
    """Return what is known behind ``turns``: whether something was changed and tested; an error of the last action."""
    name = _NAMES[final_test_state(turns)] if any(map(is_change, turns)) else "unchanged"
    return name + _AFTER_ERROR if turns and turns[-1].error else name


class Member(Record):
    """A model of a router or a team."""

    name: str
    folder: str
    weights_digest: str


class Cell(Record):
    """Episodes of one member that came into a situation."""

    num_episodes: int
    num_passed: int
    value: float
    """Share that passed, drawn to the member's share over all episodes."""


class Router(Record):
    """A table of members by situation, and who acts where."""

    members: tuple[Member, ...] = Field(min_length=2)
    best: str
    """The best single member, the control; it acts in situations that the table does not have."""
    table: dict[str, dict[str, Cell]]
    """Situation -> member -> what is known."""
    choices: dict[str, str]
    """Situation -> member."""

    def choose(self, turns: Sequence[Turn]) -> str:
        """Return the name of the member that acts behind ``turns``."""
        return self.choices.get(situation(turns), self.best)


class Team(Record):
    """A model for each role of an episode whose submissions are reviewed."""

    members: tuple[Member, ...]
    """Named by their roles."""
    review: ReviewForm
    """Form of the reviews that they learned."""

    @model_validator(mode="after")
    def _has_each_role(self) -> Self:
        names = tuple(member.name for member in self.members)
        if names != ROLES or self.review == "none":
            raise ValueError(f"got the members {names} and review={self.review!r}, expected {ROLES} and their reviews")
        return self

    def choose(self, turns: Sequence[Turn]) -> str:
        """Return the role that acts behind ``turns``."""
        return role_after(turns)


def read_members(path: Path) -> Router | Team:
    """Read the file of a router or a team.

    Raises:
        InputError: the file cannot be read, or is neither.
    """
    known: TypeAdapter[Router | Team] = TypeAdapter(Router | Team)
    try:
        return known.validate_json(path.read_bytes())
    except (OSError, ValidationError) as error:
        raise InputError(f"{path} is no file of `repairgym eval router` or `train malt`: {error}") from None


class RouterPolicy:
    """The policy of a `Router` or a `Team`; `watch` each session, so that it knows the turns."""

    def __init__(self, router: Router | Team, members: Mapping[str, Policy], name: str) -> None:
        """``members`` by their names in ``router``; all have one vocabulary."""
        self.id = name
        self._router = router
        self._members = dict(members)
        self._sessions: dict[str, _Session] = {}

    def watch(self, session_id: str, other: Watcher | None = None) -> Watcher:
        """Return the reader of a session's turns, which passes them on to ``other``."""
        self._sessions[session_id] = _Session(other)
        return self._sessions[session_id]

    async def generate(self, session_id: str, prompt_ids: list[int], sampling: SamplingParams) -> Generation:
        """Return the completion of the member that acts now."""
        generation = await self._member(session_id).generate(session_id, prompt_ids, sampling)
        return generation.model_copy(update={"policy_version": UNKNOWN_VERSION, "token_versions": ()})

    async def recall(
        self, session_id: str, prompt_ids: list[int], sampling: SamplingParams, generation: Generation
    ) -> None:
        """Bring back the state of the member that had acted."""
        member = self._member(session_id)
        if isinstance(member, RecallingPolicy):
            await member.recall(session_id, prompt_ids, sampling, generation)

    async def end_session(self, session_id: str) -> None:
        """End the session in all members."""
        self._sessions.pop(session_id, None)
        for member in self._members.values():
            await member.end_session(session_id)

    def _member(self, session_id: str) -> Policy:
        return self._members[self._router.choose(self._sessions[session_id].turns)]


class _Session:
    def __init__(self, other: Watcher | None) -> None:
        self.turns: list[Turn] = []
        self._other = other

    def opened(self, prompt: InitialPrompt) -> None:
        """Pass it on; a further attempt continues with the files of the one before."""
        if self._other:
            self._other.opened(prompt)

    def acted(self, turn: Turn) -> None:
        """Keep a turn."""
        self.turns.append(turn)
        if self._other:
            self._other.acted(turn)

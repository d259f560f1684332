"""Reviews of submissions: the roles of an episode (after MALT, arXiv 2412.01928).

The first submission of a *patcher* ends nothing. The next answer is the *reviewer's*, who has read the history and the
visible tests on the patch; every answer behind it is the *refiner's*, whose submission is the episode's. All of it is
one history, as the paper's prompts are, so roles are places in it. Guarantees: the role of a turn follows from the
turns before; a review shows nothing that the agent's own tools do not, hidden tests least of all.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import suppress
from typing import get_args

from repairgym.agent.formats import Action, ParseError
from repairgym.agent.prompts import render_prompt
from repairgym.agent.tools.base import NoArguments, Observation, ToolContext, ToolServices
from repairgym.agent.tools.check import RunTestsTool, ValidateAndBuildTool
from repairgym.agent.tools.edit import UndoTool
from repairgym.agent.tools.shell import cut_middle
from repairgym.config.pipeline import Role
from repairgym.diffs.make import unified_diff
from repairgym.errors import SandboxContentError
from repairgym.records import Turn

ROLES: tuple[Role, ...] = get_args(Role)
REVIEW = "review"
"""`Turn.tool` of a readable review; its argument ``judgement`` is `RIGHT` or `WRONG`."""
RIGHT, WRONG = "right", "wrong"
_JUDGEMENT = re.compile(r"^\W*judgement:\W*(right|wrong)\W*$", re.MULTILINE | re.IGNORECASE)


def review_turn(turns: Sequence[Turn]) -> int:
    """Return the place of the review: behind the first submission, or behind all turns where there is none."""
    return next((at for at, turn in enumerate(turns, 1) if turn.tool == "submit" and not turn.error), len(turns) + 1)


def role_after(turns: Sequence[Turn]) -> Role:
    """Return the role whose turn is next in an episode whose submissions are reviewed."""
    at = review_turn(turns)
    return "patcher" if len(turns) < at else "reviewer" if len(turns) == at else "refiner"


def judgement_of(turn: Turn) -> str:
    """Return `RIGHT` or `WRONG`; empty for a turn that is no readable review."""
    return str(turn.arguments["judgement"]) if turn.tool == REVIEW else ""


class Review(ABC):
    """One form of reviews."""

    def __init__(self, services: ToolServices) -> None:
        self._services = services

    @abstractmethod
    async def request(self, context: ToolContext) -> Observation:
        """Return the answer to the patcher's submission, which the reviewer reads."""

    @abstractmethod
    def read(self, text: str) -> Action | ParseError:
        """Read the reviewer's answer; an unreadable one is an error that the refiner sees."""

    @abstractmethod
    async def answer(self, context: ToolContext, judgement: str) -> Observation:
        """Return the answer to the review, which the refiner reads."""


class ReviewByActions(Review):
    """Reviews of small models, which write no sentences: ``submit`` says right, ``undo`` takes the last change back.

    A transfer: the paper's reviewer writes a critique and changes nothing. Here the history has to mean what it says to
    a model that knows both actions, so a change that is judged wrong is undone.
    """

    async def request(self, context: ToolContext) -> Observation:
        """Return the result of the visible tests, as ``test`` shows it."""
        return await RunTestsTool(self._services).run(context, NoArguments())

    def read(self, text: str) -> Action | ParseError:
        """Read the first word."""
        judgement = {"submit": RIGHT, "undo": WRONG}.get(text.partition(" ")[0].strip())
        if judgement is None:
            return ParseError("error: one line, one of submit undo")
        return Action(REVIEW, {"judgement": judgement})

    async def answer(self, context: ToolContext, judgement: str) -> Observation:
        """Undo the last change, or show the tests again."""
        if judgement == WRONG:
            return await UndoTool(self._services).run(context, NoArguments())
        return await self.request(context)


class WrittenReview(Review):
    """Reviews in sentences that end with a line ``judgement: right`` or ``judgement: wrong``."""

    async def request(self, context: ToolContext) -> Observation:
        """Return the reviewer's task: the patch, and what build and visible tests say."""
        tested = await ValidateAndBuildTool(self._services).run(context, NoArguments())
        with suppress(SandboxContentError):
            await context.workspace.refresh()
        workspace = context.workspace
        patch = unified_diff({path: workspace.base_text(path) for path in workspace.changes}, workspace.changes)
        patch = cut_middle(patch, self._services.config.max_observation_chars)
        return Observation(text=render_prompt("malt/review", patch=patch, tests=tested.text))

    def read(self, text: str) -> Action | ParseError:
        """Read the last line with a judgement."""
        judgements = _JUDGEMENT.findall(text)
        if not judgements:
            return ParseError(render_prompt("malt/refine", is_judged=False))
        return Action(REVIEW, {"judgement": judgements[-1].lower()})

    async def answer(self, context: ToolContext, judgement: str) -> Observation:
        """Return the refiner's task."""
        return Observation(text=render_prompt("malt/refine", is_judged=True))


def make_review(services: ToolServices) -> Review | None:
    """Return the form that the pipeline is configured for; None: its submissions are not reviewed."""
    forms: dict[str, type[Review]] = {"actions": ReviewByActions, "written": WrittenReview}
    form = forms.get(services.config.review)
    return form(services) if form else None

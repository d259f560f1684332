"""The scripted expert: the right next action in any state that an episode of compact actions is in, and mixed episodes.

Reads a task's repair and the actions and observations so far, whoever acted; makes actions. It repairs what is not
repaired, takes back what is wrong, tests and submits. Guarantees: it never learns more from an episode than its text;
its tokens in a mixed episode have no policy version, so that only imitation can learn them.
"""

import random
import re
from collections.abc import Sequence
from dataclasses import replace

from repairgym.agent.scripted import window_edits
from repairgym.agent.tools.window_edits import CompactEdit, parse_compact_edit
from repairgym.inference.base import Generation, Policy, RecallingPolicy, SamplingParams
from repairgym.inference.renderer import ChatRenderer
from repairgym.ledger import UNKNOWN_VERSION
from repairgym.records import Task

_CHANGES = ("edit ", "line ", "write ")
_LABEL = re.compile(r"@(\d+) ")


class Expert:
    """The expert of one episode. Call `observe` with each action and what it led to."""

    def __init__(self, fixes: Sequence[CompactEdit]) -> None:
        """``fixes``: the edits that give the gold lines (`window_edits`)."""
        self._fixes = fixes
        self._applied: list[CompactEdit | None] = []
        """Changes that `undo` would take back; None: no edit of the repair."""
        self._is_tested = False

    @classmethod
    def of(cls, task: Task) -> "Expert":
        """Return the expert of a task's first window."""
        return cls(window_edits(task)[0])

    def act(self) -> str | None:
        """Return the right action; None where the task's repair is no edit of the window."""
        if not self._fixes:
            return None
        if None in self._applied:
            return "undo"
        done = {edit.label for edit in self._applied if edit is not None}
        left = [fix for fix in self._fixes if fix.label not in done]
        if left:
            return f"edit {left[0]}"
        return "submit" if self._is_tested else "test"

    def observe(self, action: str, observation: str) -> None:
        """Follow ``action`` of anybody."""
        if observation.startswith("error"):
            return
        if action.startswith(_CHANGES):
            self._applied.append(self._fix_of(action, observation))
            self._is_tested = False
        elif action.strip() == "undo" and self._applied:
            self._applied.pop()
            self._is_tested = False
        elif action.strip() == "test":
            self._is_tested = True

    def _fix_of(self, action: str, observation: str) -> CompactEdit | None:
        kind, _, argument = action.partition(" ")
        edit = parse_compact_edit(argument) if kind == "edit" else None
        place = _LABEL.match(observation)
        if edit is None or place is None:
            return None
        meant = replace(edit, label=int(place[1]))  # an edit is forgiven a wrong label
        return meant if any(replace(fix, occurrence=meant.occurrence) == meant for fix in self._fixes) else None


class MixedPolicy:
    """A policy whose turns are, each with the same chance, the expert's (turn-level DAgger, arXiv 2605.12913)."""

    def __init__(self, student: Policy, expert_share: float, renderer: ChatRenderer) -> None:
        self.id = student.id
        self._student = student
        self._share = expert_share
        self._renderer = renderer
        self._sessions: dict[str, tuple[Expert, str, int]] = {}
        """Session -> its expert, the latest action, and the tokens that were read."""

    def begin_session(self, session_id: str, task: Task) -> None:
        """Prepare one episode."""
        self._sessions[session_id] = (Expert.of(task), "", 0)

    async def generate(self, session_id: str, prompt_ids: list[int], sampling: SamplingParams) -> Generation:
        """Return the expert's action or the student's; the seed of the turn decides."""
        expert = self._read(session_id, prompt_ids)
        action = expert.act() if random.Random(sampling.seed).random() < self._share else None
        if action is None:
            generation = await self._student.generate(session_id, prompt_ids, sampling)
        else:
            ids = tuple(self._renderer.action_ids(action))
            generation = Generation(
                token_ids=ids, log_probs=(0.0,) * len(ids), is_stopped=True, policy_version=UNKNOWN_VERSION
            )
        self._note(session_id, prompt_ids, generation)
        return generation

    async def recall(
        self, session_id: str, prompt_ids: list[int], sampling: SamplingParams, generation: Generation
    ) -> None:
        """Follow a recorded action."""
        self._read(session_id, prompt_ids)
        if isinstance(self._student, RecallingPolicy) and generation.policy_version != UNKNOWN_VERSION:
            await self._student.recall(session_id, prompt_ids, sampling, generation)
        self._note(session_id, prompt_ids, generation)

    async def end_session(self, session_id: str) -> None:
        """Forget the session."""
        self._sessions.pop(session_id, None)
        await self._student.end_session(session_id)

    def _read(self, session_id: str, prompt_ids: list[int]) -> Expert:
        expert, action, num_seen = self._sessions[session_id]
        if action:
            new_ids = prompt_ids[num_seen if num_seen < len(prompt_ids) else 0 :]
            expert.observe(action, self._renderer.last_observation(new_ids))
        return expert

    def _note(self, session_id: str, prompt_ids: list[int], generation: Generation) -> None:
        expert = self._sessions[session_id][0]
        action = self._renderer.decode(list(generation.token_ids))
        self._sessions[session_id] = (expert, action, len(prompt_ids) + len(generation.token_ids))

"""Saying again what was said in stored episodes, token by token.

Reads trajectories; makes the `Generation` records that they were made of. Invariant: a replayed action has the token
ids, the log-probabilities and the policy version that are stored, so an episode that replays has the same ledger.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from repairgym.errors import PromptTooLongError
from repairgym.inference.base import Generation, SamplingParams
from repairgym.inference.renderer import ChatRenderer
from repairgym.records import Trajectory


class ReplayPolicy:
    """A :class:`~repairgym.inference.base.Policy` over stored trajectories, found by the ids of their sessions."""

    id = "replay"

    def __init__(self, trajectories: Iterable[Trajectory], renderer: ChatRenderer) -> None:
        """``renderer`` is of the tokenizer that the trajectories were made with."""
        self._trajectories = {trajectory.id: trajectory for trajectory in trajectories}
        self._stop_token_ids = renderer.stop_token_ids
        self._num_said: dict[str, int] = {}

    async def generate(self, session_id: str, prompt_ids: list[int], sampling: SamplingParams) -> Generation:
        """The next stored action, whatever the prompt is.

        Raises:
            PromptTooLongError: there is none; it ends the episode where the stored one was ended by a limit.
        """
        trajectory = self._trajectories[session_id.rpartition("~")[0]]
        number = self._num_said.get(session_id, 0)
        if number == len(trajectory.turns):
            raise PromptTooLongError(f"{trajectory.id} has {number} actions; the stored episode ended here")
        self._num_said[session_id] = number + 1
        start, end = trajectory.turns[number].action_span
        ledger = trajectory.ledger
        ids = ledger.token_id[start:end]
        return Generation(
            token_ids=tuple(ids.tolist()),
            log_probs=tuple(ledger.log_prob[start:end].tolist()),
            is_stopped=bool(np.isin(ids[-1:], self._stop_token_ids).any()),
            policy_version=int(ledger.policy_version[start]) if end > start else 0,
            token_versions=tuple(ledger.policy_version[start:end].tolist()),
        )

    async def end_session(self, session_id: str) -> None:
        """Forget how far the session was."""
        self._num_said.pop(session_id, None)

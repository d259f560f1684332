"""What a run's episodes needed, for `repairgym plan`; and the simulation against what a run really took.

Reads rows of a store; makes an `EpisodeConfig`, and pairs of reckoned and measured seconds.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from repairgym.config.sizing import EpisodeConfig
from repairgym.errors import InputError
from repairgym.sizing.simulation import makespan

SIMULATED_SHARES = (0.65, 0.84)
"""Least and most of what `check_iteration` reckoned of measured rollouts: eight iterations of a demo (docs/LOG.md,
`repairgym plan --check`). The rest is what episodes do not note: the start of sandboxes, the wait for another worker."""


@dataclass(frozen=True)
class Measured:
    """One stored episode."""

    num_turns: int
    num_tokens: int
    num_action_tokens: int
    generate_s: float
    tool_s: float
    grade_s: float

    @property
    def total_s(self) -> float:
        """From its sandbox to its verdict."""
        return self.generate_s + self.tool_s + self.grade_s


@dataclass(frozen=True)
class Check:
    """Seconds of the rollouts of one iteration."""

    step: int
    simulated_s: float
    measured_s: float


def measured_episode(found: Sequence[Measured]) -> EpisodeConfig:
    """Means of stored episodes. Seconds of tools and grading are wall-clock: on a full machine they include waiting.

    Raises:
        InputError: there is no episode with a turn.
    """
    acted = [one for one in found if one.num_turns]
    if not acted:
        raise InputError("no stored episode has a turn; name a run with rollouts")
    turns = statistics.fmean(one.num_turns for one in acted)
    actions = statistics.fmean(one.num_action_tokens for one in acted)
    others = statistics.fmean(one.num_tokens - one.num_action_tokens for one in acted)
    # The opening is not stored apart: the shortest context is taken for it.
    opening = min(one.num_tokens - one.num_action_tokens for one in acted)
    logs = [math.log(one.num_turns) for one in acted]
    return EpisodeConfig(
        num_turns=turns,
        opening_tokens=max(1, opening),
        action_tokens=max(1.0, actions / turns),
        observation_tokens=max(1.0, (others - opening) / turns),
        tool_s=statistics.fmean(one.tool_s for one in acted) / turns,
        grade_s=statistics.fmean(one.grade_s for one in acted),
        spread=statistics.pstdev(logs),
    )


def check_iteration(step: int, batches: Sequence[Sequence[Measured]], num_in_flight: int, measured_s: float) -> Check:
    """Stored lengths of episodes, simulated batch by batch (a refill waits for the batch before it)."""
    simulated_s = sum(makespan([one.total_s for one in batch], num_in_flight) for batch in batches)
    return Check(step, simulated_s, measured_s)

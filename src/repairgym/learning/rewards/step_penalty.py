"""Paper B's soft overlong punishment in steps (arXiv 2508.03501, section 3.2, equations 3 and 4).

R_final = R + R_length, where |tau| is the number of actions: R_length = 0 if |tau| < L_thr, else
(L_thr - |tau|) / (T_max - L_thr), which is -1 at |tau| = T_max.

As written it also ranks failures: in a group without a success the shortest failure becomes the best sample, and with
dynamic sampling on the final reward such groups are hardly ever dropped. The paper does not discuss it; the modes of
`config.rewards.StepPenaltyConfig` are the ways out.
"""

from __future__ import annotations

from collections.abc import Sequence

from repairgym.config.rewards import StepPenaltyConfig, check_turns
from repairgym.learning.rewards.base import Rewards, raw_rewards, shape_each
from repairgym.records import Task, Trajectory


class StepPenalty:
    """The raw reward less a share for each turn from the threshold on."""

    def __init__(self, config: StepPenaltyConfig, max_turns: int) -> None:
        """Use ``config`` for episodes of at most ``max_turns`` turns (T_max).

        Raises:
            ValueError: the threshold is not below ``max_turns``.
        """
        check_turns(config, max_turns)
        self._config = config
        self._max_turns = max_turns

    def shape(self, task: Task, group: Sequence[Trajectory]) -> Rewards:
        """Between -1 and 1 (0 and 1 where only successes are penalised).

        With ``raw_filtered`` a group of equal raw rewards keeps them: equal rewards are what drops a group.
        """
        raw = raw_rewards(group)
        if self._config.mode == "raw_filtered" and len({reward for reward in raw if reward is not None}) < 2:
            return raw
        if self._config.mode == "successes_only":
            return shape_each(group, 0.0, self._of_success)
        return shape_each(group, -1.0, lambda member: member.verdict.reward + self.penalty(len(member.turns)))

    def _of_success(self, member: Trajectory) -> float:
        return 1.0 + self.penalty(len(member.turns)) if member.verdict.reward > 0 else 0.0

    def penalty(self, num_turns: int) -> float:
        """R_length of an episode of ``num_turns`` actions, between 0 and -1."""
        threshold = self._config.threshold_turns
        if num_turns < threshold:
            return 0.0
        return max(-1.0, (threshold - num_turns) / (self._max_turns - threshold))

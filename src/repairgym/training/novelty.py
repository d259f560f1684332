"""A bonus for rare results of tests, counted over the episodes of a task: exploration without networks.

Reads the turns of stored episodes; adds to the rewards of a group. Guarantees: a bonus follows from stored episodes of
earlier iterations and the group itself, whatever their order, so a resumed run gives the same; invalid episodes and
exploits have none and are not counted; nothing of it is stored, and evaluation never sees it.
"""

import hashlib
import math
from collections import Counter
from collections.abc import Sequence

from repairgym.agent.recording import normalize
from repairgym.agent.tools.roles import is_change, is_test_run
from repairgym.config.exploration import NoveltyConfig
from repairgym.learning.rewards import Rewards, is_exploit
from repairgym.records import Trajectory
from repairgym.rollout.store import RunStore


def distinguished_states(episode: Trajectory) -> frozenset[str]:
    """Return digests of the changed file states that the episode tested: of what each test run said.

    States whose test runs say the same are one: an edit that no test notices is nothing new, whatever it wrote.
    """
    digests, is_changed = set(), False
    for turn in episode.turns:
        if is_test_run(turn):
            if is_changed:
                digests.add(hashlib.sha256(normalize(turn.observation).encode("utf-8", "surrogateescape")).hexdigest())
        elif is_change(turn):
            is_changed = True
    return frozenset(digests)


class Novelty:
    """The counts of one phase, iteration after iteration."""

    def __init__(self, config: NoveltyConfig, store: RunStore, phase: str) -> None:
        """Count nothing before it is asked for."""
        self._config = config
        self._store = store
        self._phase = phase
        self._counts: Counter[tuple[str, str]] = Counter()
        """(task, digest) -> episodes before iteration ``_num_counted`` that came there."""
        self._num_counted = 0

    def is_over(self, step: int) -> bool:
        """Return True when iteration ``step`` has verdicts only."""
        return step >= self._config.num_iterations

    def add_to(self, rewards: Rewards, group: Sequence[Trajectory], step: int) -> Rewards:
        """Return ``rewards`` with the bonus of iteration ``step``: ``weight`` / sqrt(N) of each member's rarest state.

        N counts the episodes of the task that came to the state, this group's included. The rarest state alone counts:
        a sum would pay for long episodes.
        """
        if self.is_over(step):
            return rewards
        self._count_before(step)
        visited = [distinguished_states(member) if _is_counted(member) else frozenset[str]() for member in group]
        here = Counter(state for states in visited for state in states)
        shaped = list[float | None]()
        for member, reward, states in zip(group, rewards, visited, strict=True):
            if reward is not None and _is_counted(member):
                rarest = min((self._counts[member.task_id, state] + here[state] for state in states), default=0)
                bonus = self._config.weight / math.sqrt(rarest) if rarest else 0.0
                shaped.append(bonus + (0.0 if self._config.is_reward_free else reward))
            else:
                shaped.append(None if reward is None else min(0.0, reward))
        return tuple(shaped)

    def metrics(self, episodes: Sequence[Trajectory], step: int) -> dict[str, float]:
        """Return the number of states of iteration ``step`` that no earlier episode of their task came to."""
        if self.is_over(step):
            return {}
        self._count_before(step)
        states = {(it.task_id, state) for it in episodes if _is_counted(it) for state in distinguished_states(it)}
        return {"novelty/num_new_states": float(sum(not self._counts[state] for state in states))}

    def _count_before(self, step: int) -> None:
        for number in range(self._num_counted, step):
            for episode in self._store.trajectories(phase=self._phase, step=number):
                if _is_counted(episode):
                    self._counts.update((episode.task_id, state) for state in distinguished_states(episode))
        self._num_counted = max(self._num_counted, step)


def _is_counted(episode: Trajectory) -> bool:
    return episode.verdict.is_valid and not is_exploit(episode.verdict)

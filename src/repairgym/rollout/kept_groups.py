"""Kept states of the episodes of one worker, by group, so that branches begin with forks instead of replays.

Reads jobs that say what is kept (`EpisodeJob.is_kept`) and what they begin with. Guarantees: snapshots of a group are
closed when it is forgotten, at the latest with the worker; none that a running episode may need; where states are
missing (another worker, an earlier process, no snapshots, no room) the episode replays its prefix.
"""

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from repairgym.agent.kept_states import KeptState, StateKeeper
from repairgym.rollout.jobs import EpisodeJob


@dataclass
class _Group:
    states: dict[str, list[KeptState]] = field(default_factory=dict)
    """Trajectory id -> state behind each turn, as far as they could be kept."""
    num_running: int = 0
    """Episodes that add states or begin with some."""
    is_forgotten: bool = False

    async def begin(self, trajectory_id: str) -> list[KeptState]:
        """Return the list for the states of an episode; those of an attempt that failed are released."""
        failed = self.states.pop(trajectory_id, [])
        # A branch leaves the states that it began with, which are another episode's, too.
        shared = {id(state.workspace.snapshot) for states in self.states.values() for state in states}
        for state in failed:
            if state.workspace.snapshot is not None and id(state.workspace.snapshot) not in shared:
                await state.workspace.snapshot.close()
        kept = self.states[trajectory_id] = []
        return kept

    async def close(self) -> None:
        """Release all snapshots; those of several episodes are closed once each."""
        for states in self.states.values():
            for state in states:
                if state.workspace.snapshot is not None:
                    await state.workspace.snapshot.close()
        self.states.clear()


class KeptGroups:
    """The groups whose states are kept, at most ``max_groups`` at rest; the oldest go first."""

    def __init__(self, max_groups: int) -> None:
        self._max_groups = max_groups
        self._groups: dict[str, _Group] = {}

    @asynccontextmanager
    async def keeper(self, job: EpisodeJob) -> AsyncIterator[StateKeeper]:
        """Open the states that ``job`` begins with and leaves; one of its episodes runs within the context."""
        if job.prefix is None and not job.is_kept:
            yield StateKeeper()
            return
        group = self._groups.setdefault(job.group_id, _Group())
        group.num_running += 1
        try:
            kept = await group.begin(job.trajectory_id) if job.is_kept else None
            yield StateKeeper(self.begun_with(job), kept)
        finally:
            group.num_running -= 1
            if group.is_forgotten and not group.num_running:
                await group.close()
            await self._make_room()

    def begun_with(self, job: EpisodeJob) -> list[KeptState]:
        """Return the states behind the turns of a branch's prefix; empty where it has to be replayed."""
        if job.prefix is None or job.group_id not in self._groups:
            return []
        states = self._groups[job.group_id].states.get(job.prefix.trajectory.id, [])
        return states[: job.prefix.num_turns] if len(states) >= job.prefix.num_turns else []

    async def forget(self, group_ids: Iterable[str]) -> None:
        """Release the states of groups, once no episode of theirs runs."""
        for group_id in group_ids:
            group = self._groups.pop(group_id, None)
            if group is not None:
                group.is_forgotten = True
                if not group.num_running:
                    await group.close()

    async def close(self) -> None:
        """Release everything."""
        await self.forget(list(self._groups))

    async def _make_room(self) -> None:
        resting = [group_id for group_id, group in self._groups.items() if not group.num_running]
        await self.forget(resting[: max(0, len(resting) - self._max_groups)])

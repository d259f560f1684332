"""Invalid episodes one after the other: when there are too many, the machine is at fault and the run stops.

Reads trajectories as they end; hands them on. Invariant: the episodes of a streak that stops the run are never handed
on, so nothing stores them and the resumed run tries them again.
"""

from __future__ import annotations

from repairgym.errors import SandboxError
from repairgym.records import Trajectory


class FailureStreak:
    """Holds invalid episodes back until a valid one shows that the machine works."""

    def __init__(self, max_in_row: int) -> None:
        self._max_in_row = max_in_row
        self._num_in_row = 0
        self._held: list[Trajectory] = []

    def admit(self, trajectory: Trajectory) -> list[Trajectory]:
        """The episodes that can be stored now.

        Raises:
            SandboxError: too many are invalid, one after the other.
        """
        self._held.append(trajectory)
        if trajectory.verdict.is_valid:
            self._num_in_row = 0
            return self.release()
        self._num_in_row += 1
        if self._num_in_row >= self._max_in_row:
            raise SandboxError(
                f"{self._num_in_row} episodes in a row are invalid; the last: {trajectory.verdict.reason}. "
                "Run `repairgym doctor`, fix the cause, then resume: they are run again"
            )
        return []

    def release(self) -> list[Trajectory]:
        """What is held back; the count goes on, so that a run of small steps stops, too."""
        held, self._held = self._held, []
        return held

    def forget(self) -> None:
        """Drop what a stopped call left."""
        self._held = []

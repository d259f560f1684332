"""A recipe in several processes (torchrun): one leads it, the others follow.

The leader has the run folder, its store and the workers that sample, and runs the recipe from top to bottom as one
process would; whenever there is something to learn it assigns the work to the others, which do their part of it.
Invariants: only the leader reads and writes the run's store; followers hold nothing that has to be saved, so Ctrl-C
ends them at once; work is assigned before the leader begins its own part.
"""

import signal
from collections.abc import Callable
from typing import Protocol

from repairgym.config.learning import AlgorithmConfig, SftConfig, StepDpoConfig
from repairgym.learning.distributed.fsdp import check_processes, current_world, process_group
from repairgym.learning.learner import release_memory


class Work(Protocol):
    """Something to learn that all processes learn together; it is pickled."""

    def follow(self) -> None:
        """Do the part of a process that does not lead."""
        ...


def lead_or_follow(recipe: Callable[[], None], *trained: SftConfig | AlgorithmConfig | StepDpoConfig) -> None:
    """Run ``recipe`` in the leader, and its assigned work in the others; a single process leads.

    Raises:
        ConfigError: the processes are on several nodes, or cannot honor ``trained``.
        RepairGymError: another process has ended before the recipe has.
    """
    with process_group() as world:
        for config in trained:
            check_processes(config.optimizer, config.compute)
        if world.is_leader:
            recipe()
            # Only after success: a leader that failed may have left the others in the middle of an exchange.
            world.broadcast(None)
        else:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            no_work: Work | None = None
            while (work := world.broadcast(no_work)) is not None:
                work.follow()
                # The leader samples now, and its workers are on this machine.
                release_memory()


def assign(work: Work) -> None:
    """Let the followers begin with ``work``; the leader then does its own part."""
    current_world().broadcast(work)

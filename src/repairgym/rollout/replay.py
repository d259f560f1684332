"""Stored episodes played again in new sandboxes, and what came out differently.

Reads trajectories; makes `Replay` records. Invariants: actions are replayed as the stored token ids; observations are
compared byte for byte after `normalize`, which replaces what no two runs share (times, temporary names, addresses) and
nothing else; a replay that could not be made is a difference, not left out.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass

from repairgym.agent.allowance import Allowance
from repairgym.agent.recording import normalize
from repairgym.agent.scripted import ReplayPolicy
from repairgym.inference.renderer import ChatRenderer
from repairgym.records import StopReason, Task, Trajectory, VerdictKind
from repairgym.rollout.jobs import EpisodeJob
from repairgym.rollout.runner import Runner


@dataclass(frozen=True)
class Replay:
    """One episode, stored and replayed."""

    trajectory_id: str
    num_turns: int
    """Of the stored episode."""
    num_equal: int
    """Observations that are equal byte for byte as they are."""
    num_normalized: int
    """Further observations that are equal once normalized."""
    difference: str = ""
    """The first difference; empty: there is none."""


def compare(stored: Trajectory, replayed: Trajectory) -> Replay:
    """Compare an episode with its replay: observations, then the patch, then the verdict's kind."""
    pairs = list(zip(stored.turns, replayed.turns, strict=False))
    equal = [old.observation == new.observation for old, new in pairs]
    normal = [
        is_equal or normalize(a.observation) == normalize(b.observation)
        for is_equal, (a, b) in zip(equal, pairs, strict=True)
    ]
    return Replay(
        trajectory_id=stored.id,
        num_turns=len(stored.turns),
        num_equal=sum(equal),
        num_normalized=sum(normal) - sum(equal),
        difference=_difference(stored, replayed, normal),
    )


def _difference(stored: Trajectory, replayed: Trajectory, is_equal: Sequence[bool]) -> str:
    if False in is_equal:
        number = is_equal.index(False)
        old, new = normalize(stored.turns[number].observation), normalize(replayed.turns[number].observation)
        at = next((at for at, (a, b) in enumerate(zip(old, new, strict=False)) if a != b), min(len(old), len(new)))
        return f"turn {number + 1}, character {at}: {old[at : at + 60]!r} became {new[at : at + 60]!r}"
    if len(stored.turns) != len(replayed.turns):
        reason = f" ({replayed.verdict.reason})" if replayed.verdict.kind is VerdictKind.INVALID else ""
        return f"{len(stored.turns)} turns became {len(replayed.turns)}{reason}"
    if stored.final_patch != replayed.final_patch:
        return "the patch differs"
    if stored.verdict.kind is not replayed.verdict.kind:
        return f"the verdict {stored.verdict.kind} became {replayed.verdict.kind} ({replayed.verdict.reason})"
    return ""


async def replay(
    trajectories: Sequence[Trajectory], tasks: Mapping[str, Task], runner: Runner, renderer: ChatRenderer
) -> AsyncIterator[Replay]:
    """Play ``trajectories`` again, in the order in which they end."""
    stored = {trajectory.id: trajectory for trajectory in trajectories}
    jobs = [EpisodeJob(t.id, t.group_id, t.task_id, t.seed, allowance=_allowance(t)) for t in trajectories]
    async for replayed in runner.run(jobs, tasks, ReplayPolicy(trajectories, renderer)):
        yield compare(stored[replayed.id], replayed)


def _allowance(stored: Trajectory) -> Allowance | None:
    """Return what ends a replay where a search had ended the episode; the turns themselves decide the other ends."""
    return Allowance(max_turns=len(stored.turns)) if stored.stop_reason is StopReason.SEARCH_LIMIT else None

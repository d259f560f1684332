"""Tables of routers: which of several policies does best in which situation (after LLM-Ens, arXiv 2505.15306).

Reads graded episodes of several policies on the same tasks; makes the parts of a `Router`. Guarantees: only tasks count
that all policies tried; a member takes a situation from the best single one only by a value above its, drawn to its
share over all episodes by `PRIOR_EPISODES`; invalid episodes count for nothing, exploited ones as failed.
"""

from collections.abc import Iterable, Mapping, Sequence

from repairgym.agent.routing import Cell, Member, Router, situation
from repairgym.errors import InputError
from repairgym.records import Trajectory

PRIOR_EPISODES = 8.0
"""Weight of a member's share over all episodes, in episodes; our choice."""
MIN_EPISODES = 20
"""Fewest episodes of each member on the tasks that all have tried."""


def fit_router(members: Sequence[Member], episodes: Mapping[str, Iterable[Trajectory]]) -> Router:
    """Return the router of ``members`` from their ``episodes``, by name.

    The value of a member in a situation is the share of its episodes that passed among those that came into the
    situation, (passed + `PRIOR_EPISODES` * its share) / (episodes + `PRIOR_EPISODES`).

    Raises:
        InputError: the members have too few episodes on common tasks.
    """
    valid = {it.name: [made for made in episodes[it.name] if made.verdict.is_valid] for it in members}
    common = set.intersection(*({made.task_id for made in made_by} for made_by in valid.values()))
    known = {name: [made for made in made_by if made.task_id in common] for name, made_by in valid.items()}
    for name, made_by in known.items():
        if len(made_by) < MIN_EPISODES:
            raise InputError(
                f"{name} has {len(made_by)} valid episodes on the {len(common)} tasks that all members tried, expected "
                f"at least {MIN_EPISODES}; roll out all members on the same tasks"
            )
    shares = {name: sum(map(_is_passed, made_by)) / len(made_by) for name, made_by in known.items()}
    table: dict[str, dict[str, Cell]] = {}
    for name, made_by in known.items():
        for at, visits in _visits(made_by).items():
            num_passed = sum(map(_is_passed, visits))
            value = (num_passed + PRIOR_EPISODES * shares[name]) / (len(visits) + PRIOR_EPISODES)
            table.setdefault(at, {})[name] = Cell(num_episodes=len(visits), num_passed=num_passed, value=value)
    best = max(shares, key=lambda name: shares[name])
    choices = {at: _choice(cells, best) for at, cells in sorted(table.items())}
    return Router(members=tuple(members), best=best, table=dict(sorted(table.items())), choices=choices)


def _choice(cells: Mapping[str, Cell], best: str) -> str:
    """Return the member of the highest value; level ones, and a situation that the best has not met, are the best's."""
    if best not in cells:
        return best
    return max(cells, key=lambda name: (cells[name].value, name == best))


def _visits(episodes: Iterable[Trajectory]) -> dict[str, list[Trajectory]]:
    """Return situation -> the episodes in which an action was taken there, each once."""
    visits: dict[str, list[Trajectory]] = {}
    for made in episodes:
        for at in dict.fromkeys(situation(made.turns[:number]) for number in range(len(made.turns))):
            visits.setdefault(at, []).append(made)
    return visits


def _is_passed(made: Trajectory) -> bool:
    return made.verdict.reward > 0

"""Prefix sampling: the turn behind which a group's next members begin, so that about half of them pass.

Reads the finished members of a group and earlier episodes of its task; makes one prefix, or none. Guarantees: a group
whose pass rate is near the target is left alone; most failures are helped by turns of a success, most successes are
handicapped by turns of a failure; the turns of the prefix are context in the branches, never learned again.
"""

from collections.abc import Sequence

import numpy as np

from repairgym.config.exploration import PrefixSamplingConfig
from repairgym.records import Trajectory
from repairgym.rollout.jobs import Prefix, can_branch, num_shared_turns


def steering_prefix(
    members: Sequence[Trajectory],
    earlier: Sequence[Trajectory],
    config: PrefixSamplingConfig,
    generator: np.random.Generator,
) -> Prefix | None:
    """Return the place whose estimated value is nearest to the target; None: the next members are chains.

    Donors are members with the rarer reward, or else the ``earlier`` episodes that have it. With p the pass rate of
    ``members`` and R a donor's reward, the first guess of the value behind t of its T turns is p + (R - p) t / T; it
    counts like ``prior_weight`` visits next to the known episodes that visit the state (`Turn.state`). So the place
    moves with what earlier branches came to.
    """
    chains = [member for member in members if member.verdict.is_valid and member.parent is None]
    if not chains:
        return None
    rate = float(np.mean([_is_passed(member) for member in chains]))
    if abs(rate - config.target) <= config.tolerance:
        return None
    is_wanted = rate < config.target
    earlier = [episode for episode in earlier if episode.verdict.is_valid]
    known = [*chains, *earlier]
    for donors in (chains, earlier):
        usable = [donor for donor in donors if _is_passed(donor) == is_wanted and can_branch(donor)]
        places = [
            (abs(value - config.target), Prefix(donor, at))
            for donor in usable
            for at, value in enumerate(_values(donor, known, rate, config.prior_weight))
            if at > num_shared_turns(donor)
        ]
        if places:
            order = generator.permutation(len(places))
            nearest: tuple[float, Prefix] = min((places[int(number)] for number in order), key=lambda place: place[0])
            return nearest[1]
    return None


def _is_passed(episode: Trajectory) -> bool:
    return episode.verdict.reward > 0


def _values(donor: Trajectory, known: Sequence[Trajectory], rate: float, prior_weight: float) -> np.ndarray:
    """Estimate the pass rate from the state in which each turn of ``donor`` starts ([turns])."""
    num_turns, reward = len(donor.turns), float(_is_passed(donor))
    guess = rate + (reward - rate) * np.arange(num_turns) / num_turns
    # The donor was chosen for its reward, so it says nothing about its own states.
    others = [
        (_is_passed(episode), {turn.state for turn in episode.turns[num_shared_turns(episode) :]})
        for episode in known
        if episode.id != donor.id
    ]
    visits = [[is_passed for is_passed, states in others if turn.state in states] for turn in donor.turns]
    sums, counts = np.array([sum(row) for row in visits]), np.array([len(row) for row in visits])
    value = (sums + prior_weight * guess) / (counts + prior_weight)
    # On the way to its reward a donor only comes nearer: what is counted late bounds what is guessed before.
    bound = np.minimum if reward > rate else np.maximum
    bounded: np.ndarray = bound.accumulate(value[::-1])[::-1]
    return bounded

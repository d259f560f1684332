"""Choice of varied scripts: sets of inputs that tell gold from all its wrong variants that any input tells from it.

Reads varied scripts and what each of them kills; makes sets. Guarantees: as far as its bounds allow, each set kills
every variant that any script kills; a script that kills nothing is in no set; the sets follow from the input.
"""

from collections import Counter
from collections.abc import Mapping, Sequence

from repairgym.tasks.replay.oracle import Expected, values_of
from repairgym.tasks.replay.scripts import Replay, Script

NUM_SETS, MAX_SET_SCRIPTS, MAX_SET_STEPS, MAX_SET_CPU_S = 6, 10, 60, 0.05
"""Bounds of the sets. A grading draws some of them: more make the draw harder to foresee, longer ones make
it slower. A step may take a millisecond, or thirty."""


def killed(script_id: str, expected: Sequence[Expected], replays: Sequence[Replay]) -> frozenset[int]:
    """Return the numbers of the ``replays`` that contradict gold on a judged step of the script.

    A replay that has no answer to the script may have ended in an earlier one: it says nothing.
    """
    numbers = set()
    for number, replay in enumerate(replays):
        values = values_of(replay.observations.get(script_id, ()))
        if values and any(not step.accepts(values.get(step.place)) for step in expected if step.gold.kind != "state"):
            numbers.add(number)
    return frozenset(numbers)


def covering_sets(
    scripts: Sequence[Script], kills: Mapping[str, frozenset[int]], cpu_s: Mapping[str, float]
) -> list[list[Script]]:
    """Return sets of those ``scripts`` that kill something; a script may be in several; gold takes ``cpu_s`` for it."""
    useful = [script for script in scripts if kills[script.id]]
    num_uses: Counter[str] = Counter()
    sets: list[list[Script]] = []
    while len(sets) < NUM_SETS and len(num_uses) < len(useful):
        sets.append(_covering_set(useful, kills, cpu_s, num_uses))
        num_uses.update(script.id for script in sets[-1])
    return sets


def with_near(sets: Sequence[Sequence[Script]], near: Sequence[Script]) -> list[list[Script]]:
    """Return ``sets`` with the scripts ``near`` dealt to them, so that a draw has some; without any, new sets."""
    num_sets = len(sets) or -(-len(near) // MAX_SET_SCRIPTS)
    known = sets or [()] * num_sets
    return [[*near[number::num_sets], *known[number]] for number in range(num_sets)]


def _covering_set(
    scripts: Sequence[Script],
    kills: Mapping[str, frozenset[int]],
    cpu_s: Mapping[str, float],
    num_uses: Mapping[str, int],
) -> list[Script]:
    """Return a set: first what kills most of the variants that are left, then what other sets use least."""
    chosen: list[Script] = []
    others, num_steps, used_s = list(scripts), 0, 0.0
    left = frozenset[int]().union(*kills.values())

    def rank(script: Script) -> tuple[float, int, int]:
        uses = num_uses[script.id]
        return len(kills[script.id] & left) / (1 + uses), -uses, len(kills[script.id])

    while len(chosen) < MAX_SET_SCRIPTS and others:
        best = max(others, key=rank)
        others.remove(best)
        best_s = cpu_s.get(best.id, 0.0)
        if not chosen or (num_steps + len(best.steps) <= MAX_SET_STEPS and used_s + best_s <= MAX_SET_CPU_S):
            chosen.append(best)
            num_steps += len(best.steps)
            used_s += best_s
            left -= kills[best.id]
    return chosen

"""The plan of a generation of tasks: how often each kind of bug is tried, by what its tasks taught before.

Reads solve rates of tasks. Makes weights of *cells*: package, operator family and number of edits. The log of a weight
is a sum of effects of the three parts and of their combination, so that a cell that was never tried follows from its
parts. Guarantees: equal evidence gives equal weights; every weight lies between the floor and its reciprocal.

After EigenData (arXiv 2601.22607), whose plans a language model writes and rewrites by reflection; here the plan is a
distribution, and reflection a multiplicative update by learnability.
"""

import math
import random
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple, Self

from repairgym.config.tasks import PlanConfig
from repairgym.records import Record, Task
from repairgym.tasks.solve_rates import SolveRate

PLAN_FILE = "plan.json"


class Cell(NamedTuple):
    """A kind of bug in one package."""

    package: str
    family: str
    num_edits: int

    def parts(self) -> tuple[str, str, str]:
        """Return the names of the effects of its three parts."""
        return f"package {self.package}", f"family {self.family}", f"num_edits {self.num_edits}"

    @property
    def name(self) -> str:
        """Name of the effect of the combination."""
        return f"{self.package} {self.family} {self.num_edits}"


def learnability(rate: SolveRate) -> float | None:
    """Return 4 p (1 - p) of a task, unbiased for any number of samples; None for fewer than two, which tell nothing.

    With s of n samples passed it is 4 s (n - s) / (n (n - 1)): plain 4 p (1 - p) would be too low by 1 / n, and so
    prefer tasks with many samples. It can pass 1 in small samples.
    """
    passed, num = rate.num_passed, rate.num_valid
    return 4.0 * passed * (num - passed) / (num * (num - 1)) if num > 1 else None


def injector_reward(solve_rate: float | None, alpha: float = 0.8) -> float:
    """Return the reward of a policy for its bug: -1 when invalid (None), -alpha where always or never solved.

    Else 1 - (1 + alpha) s, largest for a small rate s above 0. Self-play of injector and solver after SSR (arXiv
    2512.18552); form and alpha as published, no code of it is public.
    """
    if solve_rate is None:
        return -1.0
    return 1.0 - (1.0 + alpha) * solve_rate if 0.0 < solve_rate < 1.0 else -alpha


def cells_of(task: Task) -> tuple[Cell, ...]:
    """Return the cells of a task with a synthetic bug: one for each family of its edits."""
    num_edits = int(task.labels.get("difficulty", "1"))
    families = sorted(set(task.labels.get("operator", "").split("+")) - {""})
    return tuple(Cell(task.provenance.package, family, num_edits) for family in families)


class Plan(Record):
    """Effects on the logs of the weights of cells, after some generations."""

    generation: int = 0
    effects: dict[str, float] = {}
    """Name of a part, or of a cell -> its effect; 0 where it is missing."""

    def weight(self, cell: Cell, floor: float) -> float:
        """Return the weight of ``cell``; 1 without evidence."""
        total = sum(self.effects.get(name, 0.0) for name in (*cell.parts(), cell.name))
        return min(max(math.exp(total), floor), 1.0 / floor)

    def reflected(self, evidence: Iterable[tuple[Task, float]], config: PlanConfig) -> Self:
        """Return the plan of the next generation, given the learnability of tasks.

        A mean over n tasks counts n / (n + shrinkage) of its distance to the mean of all tasks; a cell's own effect is
        what its parts do not explain. A task of several families counts in each of them with an equal share.
        """
        sums: dict[str, float] = defaultdict(float)
        counts: dict[str, float] = defaultdict(float)
        seen: set[Cell] = set()
        for task, value in evidence:
            cells = cells_of(task)
            seen.update(cells)
            for cell in cells:
                for name in ("", *cell.parts(), cell.name):
                    sums[name] += value / len(cells)
                    counts[name] += 1.0 / len(cells)
        if not counts:
            return self.model_copy(update={"generation": self.generation + 1})
        grand = sums[""] / counts[""]

        def shrunk(name: str, expected: float) -> float:
            share = counts[name] / (counts[name] + config.shrinkage)
            return share * (sums[name] / counts[name] - expected)

        moves = {name: shrunk(name, grand) for cell in seen for name in cell.parts()}
        moves |= {cell.name: shrunk(cell.name, grand + sum(moves[name] for name in cell.parts())) for cell in seen}
        names = sorted({*self.effects, *moves})
        effects = {name: self.effects.get(name, 0.0) + config.rate * moves.get(name, 0.0) for name in names}
        return self.model_copy(update={"generation": self.generation + 1, "effects": effects})

    def quotas(self, packages: Collection[str], num_tasks: int, seed: int, floor: float) -> Mapping[str, int]:
        """Draw how many of ``num_tasks`` each package makes, by the effects of the packages."""
        names = sorted(packages)
        effects = (self.effects.get(f"package {name}", 0.0) for name in names)
        weights = [min(max(math.exp(effect), floor), 1.0 / floor) for effect in effects]
        drawn = random.Random(f"{seed}:{self.generation}:packages").choices(names, weights, k=num_tasks)
        return {name: num for name in names if (num := drawn.count(name))}

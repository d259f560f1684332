"""Results of a sweep: importance of each setting, and which arms differ.

Reads values of runs with their settings; makes effects with intervals, win shares, and places of arms. Guarantees: a
failed run has no value and counts nowhere; numbers are compared in parts of the range that they are drawn from; effects
and ranks hold for the mean of a value, win shares for its best draw; the seeds of a draw count as one.
"""

import math
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import combinations
from typing import NamedTuple

import numpy as np
from scipy import stats

from repairgym.config.sweep import ChoiceConfig, Distribution, IntConfig, LogUniformConfig, Setting, SweepConfig
from repairgym.records import Record

_NUM_PERMUTATIONS = 1999
_LEVEL = 0.95


class SweepRun(Record):
    """A child run of a sweep."""

    number: int
    arm: str = ""
    settings: dict[str, Setting] = {}
    seed: int = 0
    status: str = "done"
    """``done``, or ``failed``: the log says why."""
    exit_code: int = 0
    value: float | None = None
    metric: str = ""
    """Name of ``value``; empty where nothing was read."""
    verdicts: dict[str, str] = {}
    """Task id -> first letters of the verdicts of its samples, of a named arm with an evaluation."""
    wall_s: float = 0.0
    """Of the command, over all attempts but those that a kill of the sweep ended; an evaluation does not count."""
    cpu_s: float = 0.0
    """The same in processor time of the child and of the processes that it waited for."""
    num_tokens: int | None = None
    """Tokens of all its episodes, prompts included; None: not known."""
    num_sampled_tokens: int | None = None
    flops: float | None = None
    """None: not known."""


class ValueEffect(Record):
    """Runs with one value of a setting against all others."""

    setting: str
    value: str
    """As it was given, or the part of the range that a number lies in."""
    num_runs: int
    """Draws: the seeds of one draw share its other settings, so that their mean is a single value."""
    mean: float
    effect: float | None
    """Mean of these runs minus the mean of all others."""
    ci_low: float | None
    ci_high: float | None
    """95 % interval of the effect (Welch 1947); None where fewer than two runs of a side, or equal ones, say nothing of
    their spread."""
    mean_best: float
    """Best run, mean over resamples in which each value is drawn equally often (arXiv 2507.04103, Algorithm 1)."""
    win_share: float
    """Share of these resamples in which this value has the best run."""


class Importance(Record):
    """Share of the difference between runs that a setting explains."""

    setting: str
    explained: float
    """Share of the variance between runs that lies between values of the setting, without chance (epsilon squared)."""
    p: float
    """Of a permutation test over runs, adjusted for the number of settings (Holm 1979)."""
    values: tuple[ValueEffect, ...]

    @property
    def is_clear(self) -> bool:
        """True when chance alone would seldom explain it."""
        return self.p < 1.0 - _LEVEL


class ArmPlace(Record):
    """An arm among others: the mean of its seeds, and its rank."""

    name: str
    num_runs: int
    mean: float
    ci_low: float
    ci_high: float
    """95 % interval of this mean alone (Student, with the spread of all arms together; a seed that all share is one
    draw)."""
    rank_low: int
    rank_high: int
    """All ranks together hold in 95 % of cases."""
    indistinguishable: tuple[str, ...]


def importance_of(runs: Sequence[SweepRun], config: SweepConfig) -> list[Importance]:
    """Return the settings of a random search, the most important first; none with fewer than three valued draws."""
    draws = _by_draw(runs)
    if len(draws) < 3:
        return []
    values = np.array([value for _, value in draws]) * (1.0 if config.is_higher_better else -1.0)
    results = []
    for place, (name, distribution) in enumerate(config.settings.items()):
        labels = [part_of(distribution, settings[name], config.num_bins) for settings, _ in draws]
        results.append(_importance(name, labels, values, config, place))
    return sorted(_adjusted(results), key=lambda row: (-row.explained, row.setting))


def _by_draw(runs: Sequence[SweepRun]) -> list[tuple[dict[str, Setting], float]]:
    """Return settings and mean value of each draw: its runs have equal settings and other seeds."""
    values: dict[tuple[object, ...], list[float]] = {}
    settings: dict[tuple[object, ...], dict[str, Setting]] = {}
    seen = Counter[tuple[object, ...]]()
    for run in runs:
        if run.value is not None:
            point = tuple(sorted(run.settings.items()))
            # Settings that come again with the same seed were drawn twice.
            draw = (*point, seen[*point, run.seed])
            seen[*point, run.seed] += 1
            values.setdefault(draw, []).append(run.value)
            settings[draw] = run.settings
    return [(settings[draw], statistics.fmean(of_draw)) for draw, of_draw in values.items()]


def part_of(distribution: Distribution, value: Setting, num_bins: int) -> str:
    """Return the name of the value, or the part of the range that a number lies in."""
    if isinstance(distribution, ChoiceConfig):
        return str(value)
    edges = edges_of(distribution, num_bins)
    place = int(np.clip(np.searchsorted(edges, float(value), side="right") - 1, 0, len(edges) - 2))
    low, high = edges[place], edges[place + 1]
    if isinstance(distribution, IntConfig):
        return f"{low:.0f} to {high - 1:.0f}" if high - low > 1 else f"{low:.0f}"
    return f"{low:.4g} to {high:.4g}"


def edges_of(distribution: Distribution, num_bins: int) -> np.ndarray:
    """Return the bounds of parts that are drawn equally often, ``[num_bins + 1]``."""
    assert not isinstance(distribution, ChoiceConfig)
    low, high = float(distribution.low), float(distribution.high)
    if isinstance(distribution, LogUniformConfig):
        return np.geomspace(low, high, num_bins + 1)
    if isinstance(distribution, IntConfig):
        return np.unique(np.round(np.linspace(low, high + 1, num_bins + 1)))
    return np.linspace(low, high, num_bins + 1)


def _importance(name: str, labels: Sequence[str], values: np.ndarray, config: SweepConfig, place: int) -> Importance:
    names, index = np.unique(np.array(labels), return_inverse=True)
    generator = np.random.default_rng([config.seed, place])
    explained = _explained(index, values)
    permuted = [_explained(index, generator.permutation(values)) for _ in range(_NUM_PERMUTATIONS)]
    p = (1 + sum(other >= explained - 1e-12 for other in permuted)) / (1 + _NUM_PERMUTATIONS)
    best = _best_of_resamples(index, values, config.num_resamples, generator)
    winners = best == best.max(axis=1, keepdims=True)
    shares = (winners / winners.sum(axis=1, keepdims=True)).mean(axis=0)
    sign = 1.0 if config.is_higher_better else -1.0
    rows = [
        _effect(name, str(label), sign * values[index == number], sign * values[index != number])
        | {"mean_best": sign * float(best[:, number].mean()), "win_share": float(shares[number])}
        for number, label in enumerate(names)
    ]
    return Importance(
        setting=name, explained=max(0.0, explained), p=p, values=tuple(ValueEffect.model_validate(row) for row in rows)
    )


def _explained(index: np.ndarray, values: np.ndarray) -> float:
    """Return epsilon squared (Kelley 1935): the explained share, corrected for the number of groups."""
    num, num_groups = len(values), int(index.max()) + 1
    total = float(((values - values.mean()) ** 2).sum())
    if total == 0.0 or num <= num_groups:
        return 0.0
    means = np.bincount(index, weights=values) / np.bincount(index)
    within = float(((values - means[index]) ** 2).sum())
    return 1.0 - (within / (num - num_groups)) / (total / (num - 1))


def _best_of_resamples(
    index: np.ndarray, values: np.ndarray, num_resamples: int, generator: np.random.Generator
) -> np.ndarray:
    """Return the best value of each group, ``[num_resamples, groups]``; minus infinity where none was drawn."""
    weight = 1.0 / np.bincount(index)[index]
    drawn = generator.choice(len(values), (num_resamples, len(values)), p=weight / weight.sum())
    best = np.full((num_resamples, int(index.max()) + 1), -math.inf)
    np.maximum.at(best, (np.arange(num_resamples)[:, None], index[drawn]), values[drawn])
    return np.where(np.isfinite(best), best, values.min())


def _effect(setting: str, value: str, inside: np.ndarray, outside: np.ndarray) -> dict[str, object]:
    row: dict[str, object] = {"setting": setting, "value": value, "num_runs": len(inside)}
    row |= {"mean": float(inside.mean()), "effect": None, "ci_low": None, "ci_high": None}
    if len(outside):
        row["effect"] = float(inside.mean() - outside.mean())
    if interval := welch_interval(inside, outside):
        row |= {"ci_low": interval[0], "ci_high": interval[1]}
    return row


def welch_interval(
    left: Sequence[float] | np.ndarray, right: Sequence[float] | np.ndarray
) -> tuple[float, float] | None:
    """Return the 95 % interval of the difference of two means with unlike variances.

    None where a side shows no spread: it has fewer than two values, or equal ones, which other seeds need not have.
    """
    if min(len(left), len(right)) < 2 or min(_ptp(left), _ptp(right)) == 0.0:
        return None
    interval = stats.ttest_ind(left, right, equal_var=False).confidence_interval(_LEVEL)
    return float(interval.low), float(interval.high)


def _ptp(values: Sequence[float] | np.ndarray) -> float:
    """Return the range of values; 0 where they differ by rounding."""
    width = float(np.ptp(values))
    return width if width > 1e-12 * float(np.abs(values).max()) else 0.0


def _adjusted(rows: Sequence[Importance]) -> list[Importance]:
    """Return the rows with p adjusted by Holm's steps."""
    adjusted, running = list[Importance](), 0.0
    for place, row in enumerate(sorted(rows, key=lambda row: row.p)):
        running = max(running, min(1.0, row.p * (len(rows) - place)))
        adjusted.append(row.model_copy(update={"p": running}))
    return adjusted


class _Spread(NamedTuple):
    """Variance of a run for two questions, each with its degrees of freedom."""

    of_pair: float
    """For the difference of two arms."""
    pair_freedom: float
    of_mean: float
    """For the mean of an arm."""
    mean_freedom: float


def rank_arms(values: Mapping[str, Mapping[int, float]], *, is_higher_better: bool = True) -> list[ArmPlace]:
    """Return the places of arms (name -> seed -> value), best first; without two values of an arm none.

    Arms differ by Tukey's test of all pairs (Tukey 1949, Kramer 1956; the same as `scipy.stats.tukey_hsd`): the spread
    between seeds counts as the same in every arm, because three seeds say little of their own; all pairs share the
    error. Where all arms have the same seeds, these are blocks: what a seed does to every arm is no difference. The
    spread is at least what a single run one step of the values away would give: few seeds without any prove nothing.
    """
    known = {name: of_arm for name, of_arm in values.items() if of_arm}
    if len(known) < 2 or max(map(len, known.values())) < 2:
        return []
    means = {name: statistics.fmean(of_arm.values()) for name, of_arm in known.items()}
    spread = _spread(list(known.values()))
    better: dict[str, set[str]] = {name: set() for name in known}
    for left, right in combinations(known, 2):
        num = (len(known[left]), len(known[right]))
        if _is_distinct(means[left] - means[right], num, spread, len(known)):
            is_left = (means[left] > means[right]) == is_higher_better
            better[right if is_left else left].add(left if is_left else right)
    critical = float(stats.t.ppf((1.0 + _LEVEL) / 2.0, spread.mean_freedom))
    places = []
    for name, of_arm in known.items():
        worse = {other for other, winners in better.items() if name in winners}
        half = critical * math.sqrt(spread.of_mean / len(of_arm))
        places.append(
            ArmPlace(
                name=name,
                num_runs=len(of_arm),
                mean=means[name],
                ci_low=means[name] - half,
                ci_high=means[name] + half,
                rank_low=1 + len(better[name]),
                rank_high=len(known) - len(worse),
                indistinguishable=tuple(sorted(known.keys() - better[name] - worse - {name})),
            )
        )
    return sorted(places, key=lambda place: (-place.mean if is_higher_better else place.mean, place.name))


def _spread(arms: Sequence[Mapping[int, float]]) -> _Spread:
    """Return the spread of runs: of arms by seeds where all have the same (Fisher 1935), else within arms."""
    seeds = list(arms[0])
    step = _step(np.array([value for of_arm in arms for value in of_arm.values()]))
    if any(set(of_arm) != set(seeds) for of_arm in arms):
        freedom = sum(len(of_arm) - 1 for of_arm in arms)
        within = sum(float(np.var(list(of_arm.values()))) * len(of_arm) for of_arm in arms)
        # The arm with the fewest seeds, of which one is a step away from the others.
        least = 1.0 - 1.0 / min(len(of_arm) for of_arm in arms if len(of_arm) > 1)
        within = max(within, step**2 * least) / freedom
        return _Spread(within, freedom, within, freedom)
    grid = np.array([[of_arm[seed] for seed in seeds] for of_arm in arms])
    num_arms, num_seeds = grid.shape
    by_seed = grid.mean(0)
    residual = grid - grid.mean(1, keepdims=True) - by_seed + grid.mean()
    freedom = (num_arms - 1) * (num_seeds - 1)
    least = (1.0 - 1.0 / num_arms) * (1.0 - 1.0 / num_seeds)
    rest = max(float((residual**2).sum()), step**2 * least) / freedom
    parts = float(np.var(by_seed, ddof=1)), rest * (num_arms - 1) / num_arms
    # A sum of two mean squares has the freedom of Satterthwaite (1946).
    divisor = parts[0] ** 2 / (num_seeds - 1) + parts[1] ** 2 / freedom
    return _Spread(rest, freedom, sum(parts), sum(parts) ** 2 / divisor if divisor else freedom)


def _step(values: np.ndarray) -> float:
    """Return the smallest difference between values, beyond rounding: of rates the grid that they lie on."""
    gaps = np.diff(np.unique(values))
    real = gaps[gaps > 1e-9 * np.abs(values).max()]
    return float(real.min()) if len(real) else 0.0


@lru_cache
def _studentized_range(num_arms: int, freedom: float) -> float:
    """Return Tukey's critical value; scipy integrates for a quarter of a second."""
    return float(stats.studentized_range.ppf(_LEVEL, num_arms, freedom))


def _is_distinct(difference: float, num: tuple[int, int], spread: _Spread, num_arms: int) -> bool:
    error = math.sqrt(spread.of_pair * (1.0 / num[0] + 1.0 / num[1]) / 2.0)
    return abs(difference) > _studentized_range(num_arms, spread.pair_freedom) * error

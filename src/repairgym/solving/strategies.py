"""Strategies: which candidates follow from those that there are.

Reads the candidates of one task in their order; makes steps. Guarantees: a plan follows from the candidates, the
strategy's settings and the seed alone, so a resumed search makes those of an unbroken one, and equal seeds give
equal searches; a candidate is judged by its visible tests and regressions, never by anything hidden; an episode that
the search stopped is branched behind its last turn, and never a finished one.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np

from repairgym.config.solving import (
    BeamConfig,
    BestFirstConfig,
    BestOfNConfig,
    LongerConfig,
    LookaheadConfig,
    MctsConfig,
    ReplayConfig,
    StrategyConfig,
)
from repairgym.solving.choice import Candidate
from repairgym.training.tree_search import uct

_DECAY_PERIOD = 40
"""Simulations in RepoSearch-R1's code, over which its weight of exploration falls by ``decay``."""


class Step(NamedTuple):
    """One candidate to make: a chain, or a branch behind turns of another candidate."""

    parent: int | None = None
    """Place of the candidate among all; None: the task's start."""
    num_turns: int = 0
    """Turns of the parent that are kept."""
    max_turns: int | None = None
    """Turns after which it stops; None: at its end."""


class Strategy(Protocol):
    """Plans the next candidates."""

    def plan(self, candidates: Sequence[Candidate], generator: np.random.Generator) -> list[Step]:
        """Return the steps of the next wave; ``generator`` follows from seed, task and number of candidates."""


def make_strategy(config: StrategyConfig) -> Strategy:
    """Return the strategy of ``config``."""
    match config:
        case BestOfNConfig() | LongerConfig():
            return _Chains(config.wave)
        case ReplayConfig():
            return _Replay(config)
        case LookaheadConfig() | BeamConfig():
            return _Beam(config)
        case BestFirstConfig():
            return _BestFirst(config)
        case MctsConfig():
            return _Mcts(config)


def _cut_chain(candidates: Sequence[Candidate]) -> Step | None:
    """Return a step that ends a chain which an earlier, smaller budget has cut."""
    parents = {it.parent for it in candidates}
    for number, it in enumerate(candidates):
        if it.is_open and it.id not in parents:
            return Step(number, it.num_turns)
    return None


@dataclass(frozen=True)
class _Chains:
    wave: int

    def plan(self, candidates: Sequence[Candidate], generator: np.random.Generator) -> list[Step]:
        cut = _cut_chain(candidates)
        return [cut] if cut else [Step()] * self.wave


@dataclass(frozen=True)
class _Replay:
    config: ReplayConfig

    def plan(self, candidates: Sequence[Candidate], generator: np.random.Generator) -> list[Step]:
        if cut := _cut_chain(candidates):
            return [cut]
        begun = {(it.states[it.num_shared_turns]) for it in candidates if 0 < it.num_shared_turns < it.num_turns}
        places = {
            it.states[at]: Step(number, at)
            for number, it in reversed(list(enumerate(candidates)))
            if it.is_valid and not it.regressions
            for at in range(it.num_shared_turns + 1, it.num_turns)
            if it.states[at] not in begun
        }
        if not places or generator.random() >= self.config.branch_share:
            return [Step()]
        return [list(places.values())[int(generator.integers(len(places)))]]


def _merit(candidate: Candidate) -> tuple[float, ...]:
    """Return what makes a state better than another: value by tests, fewer errors, likelier actions."""
    return candidate.value, -candidate.num_errors, candidate.mean_log_prob


@dataclass(frozen=True)
class _Beam:
    config: LookaheadConfig | BeamConfig

    def plan(self, candidates: Sequence[Candidate], generator: np.random.Generator) -> list[Step]:
        config = self.config
        last = max((it.wave for it in candidates), default=-1)
        level = {number: it for number, it in enumerate(candidates) if it.wave == last and it.is_open}
        by_state: dict[str, int] = {}
        for number in sorted(level, key=lambda number: _merit(level[number]), reverse=True):
            by_state.setdefault(level[number].end_state, number)
        going_on = list(by_state.values())[: config.width]
        if not going_on:
            return [Step(max_turns=config.num_turns)] * (config.width * config.num_children)
        return [
            Step(number, candidates[number].num_turns, config.num_turns)
            for number in going_on
            for _ in range(config.num_children)
        ]


@dataclass(frozen=True)
class _BestFirst:
    config: BestFirstConfig

    def plan(self, candidates: Sequence[Candidate], generator: np.random.Generator) -> list[Step]:
        config = self.config
        num_waves: dict[str, set[int]] = {}
        for it in candidates:
            num_waves.setdefault(it.parent, set()).add(it.wave)
        seen: set[str] = set()
        best = Step(max_turns=config.num_turns)
        best_merit: tuple[float, ...] = (0.0, -float(len(num_waves.get("", ()))))
        for number, it in enumerate(candidates):
            is_first = it.end_state not in seen
            seen.add(it.end_state)
            num_expansions = len(num_waves.get(it.id, ()))
            merit = (it.value, -float(num_expansions), *_merit(it)[1:])
            if it.is_open and is_first and num_expansions < config.max_expansions and merit > best_merit:
                best, best_merit = Step(number, it.num_turns, config.num_turns), merit
        return [best] * config.num_children


@dataclass
class _Node:
    """A state of a search tree, reached by the same states before it."""

    place: tuple[int, int] | None
    """Candidate and turn that start in it; None: the task's start."""
    depth: int = 0
    num_visits: int = 0
    total: float = 0.0
    num_sampled: int = 0
    """Candidates that acted in it themselves."""
    children: dict[str, "_Node"] = field(default_factory=dict)


@dataclass(frozen=True)
class _Mcts:
    config: MctsConfig

    def plan(self, candidates: Sequence[Candidate], generator: np.random.Generator) -> list[Step]:
        if cut := _cut_chain(candidates):
            return [cut]
        root = _Node(None)
        for number, it in enumerate(candidates):
            self._add(root, number, it)
        node = self._select(root, self.config.exploration * self.config.decay ** (len(candidates) / _DECAY_PERIOD))
        return [Step(*node.place)] if node is not None and node.place else [Step()]

    def _add(self, root: _Node, number: int, candidate: Candidate) -> None:
        """Back up the value of a candidate along its states."""
        node = root
        for at in range(max(1, min(candidate.num_turns, self.config.max_depth + 1))):
            if at:
                node = node.children.setdefault(candidate.states[at], _Node((number, at), at))
            node.num_visits += 1
            node.total += candidate.value
            node.num_sampled += at >= candidate.num_shared_turns

    def _select(self, node: _Node, weight: float) -> _Node | None:
        """Return the state to branch at below ``node``; None where all of it is sampled to the end."""
        if node.num_sampled < self.config.num_children:
            return node
        ranked = sorted(node.children.values(), key=lambda it: -uct(it.total, it.num_visits, node.num_visits, weight))
        return next((place for child in ranked if (place := self._select(child, weight)) is not None), None)

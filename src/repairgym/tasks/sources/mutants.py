"""Mutants of one module, in the order of trial.

Reads source text. Makes `Mutant` objects. Guarantees: the sequence depends only on the source, the names and the seed;
operator families take turns, so that none crowds out the others; all mutants of a function differ.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import zip_longest

from repairgym.tasks.mutation.free_operators import find_free_sites
from repairgym.tasks.mutation.operators import FunctionSpan, Mutation, Site, apply, find_functions, find_sites

_ODD_LINE_ENDS = "\r\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029"
"""Characters on which Python's ``splitlines`` and the parser disagree about line numbers."""


@dataclass(frozen=True)
class MutableFunction:
    """A function with its mutation sites."""

    path: str
    source: str
    span: FunctionSpan
    sites: tuple[Site, ...]

    @property
    def num_edits(self) -> int:
        """Number of possible single edits."""
        return sum(len(site.alternatives) for site in self.sites)


@dataclass(frozen=True)
class Mutant:
    """A function with one edit or two."""

    function: MutableFunction
    mutations: tuple[Mutation, ...]

    @property
    def text(self) -> str:
        """The whole module with the edits."""
        return apply(self.function.source, *self.mutations)

    @property
    def operator(self) -> str:
        """Operator families of the edits, joined by ``+``."""
        return "+".join(sorted({mutation.site.operator for mutation in self.mutations}))

    @property
    def recipe(self) -> str:
        """The edits in words, ``12:5: < -> <=`` with line and column from 1; unique in a module."""
        return "; ".join(f"{m.site.line}:{m.site.column + 1}: {m.site.old} -> {m.new}" for m in self.mutations)


def mutable_functions(
    path: str, source: str, num_lines: tuple[int, int], min_edits: int = 1, has_free_operators: bool = False
) -> list[MutableFunction]:
    """Return functions of ``source`` with ``num_lines`` (least, most) lines of code and at least ``min_edits`` edits.

    With ``has_free_operators`` the families of `free_operators` take turns with those of `operators`.
    """
    if any(character in source for character in _ODD_LINE_ENDS):
        return []
    try:
        spans = find_functions(source)
        sites = find_sites(source) + (find_free_sites(source) if has_free_operators else [])
    except SyntaxError:
        return []
    functions = [MutableFunction(path, source, span, tuple(_sites_in(span, sites))) for span in spans]
    return [f for f in functions if f.num_edits >= min_edits and num_lines[0] <= f.span.num_code_lines <= num_lines[1]]


def _sites_in(span: FunctionSpan, sites: list[Site]) -> Iterator[Site]:
    first, last = span.docstring_lines
    for site in sites:
        if span.first_line <= site.line <= span.last_line and not (first <= site.line <= last):
            yield site


def mutants(function: MutableFunction, seed: str, two_edit_share: float) -> Iterator[Mutant]:
    """Yield all mutants of ``function``: families in turn, each in random order."""
    random_state = random.Random(f"{seed}:{function.path}:{function.span.qualified_name}:{function.span.first_line}")
    singles = _in_turns(function, random_state)
    for number, mutation in enumerate(singles):
        partner = singles[(number + 1) % len(singles)]
        is_apart = partner.site.line != mutation.site.line
        if is_apart and random_state.random() < two_edit_share:
            yield Mutant(function, (mutation, partner))
        else:
            yield Mutant(function, (mutation,))


def _in_turns(function: MutableFunction, random_state: random.Random) -> list[Mutation]:
    families: dict[str, list[Mutation]] = defaultdict(list)
    for site in function.sites:
        families[site.operator].extend(Mutation(site, new) for new in site.alternatives)
    shuffled = [families[name] for name in sorted(families)]
    for family in shuffled:
        random_state.shuffle(family)
    random_state.shuffle(shuffled)
    return [mutation for turn in zip_longest(*shuffled) for mutation in turn if mutation is not None]

"""Mutants: functions of a module with their mutation sites, and the code with one edit or several.

Reads a module's source. Makes `MutableFunction` and `Mutant` objects, and the text of a package with several of them.
Guarantees: the same source and seed give the same mutants in the same order; no two mutants of a module have one
recipe; what `gives_away` finds is never among those that `mutants` yields.
"""

import random
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import TypeVar

from repairgym.tasks.javascript.mutation_sites import find_sites as javascript_sites
from repairgym.tasks.javascript.syntax import is_javascript
from repairgym.tasks.mutation.file_functions import functions_in
from repairgym.tasks.mutation.free_operators import find_free_sites
from repairgym.tasks.mutation.give_aways import gives_away
from repairgym.tasks.mutation.operators import FunctionSpan, Mutation, Site, apply, find_sites
from repairgym.tasks.mutation.semantic_operators import SEMANTIC_FAMILIES, find_semantic_sites
from repairgym.tasks.mutation.text_edits import TEXT_FAMILIES, text_recipe

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

    @property
    def place(self) -> tuple[str, str]:
        """File and qualified name."""
        return self.path, self.span.qualified_name


@dataclass(frozen=True)
class Mutant:
    """A function with one edit or several."""

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
        """The edits in words, ``12:5: < -> <=`` with line and column from 1; unique in a module.

        A semantic edit is told by its family and the number of its alternative, because its text can be long; an edit
        that no operator makes holds its text.
        """
        return "; ".join(map(_recipe, self.mutations))


def _recipe(mutation: Mutation) -> str:
    site = mutation.site
    if site.operator in TEXT_FAMILIES:
        return text_recipe(mutation)
    place = f"{site.line}:{site.column + 1}"
    if site.operator in SEMANTIC_FAMILIES:
        return f"{place}: {site.operator} {site.alternatives.index(mutation.new) + 1}"
    return f"{place}: {site.old} -> {mutation.new}"


def broken_texts(mutants: Iterable[Mutant]) -> dict[str, str]:
    """Return path -> text of the modules with the edits of all ``mutants``, which are of different functions."""
    by_path: dict[str, list[Mutant]] = defaultdict(list)
    for mutant in mutants:
        by_path[mutant.function.path].append(mutant)
    return {
        path: apply(own[0].function.source, *(mutation for mutant in own for mutation in mutant.mutations))
        for path, own in by_path.items()
    }


def has_odd_line_ends(source: str) -> bool:
    """Return True for a source in which no function is mutable, because its lines can be counted in two ways."""
    return any(character in source for character in _ODD_LINE_ENDS)


def mutable_functions(
    path: str,
    source: str,
    num_lines: tuple[int, int],
    min_edits: int = 1,
    has_free_operators: bool = False,
    has_semantic_operators: bool = False,
) -> list[MutableFunction]:
    """Return functions of ``source`` with ``num_lines`` (least, most) lines of code and at least ``min_edits`` edits.

    The families of `free_operators` and `semantic_operators` take turns with those of `operators` where asked for, in
    Python.
    """
    if has_odd_line_ends(source):
        return []
    try:
        spans = functions_in(path, source)
        if is_javascript(path):
            sites = javascript_sites(path, source)
        else:
            sites = find_sites(source) + (find_free_sites(source) if has_free_operators else [])
            sites += find_semantic_sites(source, has_shared=not has_free_operators) if has_semantic_operators else []
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
    """Yield the mutants of ``function`` that do not give themselves away: families in turn, each in random order."""
    random_state = random.Random(f"{seed}:{function.path}:{function.span.qualified_name}:{function.span.first_line}")
    families: dict[str, list[Mutation]] = defaultdict(list)
    for site in function.sites:
        families[site.operator].extend(Mutation(site, new) for new in site.alternatives)
    singles = shuffled_turns(families, random_state)
    for number, mutation in enumerate(singles):
        partner = singles[(number + 1) % len(singles)]
        is_two = _are_apart(mutation.site, partner.site) and random_state.random() < two_edit_share
        chosen = (mutation, partner) if is_two else (mutation,)
        if not any(gives_away(function.source, edit) for edit in chosen):
            yield Mutant(function, chosen)


def honest_edits(function: MutableFunction) -> list[Mutation]:
    """Return the edits of ``function`` that do not give themselves away."""
    edits = (Mutation(site, new) for site in function.sites for new in site.alternatives)
    return [edit for edit in edits if not gives_away(function.source, edit)]


def planned_mutants(
    function: MutableFunction, edits: Sequence[Mutation], family: str, num_edits: int, seed: str
) -> Iterator[Mutant]:
    """Yield mutants of ``num_edits`` of the ``edits`` of ``function``, on lines of their own, one of ``family``.

    Each edit of the family is tried once, in random order, with random others.
    """
    place = f"{function.path}:{function.span.qualified_name}:{function.span.first_line}"
    generator = random.Random(f"{seed}:{place}:{family}:{num_edits}")
    first = [edit for edit in edits if edit.site.operator == family]
    for edit in generator.sample(first, len(first)):
        chosen = [edit]
        for other in generator.sample(edits, len(edits)) if num_edits > 1 else ():
            if len(chosen) < num_edits and all(_are_apart(other.site, known.site) for known in chosen):
                chosen.append(other)
        if len(chosen) == num_edits:
            yield Mutant(function, tuple(sorted(chosen, key=lambda known: (known.site.line, known.site.column))))


def _are_apart(left: Site, right: Site) -> bool:
    """Return True when the sites share no line."""
    return left.last_line < right.line or right.last_line < left.line


ItemT = TypeVar("ItemT")


def shuffled_turns(families: dict[str, list[ItemT]], generator: random.Random) -> list[ItemT]:
    """Return the items of all families: families take turns, each in random order."""
    shuffled = [families[name] for name in sorted(families)]
    for family in shuffled:
        generator.shuffle(family)
    generator.shuffle(shuffled)
    return [item for turn in zip_longest(*shuffled) for item in turn if item is not None]

from __future__ import annotations

import ast

import pytest

from repairgym.tasks.mutation.free_operators import find_free_sites
from repairgym.tasks.mutation.mutants import mutable_functions, mutants
from repairgym.tasks.mutation.operators import Mutation, apply, find_sites

SOURCE = '''
def collect(items, low, high=None, mode="é"):
    """Words."""
    found = []
    for number in range(len(items)):
        if items[number] is None:
            raise ValueError("é", number)
        try:
            found.append(clamp(items[number], low))
        except (KeyError, OSError):
            return None
    return found, f"{low + high}"
'''


def edits(operator: str) -> set[tuple[str, str]]:
    return {(s.old, new) for s in find_free_sites(SOURCE) if s.operator == operator for new in s.alternatives}


@pytest.mark.parametrize(
    ("operator", "expected"),
    [
        ("swapped_arguments", {("items[number], low", "low, items[number]"), ('"é", number', 'number, "é"')}),
        ("removed_call", {("found.append(clamp(items[number], low))", "pass")}),
        ("removed_branch", {("items[number] is None", "False")}),
        ("return_value", {('found, f"{low + high}"', "None")}),
        ("exception_type", {("ValueError", "TypeError"), ("ValueError", "StopIteration"), ("OSError", "RuntimeError")}),
        ("default_argument", {("None", "0"), ('"é"', "None")}),
        ("loop_bound", {("len(items)", "len(items) - 1"), ("len(items)", "len(items) + 1")}),
        ("wrong_variable", {("low", "high"), ("found", "number")}),
    ],
)
def test_each_operator_makes_its_edits(operator: str, expected: set[tuple[str, str]]) -> None:
    assert expected <= edits(operator)


def test_every_edit_parses_and_can_be_taken_back() -> None:
    sites = find_free_sites(SOURCE)
    assert len(sites) > 10
    for site in sites:
        for new in site.alternatives:
            broken = apply(SOURCE, Mutation(site, new))
            assert ast.dump(ast.parse(broken)) != ast.dump(ast.parse(SOURCE))
            assert apply(broken, Mutation(site, new).inverse) == SOURCE


def test_they_are_asked_for_and_the_closed_vocabulary_stays_as_it_was() -> None:
    closed = mutable_functions("m.py", SOURCE, (1, 30))
    free = mutable_functions("m.py", SOURCE, (1, 30), has_free_operators=True)
    assert all(set(function.sites) <= set(find_sites(SOURCE)) for function in closed)
    assert set(closed[0].sites) < set(free[0].sites)
    families = {mutant.operator for mutant in mutants(free[0], "seed", 0.0)}
    assert {"swapped_arguments", "wrong_variable", "loop_bound"} <= families
    assert not {"removed_call", "removed_branch"} & families  # pass and False give themselves away

"""Mutation operators: every alternative parses, one line changes, the inverse restores."""

import ast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from repairgym.tasks.mutation.operators import Mutation, apply, find_functions, find_sites

SOURCE = '''\
import os


class Box:
    def fits(self, sizes, limit=3):
        """Doc
        string."""
        total = 0
        for size in sizes:
            if not size:
                continue
            total += size * 2 - 1
        if total <= limit and sizes is not None or "ü" in sizes:
            return min(sizes), True
        return "%d items" % total, len(sizes) // 2


def outer(x: int = 100) -> int:
    while x.startswith("a"):
        x = x.strip()[1:]
    return x
'''


def site_texts(source: str) -> set[tuple[str, str]]:
    return {(site.operator, site.old) for site in find_sites(source)}


def test_finds_each_family():
    found = site_texts(SOURCE)
    expected = {
        ("comparison", "<="),
        ("boolean", "and"),
        ("boolean", "or"),
        ("arithmetic", "+="),
        ("arithmetic", "*"),
        ("arithmetic", "-"),
        ("arithmetic", "//"),
        ("membership", "is not"),
        ("membership", "in"),
        ("negation", "if not"),
        ("negation", "while"),
        ("loop", "continue"),
        ("name", "min"),
        ("name", "strip"),
        ("name", "startswith"),
        ("constant", "True"),
        ("constant", "0"),
    }
    assert expected <= found


def test_leaves_formatting_and_large_constants_alone():
    found = site_texts(SOURCE)
    assert ("arithmetic", "%") not in found
    assert ("constant", "100") not in found


def test_columns_count_characters_not_bytes():
    source = 'x = "üüü" + y + 1\n'
    (first, second, third) = find_sites(source)
    assert [source[site.column : site.column + len(site.old)] for site in (first, second, third)] == ["+", "+", "1"]


@pytest.mark.parametrize("number", range(len(find_sites(SOURCE))))
def test_every_alternative_parses_and_is_undone(number):
    site = find_sites(SOURCE)[number]
    for new in site.alternatives:
        mutation = Mutation(site, new)
        mutated = apply(SOURCE, mutation)
        ast.parse(mutated)
        pairs = zip(SOURCE.splitlines(), mutated.splitlines(), strict=True)
        assert [n for n, (old, now) in enumerate(pairs, 1) if old != now] == [site.line]
        assert apply(mutated, mutation.inverse) == SOURCE


def test_two_mutations_on_one_line():
    source = "y = a + b - c\n"
    plus, minus = find_sites(source)
    assert apply(source, Mutation(plus, "//"), Mutation(minus, "+")) == "y = a // b + c\n"


def test_apply_refuses_another_source():
    site = find_sites("y = a + b\n")[0]
    with pytest.raises(ValueError, match="does not hold"):
        apply("y = a * b\n", Mutation(site, "-"))


def test_functions_know_their_docstrings():
    fits, outer = find_functions(SOURCE)
    assert (fits.qualified_name, fits.docstring_lines) == ("Box.fits", (6, 7))
    assert (outer.qualified_name, outer.docstring_lines) == ("outer", (0, 0))
    assert fits.num_code_lines == fits.last_line - fits.first_line + 1 - 2


@given(
    st.lists(st.sampled_from(["a < b", "not a", "a and b", "a[1:]", "(a) + (b)", "f(a, 2)"]), min_size=1, max_size=4)
)
def test_sites_of_generated_expressions_hold_their_text(parts):
    source = "".join(f"if {part}:\n    pass\n" for part in parts)
    lines = source.splitlines()
    for site in find_sites(source):
        assert lines[site.line - 1][site.column : site.column + len(site.old)] == site.old


@pytest.mark.parametrize("odd", ["\x0c\n", "# \u2028\n"])
def test_a_mutation_behind_an_odd_line_end_is_at_its_place(odd):
    source = f"{odd}def f(a, b):\n    return a < b\n"
    (site,) = [site for site in find_sites(source) if site.operator == "comparison"]
    assert apply(source, Mutation(site, "<=")) == source.replace("<", "<=")

from __future__ import annotations

import ast

import pytest

from repairgym.tasks.mutation.free_operators import find_free_sites
from repairgym.tasks.mutation.give_aways import gives_away
from repairgym.tasks.mutation.mutants import mutable_functions, mutants
from repairgym.tasks.mutation.operators import Mutation, Site, apply, find_sites
from repairgym.tasks.mutation.semantic_operators import SEMANTIC_FAMILIES, find_semantic_sites

SOURCE = '''
class Store:
    """Words."""

    def __init__(self, rows, labels, sep=",", end=";"):
        self.rows = list(rows)
        self.labels = labels.copy()
        self.sep = sep

    def put(self, row, weight):
        if row is None:
            raise ValueError("é")
        if weight > 1 and self.labels:
            self.rows.append(row)
        elif weight:
            self.rows.insert(0, row)
        else:
            self.rows[-1] = row
        self.labels["weight"] = weight
        return sorted(self.rows, key=len)

    def find(self, low, high):
        try:
            total = self.labels.get("width", 0)
            total += self.labels["weight"]
        except (KeyError, TypeError):
            total = 0
        for row in self.rows[low + 1:high]:
            total += row
        return total
'''


def edits(operator: str) -> set[tuple[str, str]]:
    sites = [site for site in find_semantic_sites(SOURCE) if site.operator == operator]
    return {(" ".join(site.old.split()), " ".join(new.split())) for site in sites for new in site.alternatives}


@pytest.mark.parametrize(
    ("operator", "expected"),
    [
        ("lost_branch", {('if row is None: raise ValueError("é")', ""), ("else: self.rows[-1] = row", ""),
                         ("elif weight: self.rows.insert(0, row)", "")}),
        ("lost_update", {("self.sep = sep", ""), ('self.labels["weight"] = weight', "")}),
        ("lost_copy", {("list(rows)", "rows"), ("labels.copy()", "labels")}),
        ("lost_condition", {("weight > 1 and self.labels", part) for part in ("weight > 1", "self.labels")}),
        ("lost_argument", {(", key=len", ""), (", 0", "")}),
        ("lost_exception", {("(KeyError, TypeError)", "KeyError"), ("(KeyError, TypeError)", "TypeError")}),
        ("early_return", {("return total", "return total")}),
        ("swapped_statements", {("self.rows = list(rows) self.labels = labels.copy()",
                                 "self.labels = labels.copy() self.rows = list(rows)")}),
        ("swapped_parameters", {("row, weight", "weight, row"), ("low, high", "high, low")}),
        ("wrong_key", {('"weight"', '"width"'), ('"width"', '"weight"')}),
        ("wrong_field", {("self.rows", "self.labels")}),
        ("wrong_default", {('","', '";"'), ('";"', '","')}),
        ("off_boundary", {("-1", "0"), ("high", "high - 1"), ("high", "high + 1"), ("low + 1", "low")}),
        ("wrong_variable", {("low", "high")}),
    ],
)  # fmt: skip
def test_each_operator_makes_its_edits(operator: str, expected: set[tuple[str, str]]) -> None:
    assert expected <= edits(operator)


def test_every_family_is_tried_here() -> None:
    made = {site.operator for site in find_semantic_sites(SOURCE)}
    assert made - {"swapped_arguments", "wrong_variable", "exception_type"} == SEMANTIC_FAMILIES - {"lost_call"}


def test_every_edit_parses_and_can_be_taken_back() -> None:
    sites = find_semantic_sites(SOURCE)
    for site in sites:
        for new in site.alternatives:
            broken = apply(SOURCE, Mutation(site, new))
            assert ast.dump(ast.parse(broken)) != ast.dump(ast.parse(SOURCE))
            assert apply(broken, Mutation(site, new).inverse) == SOURCE


@pytest.mark.parametrize("text", [
    "def f(a):\n    g((a), key=1)\n    return a\n",
    "def f(a, b):\n    return (a or b) and (b\n        or a)\n",
    "def f(a):\n    if (n := a) and a: x = 1; y = x\n    return f'{a[0]}'\n",
    "def f(a):\n    a.b = 1 ; a.c = 2\n    return a",
    "def f(a):\n    if a: return 1\n    elif a > 1:\n        pass\n    else: return 2\n    return a[:(a + 1)]\n",
])  # fmt: skip
def test_awkward_code_gives_only_code_that_parses(text: str) -> None:
    for site in find_semantic_sites(text):
        for new in site.alternatives:
            ast.parse(apply(text, Mutation(site, new)))


def test_recipes_are_one_line_and_name_one_edit() -> None:
    functions = mutable_functions("m.py", SOURCE, (1, 30), has_semantic_operators=True)
    made = [mutant for function in functions for mutant in mutants(function, "0", 0.0)]
    assert {"lost_branch", "swapped_parameters"} <= {mutant.operator for mutant in made}
    assert len({mutant.recipe for mutant in made}) == len({mutant.text for mutant in made}) == len(made)
    assert not any("\n" in mutant.recipe for mutant in made)


def test_two_edits_share_no_line() -> None:
    functions = mutable_functions("m.py", SOURCE, (1, 30), has_semantic_operators=True)
    for mutant in (mutant for function in functions for mutant in mutants(function, "0", 1.0)):
        for number, mutation in enumerate(mutant.mutations):
            others = [other.site for other in mutant.mutations[number + 1 :]]
            assert all(s.line > mutation.site.last_line or s.last_line < mutation.site.line for s in others)
        ast.parse(mutant.text)


GIVING = """def f(a, b):
    if a:
        g(a)
    for x in a:
        b = b / 2
    b /= 2
    if a > b and f(b, b):
        return a + "é" + str(b)
    return b + 1
"""


@pytest.mark.parametrize(("line", "old", "new"), [
    (3, "g(a)", "pass"),
    (2, "a", "False"),
    (4, "a", "x"),
    (5, "/ 2", "/ 1"),
    (6, "2", "1"),
    (7, "b and", "a and"),
    (8, '+ "é"', '- "é"'),
    (9, "1", "0"),
    (9, "b + 1", "None"),
])  # fmt: skip
def test_lines_that_give_themselves_away(line: int, old: str, new: str) -> None:
    text = GIVING.splitlines()[line - 1]
    families = {"pass": "removed_call", "None": "return_value"}
    column = text.index(old, 8 if (line, old) == (4, "a") else 0)
    site = Site(families.get(new, "any"), line, column, old, (new,))
    assert gives_away(GIVING, Mutation(site, new))


def test_honest_mistakes_do_not_give_themselves_away() -> None:
    sites = [*find_sites(GIVING), *find_free_sites(GIVING), *find_semantic_sites(GIVING)]
    plain = {("<=", 7), ("b, a", 7), ("//", 5)}
    kept = {
        (new, site.line) for site in sites for new in site.alternatives if not gives_away(GIVING, Mutation(site, new))
    }
    assert {("<", 7), ("//", 5), ("a", 9)} <= kept, plain

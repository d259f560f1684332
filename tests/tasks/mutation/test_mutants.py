from __future__ import annotations

import ast
from itertools import islice

from repairgym.tasks.mutation.mutants import mutable_functions, mutants

SOURCE = '''
def tiny(): return 1 + 1


class Box:
    def find(self, items, low):
        """Find 1 < 2."""
        for item in items:
            if item is None:
                continue
            if item >= low and item != 3:
                return item + 1
        return 0


def far(values):
    return max(values) - min(values) \\
        if values else 0
'''


def functions() -> list[str]:
    return [f.span.qualified_name for f in mutable_functions("m.py", SOURCE, (3, 30))]


def test_only_functions_within_the_bounds_and_with_sites() -> None:
    assert functions() == ["Box.find", "far"]
    assert mutable_functions("m.py", SOURCE, (20, 30)) == []
    assert mutable_functions("m.py", "def broken(:\n", (1, 30)) == []
    assert mutable_functions("m.py", "x = 1\x0c\n" + SOURCE, (1, 30)) == []


def test_docstring_is_never_edited() -> None:
    find = mutable_functions("m.py", SOURCE, (3, 30))[0]
    assert all("Find 1 < 2." in mutant.text for mutant in mutants(find, "0", 0.5))


def test_sequence_is_fixed_by_the_seed_and_has_no_repetition() -> None:
    find = mutable_functions("m.py", SOURCE, (3, 30))[0]
    texts = [mutant.text for mutant in mutants(find, "0", 0.3)]
    assert texts == [mutant.text for mutant in mutants(find, "0", 0.3)]
    assert texts != [mutant.text for mutant in mutants(find, "1", 0.3)]
    assert len(set(texts)) == len(texts)
    assert all(ast.parse(text) for text in texts)


def test_operator_families_take_turns() -> None:
    find = mutable_functions("m.py", SOURCE, (3, 30))[0]
    families = {site.operator for site in find.sites}
    first = [mutant.operator for mutant in islice(mutants(find, "0", 0.0), len(families) - 1)]
    assert len(set(first)) == len(first)  # one family may lose its turn: its edit would give itself away


def test_share_of_two_edit_mutants() -> None:
    find = mutable_functions("m.py", SOURCE, (3, 30))[0]
    assert {len(mutant.mutations) for mutant in mutants(find, "0", 0.0)} == {1}
    both = [mutant for mutant in mutants(find, "0", 1.0) if len(mutant.mutations) == 2]
    assert both
    assert all(len({m.site.line for m in mutant.mutations}) == 2 for mutant in both)


def test_no_two_edits_of_a_module_have_the_same_recipe() -> None:
    source = "def f(a, b, c):\n    if a < b and b < c:\n        return a + b + c\n    return a - 1\n"
    function = mutable_functions("m.py", source, (1, 30))[0]
    made = list(islice(mutants(function, "0", 0.0), 100))
    assert len({mutant.recipe for mutant in made}) == len({mutant.text for mutant in made}) == len(made)

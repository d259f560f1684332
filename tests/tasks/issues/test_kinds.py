from __future__ import annotations

import pytest

from repairgym.tasks.issues.kinds import Change, kind_of
from repairgym.tasks.sources.fixes import Fix, find_hunks

BEFORE = 'def area(a):\n    """Area."""\n    return a\n'
FIXED = BEFORE.replace("return a", "return a * a")
WIDER = BEFORE.replace("(a)", "(a, unit)")
ANNOTATED = BEFORE.replace("(a)", "(a: int) -> int")
TOLD = BEFORE.replace("Area.", "Area of a square.")


@pytest.mark.parametrize(
    ("after", "text", "used", "expected"),
    [
        (FIXED, "", {"area"}, "fix"),
        (FIXED, "Fixed `area`, which added support for nothing", {"area"}, "fix"),
        (FIXED, "Support other shapes", {"area"}, "feature"),
        (FIXED, "Simplify the code of areas", {"area"}, "refactoring"),
        (WIDER, "", {"area", "unit"}, "feature"),
        (WIDER, "", {"area"}, "fix"),
        (WIDER, "Areas are wrong for units", {"area", "unit"}, "fix"),
        (WIDER, "Add a unit. Errors are raised for wrong ones.", {"unit"}, "feature"),
        (TOLD, "Fix the docs", {"area"}, "test_only"),
        (WIDER, "Areas take a unit (issues #157, #164)", {"area", "unit"}, "feature"),
        (ANNOTATED, "", {"area"}, "refactoring"),
        (f"__version__ = '2'\n{BEFORE}", "", {"area"}, "refactoring"),
        (f"from .units import unit\n{BEFORE}", "", {"unit"}, "feature"),
    ],
)
def test_difference_and_text_decide(after: str, text: str, used: set[str], expected: str) -> None:
    older, newer = {"a.py": BEFORE}, {"a.py": after}
    fix = Fix(tuple(find_hunks(older, newer)), older, newer)
    assert kind_of(Change(fix, text, frozenset(used))) == expected


def test_a_parameter_is_new_where_its_own_function_did_not_have_it() -> None:
    other = "\n\ndef other(unit):\n    return unit\n"
    older, newer = {"a.py": BEFORE + other}, {"a.py": WIDER + other}
    fix = Fix(tuple(find_hunks(older, newer)), older, newer)
    assert kind_of(Change(fix, "", frozenset({"area", "unit"}))) == "feature"


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        (("NameError: name 'unit' is not defined",), "refactoring"),
        (("ModuleNotFoundError: No module named 'six'",), "refactoring"),
        (("ModuleNotFoundError: No module named 'absent'",), "fix"),
        (("NameError: name 'unit' is not defined", "AssertionError: assert 2 == 3"), "fix"),
    ],
)
def test_broken_code_that_lacks_a_name_is_half_of_a_change(messages: tuple[str, ...], expected: str) -> None:
    older, newer = {"a.py": f"import six\n{BEFORE}"}, {"a.py": FIXED}
    fix = Fix(tuple(find_hunks(older, newer)), older, newer)
    assert kind_of(Change(fix, "", frozenset({"area"}), messages)) == expected


AREA = """var unit = require('./unit');
var table = { square: 1 };
module.exports = { area: area, other: 1 };
function area(a, options) {
  var scale = options.scale || 1;
  switch (options.form) {
    case 'square': return scale * a * table.square;
  }
  return unit(a);
}
"""


@pytest.mark.parametrize(
    ("old", "new", "text", "expected"),
    [
        ("return unit(a)", "return unit(a) * a", "", "fix"),
        ("return unit(a)", "return unit(a, options.depth)", "", "feature"),
        ("return unit(a)", "return unit(a, options.depth)", "[Fix] areas are too large", "fix"),
        ("return unit(a)", "return unit(a, options.unused)", "", "fix"),
        ("return unit(a)", "return unit(a) * a", "[New] areas of cubes", "feature"),
        ("return unit(a)", "return unit(a) * a", "feat(area): cubes", "feature"),
        ("return unit(a)", "return unit(a) * a", "[Refactor] less code", "refactoring"),
        ("return unit(a)", "return unit(a) * a", "[Robustness] check the unit", "fix"),
        ("case 'square':", "case 'square': case 'cube':", "", "feature"),
        ("other: 1", "another: 1", "", "feature"),
        (AREA, None, "", "feature"),
        ("unit = require('./unit')", "length = require('./length'), unit", "", "fix"),
    ],
)
def test_of_javascript_names_tell_what_is_no_fix(old: str, new: str | None, text: str, expected: str) -> None:
    broken = AREA if new is not None else None
    gold = AREA.replace(old, new, 1) if new is not None else AREA
    older: dict[str, str | None] = {"a.js": broken}
    newer: dict[str, str | None] = {"a.js": gold}
    fix = Fix(tuple(find_hunks(older, newer)), older, newer)
    assert kind_of(Change(fix, text, frozenset({"area", "depth", "cube", "scale"}))) == expected


@pytest.mark.parametrize(
    ("lost", "expected"),
    [("var unit = require('./unit');\n", "refactoring"), ("square: 1", "refactoring"), (" || 1", "fix")],
)
def test_broken_javascript_that_lacks_a_name_is_half_of_a_change(lost: str, expected: str) -> None:
    older, newer = {"a.js": AREA.replace(lost, "")}, {"a.js": AREA}
    fix = Fix(tuple(find_hunks(older, newer)), older, newer)
    assert kind_of(Change(fix, "", frozenset({"area"}))) == expected


def test_what_fails_in_another_way_on_the_older_release_is_half_of_a_change() -> None:
    fix = Fix(tuple(find_hunks({"a.py": BEFORE}, {"a.py": FIXED})), {"a.py": BEFORE}, {"a.py": FIXED})
    assert kind_of(Change(fix, "", frozenset({"area"}), is_marked_half=True)) == "refactoring"

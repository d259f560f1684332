"""Names of tests in data sets: the runner that spells them so, their files, and the tests of a run."""

from __future__ import annotations

from pathlib import Path

import pytest

from repairgym.tasks.imported.named_tests import (
    SignedRunner,
    files_of_tests,
    log_runner,
    match_ids,
    runner_of,
)

CASES = '''
class Base:
    def test_save(self):
        """
        A saved order is there.

        More of it.
        """

    def test_plain(self): ...


class Orders(Base):
    def test_gone(self):
        """An order that is gone."""


class Carts(Base):
    def test_save(self):
        """A saved cart is there."""
'''
CASE_FILE = "tests/shop/test_orders.py"
KNOWN = tuple(
    f"{CASE_FILE}::{name}"
    for name in ("Orders::test_save", "Orders::test_plain", "Orders::test_gone", "Carts::test_save")
)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for path, text in {CASE_FILE: CASES, "tests/bag/tests/__init__.py": "", "tests/shop/models.py": ""}.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    return tmp_path


@pytest.mark.parametrize(
    ("names", "runner"),
    [
        (("tests/test_a.py::test_b", "[100%]"), "pytest"),
        (("A saved order is there.", "test_save (shop.test_orders.Orders)"), "django"),
        (("test_save (shop.test_orders.Orders.test_save)",), "django"),
        (("test_a", "test_b"), "sympy"),
        (("test_a", "ModelTests: saves"), None),
    ],
)
def test_names_tell_their_runner(names: tuple[str, ...], runner: SignedRunner | None) -> None:
    assert runner_of(names) == runner


def test_files_come_from_names_and_from_the_patch_of_tests(tree: Path) -> None:
    names = ("test_a (bag.tests.Bag)", "test_save (shop.test_orders.Orders.test_save)", "test_x (no.such.Case)", "text")
    changed = {"tests/shop/models.py", "tests/shop/test_gone.py"}
    found = files_of_tests("django", names, changed, tree)
    assert found == ("tests/bag/tests/__init__.py", CASE_FILE)
    assert files_of_tests("django", ("A saved cart is there.",), {CASE_FILE, *changed}, tree) == (CASE_FILE,)
    assert files_of_tests("sympy", ("test_save",), {CASE_FILE, *changed}, tree) == (CASE_FILE,)
    assert files_of_tests("pytest", (f"{CASE_FILE}::x", "a.py::y"), changed, tree) == (CASE_FILE,)


def test_a_method_is_found_by_each_of_its_spellings(tree: Path) -> None:
    official = {
        "test_save (shop.test_orders.Orders)": 0,
        "test_plain (shop.test_orders.Orders.test_plain)": 1,
        "An order that is gone.": 2,
        "A saved cart is there.": 3,
        "A saved order is there.": 0,
    }
    matches = match_ids("django", (*official, "test_new (shop.test_orders.Orders)", "An order"), KNOWN, tree)
    assert matches == {name: (KNOWN[place],) for name, place in official.items()} | {
        "test_new (shop.test_orders.Orders)": (),
        "An order": (),
    }


def test_a_function_without_a_file_is_every_one_of_its_name(tree: Path) -> None:
    known = ("a/test_a.py::test_x", "b/test_b.py::test_x", "a/test_a.py::test_y")
    matches = match_ids("sympy", ("test_x", "test_y", "test_z"), known, tree)
    assert matches == {"test_x": known[:2], "test_y": known[2:], "test_z": ()}


def test_a_log_is_that_of_the_test_command_over_the_files() -> None:
    django = log_runner("django", "./tests/runtests.py -v 2", (CASE_FILE, "tests/bag/tests/__init__.py"))
    assert django is not None
    assert django.command == ("bash", "-c", "./tests/runtests.py -v 2 shop.test_orders bag.tests")
    assert (django.parser, django.is_signed) == ("unittest", False)
    assert log_runner("pytest", "", (CASE_FILE,)) is None
    assert log_runner("pytest", "pytest -rA", ()) is None


def test_cut_ids_stand_for_every_test_that_begins_with_them_and_a_blank(tree: Path) -> None:
    known = ("a.py::test_x[1 2]", "a.py::test_x[1 3]", "a.py::test_x[2]", "a.py::test_y", "a.py::test_x[12]",
             "a.py::test_x[1]", "a.py::test_x[1-b]")  # fmt: skip
    names = ("a.py::test_x[1", "a.py::test_x[2]", "a.py::test_y", "a.py::test_z", "a.py")
    matches = match_ids("pytest", names, known, tree)
    assert matches["a.py::test_x[1"] == known[:2]
    assert [len(matches[name]) for name in ("a.py::test_x[2]", "a.py::test_y", "a.py::test_z", "a.py")] == [1, 1, 0, 0]

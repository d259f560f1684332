"""Function changes of pairs of texts and of trees."""

from pathlib import Path

import pytest

from repairgym.config.commands import ChangesConfig
from repairgym.pretraining.changes import function_changes, function_texts, is_selected, release_changes

BEFORE = '''
import os

@cached
def first(items):
    """Return the first."""
    if len(items) > 1:

        return items[0]
    return None


class Box(list):
    size = 3

    @property
    def room(self):
        return self.size

    @room.setter
    def room(self, size):
        self.size = size
        self.clear()

    def take(self, n):
        taken = super(Box, self).__getitem__(slice(n))
        del self[:n]
        return taken
'''
CONFIG = ChangesConfig()


def changes(old: str, new: str, config: ChangesConfig = CONFIG, source: str = BEFORE) -> list[tuple[object, ...]]:
    assert old in source
    return list(function_changes(source, source.replace(old, new), config))


def test_a_changed_condition_is_a_change_of_its_function():
    (change,) = changes("> 1", "> 0")
    assert change == (
        "first",
        ("def first(items):", "    if len(items) > 1:", "        return items[0]", "    return None"),
        ("def first(items):", "    if len(items) > 0:", "        return items[0]", "    return None"),
    )


def test_methods_have_qualified_names_and_a_setter_is_not_its_getter():
    assert [name for name, _, _ in changes("[:n]", "[: n + 1]")] == ["Box.take"]
    ((name, before, _),) = changes("self.clear()", "self[:] = []")
    assert (name, before[0]) == ("Box.room", "    def room(self, size):")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"""Return the first."""', '"""Return the first item."""'),
        ("        return items[0]\n", "        # the head\n        return items[0]  # noqa\n"),
        ("def first(items):", "def first(items: list[int]) -> int | None:"),
        ("        taken = super", "        taken: list = super"),
        ("@cached", "@kept"),
        ("size = 3", "size = 4"),
        ("return None", "return"),
        ("super(Box, self)", "super()"),
        ("return None", "return ("),
    ],
)
def test_what_no_test_sees_and_what_does_not_parse_is_left_out(old: str, new: str):
    assert not changes(old, new)


def test_a_message_is_no_change_and_a_key_is():
    source = "def check(box):\n    if not box:\n        raise ValueError('box is empty')\n    return box['size']\n"
    assert not changes("box is empty", "the box is empty", source=source)
    assert changes("'size'", "'length'", source=source)


def test_limits_of_hunks_and_lines_hold():
    source = "def add(a, b):\n" + "".join(f"    x{k} = a + {k}\n" for k in range(12)) + "    return b\n"
    spread = source.replace("+ 1\n", "- 1\n").replace("+ 5\n", "- 5\n")
    assert list(function_changes(source, spread, CONFIG))
    assert not list(function_changes(source, spread, CONFIG.model_copy(update={"max_hunks": 1})))
    assert not list(function_changes(source, spread, CONFIG.model_copy(update={"max_changed_lines": 3})))
    assert not list(function_changes(source, spread, CONFIG.model_copy(update={"max_code_lines": 13})))
    assert not list(function_changes(source, source.replace("a +", "a *"), CONFIG))


def test_nested_functions_stay_in_their_function():
    source = "def outer(a):\n    def inner(b):\n        '''Add.'''\n        return a + b\n    return inner\n"
    assert list(function_texts(source)) == [tuple(line for line in source.splitlines() if "'" not in line)]


@pytest.mark.parametrize(
    "path",
    [
        "tests/a.py",
        "pip/_vendor/x.py",
        "docs/conf.py",
        "a/test_b.py",
        "semver.py",
        "src/more_itertools/more.py",
        "a/b_pb2.py",
    ],
)
def test_tests_copies_and_held_out_names_are_not_selected(path: str):
    assert not is_selected(path, frozenset({"semver", "more-itertools"}))
    assert is_selected("src/pip/main.py", frozenset({"semver", "more-itertools"}))


def test_files_of_both_releases_are_compared(tmp_path: Path):
    trees = tmp_path / "old", tmp_path / "new"
    for tree, text in zip(trees, (BEFORE, BEFORE.replace("> 1", "> 0")), strict=True):
        for path in ("box.py", "tests/box.py", "semver.py", f"{tree.name}.py"):
            (tree / path).parent.mkdir(parents=True, exist_ok=True)
            (tree / path).write_text(text)
    (change,) = release_changes("shelf", ("1.0", "1.1"), trees, CONFIG, frozenset({"semver"}))
    assert (change.package, change.path, change.name) == ("shelf", "box.py", "first")
    assert (change.version_before, change.version_after) == ("1.0", "1.1")

"""What a submission removes or empties beside its repair, and what only looks so."""

from pathlib import Path

import pytest

from repairgym.config.pipeline import GradingConfig
from repairgym.grading.public_names import missing_names
from repairgym.grading.stages import Submission, permit, pin
from repairgym.testing.scripted import scripted_task

KEPT = """
class Box:
    def open(self):
        return self.lid.lift()

    def close(self):
        raise NotImplementedError


def other(value):
    check(value)
    return value + 1


def same(items):
    return items


def _private(value):
    return value * 2


def outer(inner):
    def nested(value):
        return inner(value)

    return nested
"""
MUTED = "def quiet(function):\n    return lambda *given: None\n\n\n"
BASE, GOLD = ("def f(a, b):\n    return a < b\n" + KEPT), ("def f(a, b):\n    return a <= b\n" + KEPT)


def missing(text, path="m.py"):
    """Return what is missing in ``text``, the file of a submission."""
    task = scripted_task(base_files={"m.py": BASE}, gold_files={"m.py": GOLD})
    config = GradingConfig()
    return missing_names(pin(permit(Submission(task, {path: text}), config), Path("/nowhere"), config))


@pytest.mark.parametrize(
    ("old", "new", "name"),
    [
        ("    check(value)\n    return value + 1", "    return value", "other"),
        ("    check(value)\n    return value + 1", "    raise ValueError", "other"),
        ("        return self.lid.lift()", "        pass", "Box.open"),
        ("    return items", "    return None", "same"),
        ("def other(value):", "def _other(value):", "other"),
        ("    def open(self):", "    def _open(self):", "Box.open"),
        ("class Box:", "class _Box:", "Box"),
        ("    check(value)\n", "    return [None][0]\n", "other"),
        ("    check(value)\n", "    raise NotImplementedError\n    check(value)\n", "other"),
        ("    check(value)\n    return value + 1", "    for _ in ():\n        return value + 1", "other"),
        ("    check(value)\n    return value + 1", "    result = value\n    return result", "other"),
        ("    check(value)\n", "    if value is value:\n        return None\n    check(value)\n", "other"),
        ("    check(value)\n", "    if [value]:\n        return\n    check(value)\n", "other"),
        ("    check(value)\n    return value + 1", "    return list()", "other"),
        ("    return value * 2", "    return None", "_private"),
        ("    check(value)\n    return value + 1", "    return locals().get('value')", "other"),
        ("    check(value)\n    return value + 1", "    return type(value)()", "other"),
        ("    check(value)\n    return value + 1", "    return (lambda: None)()", "other"),
        ("    check(value)\n    return value + 1", "    str(value)\n    return None", "other"),
        ("    check(value)\n    return value + 1", "    while True:\n        break\n        check(value)", "other"),
        (
            "    check(value)\n    return value + 1",
            "    try:\n        raise OSError\n    except OSError:\n        return 1",
            "other",
        ),
        ("        return inner(value)", "        return 0", "outer._inner.nested"),
        ("        raise NotImplementedError\n", "        raise NotImplementedError\n\n    del open\n", "Box.open"),
        ("def other(value):", f"{MUTED}@quiet\ndef other(value):", "other"),
        ("def other(value):", "other = None\n\n\ndef _other(value):", "other"),
        ("def other(value):", "other = lambda value: value\n\n\ndef _other(value):", "other"),
        ("def other(value):", "[0 for other in ()]\n\n\ndef _other(value):", "other"),
        ("def other(value):", "x = [0 for other in ()]\n\n\ndef _other(value):", "other"),
        ("    def open(self):", "    open = None\n\n    def _open(self):", "Box.open"),
        ("        raise NotImplementedError\n", "        raise NotImplementedError\n\n    open = None\n", "Box.open"),
        ("    return value + 1\n", "    return value + 1\n\n\nother: object = None\n", "other"),
        ("    return value + 1\n", "    return value + 1\n\n\n(other := None)\n", "other"),
        ("    return value + 1\n", "    return value + 1\n\n\nother, _ = None, 0\n", "other"),
        ("    return value + 1\n", "    return value + 1\n\n\nfor other in [None]:\n    pass\n", "other"),
    ],
)
def test_what_gold_keeps_may_be_neither_removed_nor_emptied(old, new, name):
    assert f"m.py: {name}" in missing(GOLD.replace(old, new))


def test_a_deleted_file_has_no_names():
    assert {"m.py: f", "m.py: Box"} >= set(missing(None)) - {
        "m.py: other",
        "m.py: outer",
        "m.py: same",
        "m.py: Box.open",
        "m.py: Box.close",
    }
    assert "m.py: other" in missing(None)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("", ""),
        ("    check(value)\n    return value + 1", "    return 1 + value"),
        ("    return items", '    """Return the same."""\n    return items'),
        ("    check(value)\n", "    if value is None:\n        return None\n    check(value)\n"),
        ("    return value * 2", "    return value << 1"),
        ("def other(value):", f"{MUTED.replace('None', 'function(*given)')}@quiet\ndef other(value):"),
        ("        raise NotImplementedError", "        raise NotImplementedError(self)"),
        ("def other(value):", "from n import other\ndef _other(value):"),
        ("def other(value):", "from n import *\ndef _other(value):"),
        ("class Box:\n    def open(self):", "class Box(Base):\n    def _open(self):"),
        ("def _private(value):\n    return value * 2", ""),
        ("def other(value):", "other = lambda value: value + 1\ndef _other(value):"),
        ("def other(value):", "other: object\ndef other(value):"),
        ("    return value + 1\n", "    return value + 1\n\n\nother: object\n"),
        ("def other(value):", "other, _ = g(), 0\n\n\ndef _other(value):"),
        ("def other(value):", "for other in FOUND:\n    pass\n\n\ndef _other(value):"),
        ("def other(value):", "if True:\n  def other(value):\n    return value + 1\ndef _other(value):"),
    ],
)
def test_what_is_bound_otherwise_is_not_missing(old, new):
    assert missing(GOLD.replace(old, new)) == []


def test_other_files_and_text_that_is_no_python_say_nothing():
    assert missing(None, "notes.txt") == []
    assert missing("def (", "m.py") == []


BASES = "class Base:\n    def reset(self):\n        self.items = []\n"
CHILD = "\n\nclass Middle(Base):\n    pass\n\n\nclass Child(Middle):\n    x = 1\n"
STUB = "\n    def clear(self):\n        raise NotImplementedError\n"
CLEAR = "\n    def clear(self):\n        self.items.clear()\n"


@pytest.mark.parametrize(
    ("base", "new", "names"),
    [
        (BASES + CHILD + CLEAR, BASES + CLEAR + CHILD, []),
        (BASES + CHILD + CLEAR, BASES + CHILD, ["Child.clear"]),
        (BASES + CHILD + CLEAR, BASES + CLEAR.replace("self.items.clear()", "pass") + CHILD, ["Child.clear"]),
        # The base class has another method of the name: what the child does is gone.
        (BASES + CLEAR.replace("clear()", "pop()") + CHILD + CLEAR, BASES + CLEAR.replace("clear()", "pop()") + CHILD,
         ["Child.clear"]),
        (BASES + STUB + CHILD + CLEAR, BASES + CLEAR + CHILD, []),
        (BASES + STUB + CHILD + CLEAR, BASES + STUB + CHILD, ["Child.clear"]),
        (BASES + CHILD.replace("(Base)", "(Base[int])") + CLEAR, BASES + CLEAR + CHILD.replace("(Base)", "(Base[int])"),
         []),
    ],
)  # fmt: skip
def test_a_method_may_move_to_a_base_class_of_the_file(base, new, names):
    task = scripted_task(base_files={"m.py": base}, gold_files={"m.py": base + "y = 1\n"})
    config = GradingConfig()
    submission = Submission(task, {"m.py": new})
    assert missing_names(pin(permit(submission, config), Path("/nowhere"), config)) == [
        f"m.py: {name}" for name in names
    ]

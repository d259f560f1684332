"""Windows: labels are dense, docstrings and blank lines are folded, file lines stay reachable."""

import pytest

from repairgym.agent.tools.window import MAX_LINES, docstring_lines, open_window
from repairgym.agent.tools.window_edits import CompactEdit, change_of, resolve_edit

TEXT = '''\
def f(x):
    """One.

    Two."""

    # why
    return x
'''


def test_folds_docstrings_and_blank_lines():
    window = open_window("f.py", TEXT, 1)
    assert window.line_numbers == (1, 6, 7)
    assert window.render(TEXT) == "@1 def f(x):\n@2    # why\n@3    return x"


def test_labels_and_lines_are_inverse():
    window = open_window("f.py", TEXT, 1)
    assert [window.line_number(k) for k in (0, 1, 3, 4)] == [None, 1, 7, None]
    assert [window.label(n) for n in (1, 2, 7)] == [1, None, 3]


def test_a_long_file_is_cut():
    text = "".join(f"x{n} = {n}\n" for n in range(100))
    assert len(open_window("f.py", text, 50).line_numbers) == MAX_LINES
    assert open_window("f.py", text, 99).line_numbers == (99, 100)
    assert open_window("f.py", text, 101).line_numbers == ()


def test_a_broken_file_is_shown_with_its_docstrings():
    assert docstring_lines('def f(:\n    """x"""\n') == set()


def test_a_lone_docstring_is_code():
    assert docstring_lines('def f():\n    """only"""\n') == set()


@pytest.mark.parametrize("odd", ["\x0c", "\u2028", "\x85", "\x1c"])
def test_lines_are_those_of_python(odd):
    """`str.splitlines` ends a line at each of these, Python and its tracebacks at none."""
    text = f'#{odd}#\n{odd if odd == chr(12) else ""}\ndef f(a):\n    """Doc."""\n    return a\n'
    window = open_window("f.py", text, 1)
    assert window.line_numbers == (1, 3, 5)
    assert window.render(text) == f"@1 #{odd}#\n@2 def f(a):\n@3    return a"
    assert open_window("f.py", text, 5).line_numbers == (5,)
    meant = resolve_edit(text, window, CompactEdit(3, "a", "b"))
    change = change_of("edit", text, window, str(meant))
    assert not isinstance(change, str)
    assert change.text == text.replace("return a", "return b")

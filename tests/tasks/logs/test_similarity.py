"""Same error or a different one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from repairgym.records import MainError
from repairgym.tasks.logs.similarity import is_same_error, normalize, shape


def error(message, error_class="dependency", path="", line=None):
    return MainError(error_class=error_class, message=message, path=path, line=line)


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (error("No module named 'a'", path="m.py", line=3), error("No module named 'a'", path="m.py", line=9)),
        (error("a==1.2 needs b>=3"), error("a==1.3 needs b>=4")),
        (error("/tmp/x1/shop/pytest.ini: bad", "configuration"), error("/src/pytest.ini: bad", "configuration")),
        (error("<A at 0x7f12>", "other"), error("<A at 0x9a>", "other")),
        (error("assert 3 == 4", "test", "t.py::test_a"), error("assert [1, 'a'] == []", "test", "t.py::test_a")),
        (error("assert 3 == 4", "test", "t.py::test_a"), error("AssertionError: assert 5 == 4", "test")),
        (error("assert None == {'a': (1, 2)}", "test"), error("assert -2.5e3 == b'ab'", "test")),
        (error("AssertionError: 3 != 4", "test", "t.py::test_a"), error("AssertionError: 'x' != 4", "test")),
        (error("assert \"it's\" == 'cut off", "test"), error("assert 'a' == 'b'", "test")),
        (error("assert <A at 0x7f>.x == 1", "test"), error("assert <A at 0x8e>.x == 2", "test")),
    ],
)
def test_the_same(left, right):
    assert is_same_error(left, right)
    assert is_same_error(right, left)


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (error("No module named 'a'"), error("No module named 'b'")),
        (error("No module named 'a'", path="m.py"), error("No module named 'a'", path="n.py")),
        (error("F401 `os` unused", "build_tool", "m.py"), error("F821 undefined `x`", "build_tool", "m.py")),
        (error("assert 3 == 4", "test", "t.py::test_a"), error("assert 3 == 4", "test", "t.py::test_b")),
        (error("assert 3 == 4", "test", "t.py::test_a"), error("TypeError: x", "test", "t.py::test_a")),
        (error("assert 3 == 4", "test", "t.py::test_a"), error("assert 3 in [4]", "test", "t.py::test_a")),
        (error("assert 3 == 4", "test", "t.py::test_a"), error("timed out", "test", "t.py::test_a")),
        (error("AssertionError: too few", "test", "t.py::t"), error("AssertionError: too many", "test", "t.py::t")),
        (error("NameError: name 'a' is not defined", "test"), error("NameError: name 'b' is not defined", "test")),
        (error("assert 3 == 4", "test", "t.py::test_a[1]"), error("assert 3 == 4", "test", "t.py::test_a[2]")),
        (error("assert 3 == 4", "test", "a/t.py::test_a"), error("assert 3 == 4", "test", "b/t.py::test_a")),
        (error("bad", "test"), error("bad", "other")),
    ],
)
def test_a_different_one(left, right):
    assert not is_same_error(left, right)


@given(st.text(max_size=60), st.text(max_size=60))
def test_reflexive_symmetric_and_stable(left, right):
    assert is_same_error(error(left), error(left))
    assert is_same_error(error(left), error(right)) == is_same_error(error(right), error(left))
    assert normalize(normalize(left)) == normalize(left)


@given(st.text(alphabet="assert =[]{}(),'\"\\#0x12.eTrue\n", max_size=60))
def test_a_shape_has_an_end(text):
    assert shape(f"assert {text}") == shape(f"AssertionError: assert {text}")

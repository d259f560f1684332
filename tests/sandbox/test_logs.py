"""Logs of test programs, and the names in them."""

import pytest

from repairgym.sandbox.logs import parse_log

PYTEST = """
tests/test_a.py::test_slow PASSED                            [ 50%]
tests/test_a.py::test_no PASSED
=========================== short test summary info ============================
PASSED tests/test_a.py::test_words[a b]
FAILED tests/test_a.py::test_no - AssertionError: PASSED tests/test_a.py::test_never
ERROR tests/test_b.py::TestC::test_d - OSError
PASSED tests/test_a.py::test_words[c - d]
FAILED tests/test_a.py::test_words[e:: - [f] g] - assert [1] - [2] == [3]
FAILED tests/test_a.py::test_words[h - i]
SKIPPED [1] tests/test_a.py:3: not today
XFAIL tests/test_a.py::test_known
2 passed, 1 failed
"""
UNITTEST = """
test_save (shop.tests.Orders) ... ok
A saved order is there. ... FAIL
test_gone (shop.tests.Orders.test_gone) ... skipped 'not today'
test_parts (shop.tests.Orders) ... test_next (shop.tests.Orders) ... ok
======================================================================
ERROR: test_parts (shop.tests.Orders) (part=1)
Ran 5 tests in 0.1s
"""
SYMPY = """
sympy/core/tests/test_expr.py[4]
test_basic ok
test_wrong F
test_known f
test_slow s                                                                [FAIL]
"""


@pytest.mark.parametrize(
    ("parser", "text", "expected"),
    [
        (
            "pytest",
            PYTEST,
            {
                "tests/test_a.py::test_slow": "passed",
                "tests/test_a.py::test_words[a b]": "passed",
                "tests/test_a.py::test_words[c - d]": "passed",
                "tests/test_a.py::test_words[e:: - [f] g]": "failed",
                "tests/test_a.py::test_words[h - i]": "failed",
                "tests/test_a.py::test_no": "failed",
                "tests/test_b.py::TestC::test_d": "error",
                "tests/test_a.py::test_known": "passed",
            },
        ),
        (
            "unittest",
            UNITTEST,
            {
                "test_save (shop.tests.Orders)": "passed",
                "A saved order is there.": "failed",
                "test_gone (shop.tests.Orders.test_gone)": "skipped",
                # What such a log loses: the open line of a failed part swallows the next test.
                "test_parts (shop.tests.Orders) ... test_next (shop.tests.Orders)": "passed",
                "test_parts (shop.tests.Orders) (part=1)": "error",
            },
        ),
        (
            "sympy",
            SYMPY,
            {"test_basic": "passed", "test_wrong": "failed", "test_known": "skipped", "test_slow": "skipped"},
        ),
    ],
)
def test_a_log_has_the_names_of_its_program(parser: str, text: str, expected: dict[str, str]) -> None:
    assert {name: str(result.outcome) for name, result in parse_log(parser, text).items()} == expected

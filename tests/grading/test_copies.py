"""Layouts: words, places and copyable tests of a test file."""

import ast

from repairgym.grading.copies import function_at, layout_of

TEXT = '''import unittest


def helper():
    return 1


def test_first_value():
    assert helper()


def test_leaves():
    return


def test_counts():
    assert len(registry._entries) == 1


def test_keeps():
    global helper


class TestCase(unittest.TestCase):
    def test_method(self):
        text = """
one
"""
        self.assertTrue(text)

    def test_parent(self):
        super().setUp()

    @unittest.skip("no")
    def test_marked(self):
        pass
'''


def test_words_places_and_copyable_tests():
    layout = layout_of(TEXT)
    assert layout.words == ("counts", "first", "keeps", "leaves", "marked", "method", "parent", "value")
    lines = TEXT.splitlines()
    assert (layout.end, layout.places[0]) == (len(lines), len(lines))
    before = {lines[place] for place in layout.places[1:]}
    assert before == {
        *(f"def test_{name}():" for name in ("leaves", "counts", "keeps")),
        "class TestCase(unittest.TestCase):",
    }
    assert set(layout.copyable) == {"test_first_value", "TestCase::test_method"}


def test_a_copy_is_the_whole_function_and_lines_that_do_not_parse_alone_give_none():
    layout = layout_of(TEXT)
    alone = function_at(TEXT, layout.copyable["test_first_value"])
    assert alone is not None
    assert ast.unparse(alone) == "def test_first_value():\n    assert helper()"
    method = function_at(TEXT, layout.copyable["TestCase::test_method"])
    assert method is not None
    assert "'\\none\\n'" in ast.unparse(method)
    assert function_at(TEXT, (3, 4)) is None


def test_a_text_is_read_once():
    assert layout_of(TEXT) is layout_of(TEXT)
    assert layout_of(TEXT + "\npytestmark = 1\n") is None
    assert layout_of("def f(:\n") is None

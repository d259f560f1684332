"""Moved lines: the same code, at other lines and with another text."""

import ast
import inspect
import linecache
import runpy
import traceback

import pytest

from repairgym.tasks.replay.moved import with_moved_lines

MODULE = '''\
#!/usr/bin/python
# -*- coding: utf-8 -*-
"""A module,
with a text of two lines."""
from __future__ import annotations
import warnings; import logging

text = """one
# two
"""; other = 1  # a note


@staticmethod
def divide(left,
           right):
    if right == 7: return \\
        left
    else:
        # nothing
        warnings.warn("divided")
        return left / right'''


def loaded(text, path):
    path.write_text(text, encoding="utf-8")
    linecache.checkcache()
    return runpy.run_path(str(path))


def told(names, path):
    """What code can tell of its own lines: of a traceback, a warning, a function."""
    function = names["divide"].__func__
    try:
        function(1, 0)
    except ZeroDivisionError as error:
        lines = traceback.format_exc(), [part.line for part in traceback.extract_tb(error.__traceback__)]
    with pytest.warns(UserWarning, match="divided") as caught:
        function(1, 2)
    own = [warning.lineno for warning in caught if warning.filename == str(path)]
    return *lines, own, function.__code__.co_firstlineno, inspect.getsource(function), path.stat().st_size


@pytest.mark.filterwarnings("ignore:divided")
def test_everything_that_code_tells_of_its_lines_differs(tmp_path):
    path = tmp_path / "module.py"
    here = told(loaded(MODULE, path), path)
    there = told(loaded(with_moved_lines({"module.py": MODULE})["module.py"], path), path)
    assert all(one != other for one, other in zip(here, there, strict=True))


@pytest.mark.parametrize(
    "text",
    [
        MODULE,
        MODULE.replace("\n", "\r\n"),
        "x = 1",
        "class A:\n\tdef f(self):\n\t\tpass\n\n\n",
        "try: pass\nfinally: pass\n",
    ],
)
def test_the_code_stays_the_same(text):
    moved = with_moved_lines({"m.py": text})["m.py"]
    assert moved != text
    assert ast.dump(ast.parse(moved)) == ast.dump(ast.parse(text))


@pytest.mark.parametrize(
    ("path", "text"), [("m.py", "print 1\n"), ("m.py", "x = '''"), ("m.py", None), ("m.cfg", "a = 1\n")]
)
def test_what_is_no_python_code_stays_as_it_is(path, text):
    assert with_moved_lines({path: text}) == {path: text}

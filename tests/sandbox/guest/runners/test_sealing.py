"""Sealed test files: the text has no bodies of tests and the same lines; the code of a body runs as it stands."""

import types

import pytest

from repairgym.sandbox.guest.runners.sealing import REACHED, SourceFile, compile_sealed, seal

SOURCE = b'''import functools

ANSWER = "data stays"


def check(value):
    assert value == "code of no test stays"


@functools.wraps(
    check
)
def test_decorated():
    text = """several
    lines"""
    assert text == "decorated secret"  # a comment


class TestMore(object):
    def test_method(self): assert self.name == "one line secret"

    def test_super(self):
        assert super().__repr__() == "super secret"

    def test_other(self):
        assert "not wanted secret"

    def test_inner_class(self):
        class Inner(dict):
            def __init__(self):
                super().__init__()

        assert Inner() == {}


def test_named():
    check("a body that another one needs")


def test_early(flag=False):
    if flag:
        return
    test_named()
'''
WANTED = {"test_decorated", "test_method", "test_super", "test_inner_class", "test_early"}


def sealed_alone(source, wanted):
    file = SourceFile(source)
    return seal(file, wanted, set(file.names_elsewhere()))


def opened(sealed, source=SOURCE, path="test_m.py"):
    """The module of the sealed text, with the bodies put back, and the list of what their ends told."""
    module, told = types.ModuleType("test_m"), []
    exec(compile(sealed.stub, path, "exec"), module.__dict__)  # noqa: S102 - the sealed text is what is looked at
    setattr(module, REACHED, told.append)
    codes = compile_sealed(sealed, source, path)
    functions = [part for part in (*vars(module).values(), *vars(module.TestMore).values()) if callable(part)]
    for function in functions:
        code = getattr(function, "__code__", None)
        if code is not None and (code.co_firstlineno, code.co_name) in codes:
            function.__code__ = codes[code.co_firstlineno, code.co_name]
    return module, told


def test_bodies_are_gone_and_lines_stay():
    sealed = sealed_alone(SOURCE, WANTED)
    assert b"secret" not in sealed.stub
    assert b"code of no test stays" in sealed.stub
    assert b"data stays" in sealed.stub
    assert b"a body that another one needs" in sealed.stub
    assert {name for _, name in sealed.wanted} == WANTED
    old, new = SOURCE.splitlines(), sealed.stub.splitlines()
    assert len(old) == len(new)
    assert [line for line in old if b"def " in line and b"assert" not in line and b"__init__" not in line] == [
        line for line in new if b"def " in line and b"raise" not in line
    ]


def test_a_body_that_was_not_handed_out_fails():
    module = types.ModuleType("test_m")
    stub = sealed_alone(SOURCE, WANTED).stub
    exec(compile(stub, "test_m.py", "exec"), module.__dict__)  # noqa: S102 - the sealed text is what is looked at
    with pytest.raises(RuntimeError, match="not started"):
        module.TestMore().test_super()


def test_bodies_run_when_put_back_and_tell_that_they_came_to_their_end():
    sealed = sealed_alone(SOURCE, WANTED)
    module, told = opened(sealed)
    test = module.TestMore()
    test.test_inner_class()
    with pytest.raises(AssertionError):
        test.test_super()
    test.name = "one line secret"
    test.test_method()
    module.test_early(flag=True)
    numbers = {name: number for (_, name), number in sealed.wanted.items()}
    assert told == [numbers["test_inner_class"], numbers["test_method"]]
    # One that may leave before its end, and one whose decorator could pass without it, tell nothing.
    assert (numbers["test_early"], numbers["test_decorated"]) == ("", "")


def test_a_file_with_expected_failures_tells_nothing():
    sealed = sealed_alone(b"import pytest\n\n@pytest.mark.xfail\ndef test_a():\n    assert 0\n", {"test_a"})
    assert list(sealed.wanted.values()) == [""]


@pytest.mark.parametrize(
    "source",
    [
        b"def test_a(:\n",
        b"# -*- coding: latin-1 -*-\ndef test_a():\n    pass\n",
        b"import inspect\ndef test_a():\n    inspect.getsource(test_a)\n",
        b"def test_a(): pass; x = 1\n\nVALUE = 1; test_a()\n",
        b"VALUE = 1\n",
    ],
)
def test_some_files_are_left_alone(source):
    assert sealed_alone(source, {"test_a"}) is None


def test_utf_8_may_be_declared():
    text = "# -*- coding: utf-8 -*-\ndef test_a():\n    assert 'ä' == 'ö'\n"
    assert "ö" not in sealed_alone(text.encode(), {"test_a"}).stub.decode()


def test_without_names_every_test_keeps_its_code() -> None:
    source = b"def test_a():\n    assert 1\n\n\nclass TestB:\n    def test_c(self):\n        assert 2\n"
    sealed = sealed_alone(source, None)
    assert sealed is not None
    assert {name for _, name in sealed.wanted} == {"test_a", "test_c"}


def test_a_body_that_another_file_names_stays() -> None:
    first, second = (
        SourceFile(b"def test_a():\n    assert 1\n\ndef test_b():\n    assert 2\n"),
        SourceFile(b"x.test_a()\n"),
    )
    sealed = seal(first, None, {*first.names_elsewhere(), *second.names_elsewhere()})
    assert sealed is not None
    assert {name for _, name in sealed.wanted} == {"test_b"}
    assert b"assert 1" in sealed.stub


def test_the_words_of_imports_are_known() -> None:
    source = b"from package.test_base import TestBase as Base\nfrom . import (\n    test_more,\n)\nx = test_none\n"
    assert {"test_base", "test_more"} <= SourceFile(source).imported
    assert "test_none" not in SourceFile(source).imported


def test_assertions_say_their_own_text():
    source = b"def test_a():\n    assert 1 + 1 == 3  # wrong\n\ndef test_b():\n    assert [\n        0] == 1\n"
    sealed = sealed_alone(source, {"test_a", "test_b"})
    texts = {const for code in compile_sealed(sealed, source, "t.py").values() for const in code.co_consts}
    assert {"assert 1 + 1 == 3", "assert ["} <= texts

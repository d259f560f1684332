"""The main error of logs that real commands wrote (fixture/: head and tail, folders renamed)."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from repairgym.records import MainError
from repairgym.tasks.logs.main_error import (
    ERROR_CLASSES,
    MAX_ERRORS,
    MAX_MESSAGE_CHARS,
    classify,
    is_same_error,
    normalize,
    parse_errors,
    parse_main_error,
    shape,
)

FIXTURE = Path(__file__).parent / "fixture"
EXPECTED = {
    "cargo_dep": ("dependency", "", None, "no matching package named `serdeish` found"),
    "cargo_type": ("build_tool", "src/main.rs", 1, "error[E0308]: mismatched types"),
    "compileall": ("build_tool", "shop/prices.py", 2, "SyntaxError: '(' was never closed"),
    "import_chained": ("other", "/shop/shop/prices.py", 5, "ValueError: not a table"),
    "import_dep": ("dependency", "/shop/shop/prices.py", 1, "ModuleNotFoundError: No module named 'yamlish'"),
    "import_missing": ("dependency", "/shop/shop/prices.py", 1, "ModuleNotFoundError: No module named 'shop.money'"),
    "import_name": ("dependency", "/shop/shop/prices.py", 1, "ImportError: cannot import name 'pathe' from 'os'"),
    "javac": ("build_tool", "j/A.java", 1, "error: cannot find symbol"),
    "make_c": ("build_tool", "a.c", 1, "error: ‘retrun’ undeclared (first use in this function)"),
    "make_target": ("build_tool", "", None, "No rule to make target 'nothing'.  Stop."),
    "mypy": ("build_tool", "shop/prices.py", 1, "error: Function is missing a type annotation"),
    "mypy_config": ("dependency", "mypy.ini", 2, 'error: Error importing plugin "no_such_plugin"'),
    "net": ("environment", "", None, "urllib.error.URLError: <urlopen error [Errno -2] Name or service not known>"),
    "node_missing": ("dependency", "/shop/n/a.js", 1, "Error: Cannot find module './missing'"),
    "pip_backend_missing": ("dependency", "", None, "ModuleNotFoundError: No module named 'flit_core'"),
    "pip_bad_toml": ("configuration", "", None, "tomllib.TOMLDecodeError: Expected ']'"),
    "pip_bad_version": ("configuration", "", None, "configuration error: `project.version` must be pep440"),
    "pip_build_dep": ("dependency", "", None, "No matching distribution found for flit_core"),
    "pip_c_error": ("build_tool", "fast.c", 2, "error: ‘prise’ undeclared (first use in this function)"),
    "pip_c_header": ("build_tool", "fast.c", 1, "fatal error: shop_prices.h: No such file or directory"),
    "pip_conflict": ("dependency", "", None, "Cannot install -r req.txt (line 1) and -r req.txt (line 2)"),
    "pip_flat_layout": ("configuration", "", None, "Multiple top-level packages discovered in a flat-layout"),
    "pip_no_project": ("configuration", "", None, "Invalid requirement: './nothing_here'"),
    "pip_require_hashes": ("dependency", "", None, "Can't verify hashes for these file:// requirements"),
    "pip_requires_python": ("version", "", None, "Package 'shop' requires a different Python"),
    "pip_venv_perm": ("permission", "", None, "Error [Errno 13] Permission denied: '/venv/bin/python'"),
    "py_compile": ("build_tool", "shop/prices.py", 2, "SyntaxError: '(' was never closed"),
    "py_memory": ("environment", "", None, "MemoryError"),
    "py_nofile": ("dependency", "", None, "No module named no_such_module"),
    "py_perm": ("permission", "", None, "PermissionError: [Errno 13] Permission denied: '/etc/shadow'"),
    "py_version": ("version", "", None, "shop requires Python 3.99 or newer"),
    "pytest_collect": ("dependency", "tests/test_b.py", None, "ModuleNotFoundError: No module named 'no_such'"),
    "pytest_failed": ("test", "tests/test_prices.py::test_total", None, "assert 4 == 3"),
    "pytest_ini": ("configuration", "", None, "/shop/pytest.ini: 'minversion' requires pytest-99"),
    "pytest_line": ("test", "tests/test_prices.py::test_total", None, "assert 4 == 3"),
    "pytest_usage": ("configuration", "", None, "unrecognized arguments: --no-such-option"),
    "ruff_concise": ("build_tool", "shop/lint.py", 1, "I001 [*] Import block is un-sorted or un-formatted"),
    "ruff_config": ("configuration", "", None, "TOML parse error at line 1, column 11"),
    "ruff_full": ("build_tool", "shop/lint.py", 1, "I001 [*] Import block is un-sorted or un-formatted"),
    "setup_py_import": ("dependency", "", None, "ModuleNotFoundError: No module named 'numpyish'"),
    "sh_no_file": ("environment", "", None, "./gradlew: No such file or directory"),
    "sh_not_found": ("environment", "", None, "gradlew: not found"),
    "sh_perm": ("permission", "", None, "./locked.sh: Permission denied"),
    "unittest": ("test", "/shop/tests/test_u.py", 5, "AssertionError: 4 != 3"),
    "uv_conflict": ("dependency", "", None, "Because only shop-a==1.0 is available"),
}


@pytest.mark.parametrize("name", sorted(path.stem for path in FIXTURE.iterdir()))
def test_real_logs(name):
    error = parse_main_error((FIXTURE / f"{name}.txt").read_text(encoding="utf-8"))
    error_class, path, line, message = EXPECTED[name]
    assert (error.error_class, error.path, error.line) == (error_class, path, line)
    assert error.message.startswith(message)


def test_colours_do_not_hide_an_error():
    error = parse_main_error("\x1b[1m\x1b[31mE       assert 1 == 2\x1b[0m\n")
    assert (error.message, error.error_class) == ("assert 1 == 2", "test")


def test_a_log_without_a_known_form_has_its_last_line():
    assert parse_main_error("hello\nall is lost\n\n").message == "all is lost"
    assert parse_main_error("\n  \n") is None


def test_huge_logs_are_bounded():
    error = parse_main_error("x" * 3_000_000 + "\n" + "error: " + "y" * 100_000)
    assert len(error.message) == MAX_MESSAGE_CHARS


@pytest.mark.parametrize(
    ("message", "likely", "expected"),
    [
        ("ModuleNotFoundError: No module named 'a'", "test", "dependency"),
        ("error: Incompatible return value", "build_tool", "build_tool"),
        ("assert 1 == 2", "other", "test"),
        ("Could not install packages due to an OSError: [Errno 28] No space left", "other", "installation"),
        ("[Errno 28] No space left on device", "other", "environment"),
        ("[Errno 30] Read-only file system: 'a'", "other", "permission"),
        ("something else", "other", "other"),
    ],
)
def test_the_first_class_that_matches_counts(message, likely, expected):
    assert classify(message, likely) == expected


def test_every_class_of_the_paper_is_reached():
    assert {value[0] for value in EXPECTED.values()} | {"installation"} == set(ERROR_CLASSES)


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


@pytest.mark.parametrize(
    ("log", "expected"),
    [
        (
            "a.c:3:5: error: 'x' undeclared\n    3 | x;\na.c:9:5: error: 'x' undeclared\nb.c:1:1: fatal error: y.h: no",
            [("a.c", "error: 'x' undeclared"), ("b.c", "fatal error: y.h: no")],
        ),
        (
            "E   KeyError: 'a'\nE   more\n\nE   NameError: name 'x'\nFAILED t.py::a\nFAILED t.py::b - NameError",
            [("t.py::a", "KeyError: 'a'"), ("t.py::b", "NameError: name 'x'")],
        ),
        # One summary line for two failures names the first only.
        ("E   KeyError: 'a'\n\nE   TypeError: b\nFAILED t.py::a", [("t.py::a", "KeyError: 'a'"), ("", "TypeError: b")]),
        ("FAILED t.py::a - assert 1 == 2\nFAILED t.py::b - assert 3 == 4\n", [("t.py::a", "assert 1 == 2")]),
        # Parameters may hold the mark, brackets and colons; a message may end with a bracket.
        (
            """FAILED t.py::sub[x - y] - assert 1 in [2]
ERROR t.py::A::b[c::d - [e]] - ValueError: no [f] - g]
FAILED t.py::h - KeyError: [1]
FAILED t.py::i[j]""",
            [
                ("t.py::sub[x - y]", "assert 1 in [2]"),
                ("t.py::A::b[c::d - [e]]", "ValueError: no [f] - g]"),
                ("t.py::h", "KeyError: [1]"),
                ("t.py::i[j]", "FAILED t.py::i[j]"),
            ],
        ),
        # A traceback is one error, its last line.
        ("KeyError: 1\nDuring handling\nTypeError: no\n", [("", "TypeError: no")]),
        ("", []),
    ],
)
def test_all_errors_of_a_log(log, expected):
    found = parse_errors(log)
    assert [(error.path, error.message) for error in found] == expected
    assert parse_main_error(log) == next(iter(found), None)


def test_a_log_full_of_errors_is_read_quickly():
    log = "\n".join(f"f{number}.c:1:1: error: e{number}" for number in range(20_000))
    assert len(parse_errors(log)) == MAX_ERRORS

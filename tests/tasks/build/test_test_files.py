from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from repairgym.errors import TaskError
from repairgym.records import TestOutcome, TestRequest, TestResult, TestRun
from repairgym.sandbox.base import SandboxSpec
from repairgym.tasks.build.test_files import (
    conftest_paths,
    cut_functions,
    cuttable_names,
    file_of,
    function_id,
    functions_of,
    held_tests,
    inherited_tests,
    test_sources,
    trace_suite,
)
from repairgym.testing.scripted import ScriptedBackend

SOURCE = """import pytest


@pytest.mark.parametrize(
    "x", [1, 2]
)
def test_a(x):
    assert x


class TestB:
    def test_c(self):
        assert 1

    async def test_d(self):
        assert 2


def helper():
    return 1


def test_e():
    assert helper()
"""


def test_ids_keep_whole_parameters() -> None:
    test_id = "tests/test_a.py::TestB::test_c[x::y [z] a b]"
    assert function_id(test_id) == "tests/test_a.py::TestB::test_c"
    assert file_of(test_id) == "tests/test_a.py"
    assert functions_of([test_id, "tests/test_a.py::TestB::test_c[2]", "t.py::a"]) == (
        "tests/test_a.py::TestB::test_c",
        "t.py::a",
    )


def test_cut_takes_decorators_and_leaves_the_rest_as_it_was() -> None:
    cut = cut_functions(SOURCE, ["test_a", "TestB::test_c"])
    assert cuttable_names(cut) == {"TestB::test_d", "test_e"}
    assert "parametrize" not in cut
    assert cut.endswith("def helper():\n    return 1\n\n\ndef test_e():\n    assert helper()\n")


def test_class_that_loses_all_its_tests_still_parses() -> None:
    cut = cut_functions(SOURCE, ["TestB::test_c", "TestB::test_d"])
    assert "class TestB:\n    pass\n" in cut
    assert cuttable_names(cut) == {"test_a", "test_e"}


@pytest.mark.parametrize("name", ["helper", "TestB::test_inherited", "test_missing"])
def test_cut_refuses_what_others_use_or_the_file_does_not_define(name: str) -> None:
    with pytest.raises(TaskError, match=r"still uses helper|not defined"):
        cut_functions(SOURCE, [name])


def test_conftest_files_of_every_folder_above() -> None:
    assert conftest_paths(["a/b/test_c.py"]) == {"conftest.py", "a/conftest.py", "a/b/conftest.py"}


INHERITED = """import unittest


class Mixin:
    def test_one(self):
        self.check(1)

    def test_two(self):
        self.check(2)


class TestA(Mixin, unittest.TestCase):
    limit = 1

    def test_two(self):
        self.check(3)


class TestB(Mixin, unittest.TestCase):
    pass


class TestC(TestB):
    pass
"""


def test_inherited_tests_of_classes_without_heirs_can_be_masked() -> None:
    assert inherited_tests(INHERITED) == {("TestA", "test_one"), ("TestC", "test_one"), ("TestC", "test_two")}
    assert inherited_tests("broken(:") == frozenset()


def test_a_file_holds_inherited_tests_and_no_masked_or_generated_ones() -> None:
    whole = held_tests(INHERITED + "TestMade = make_class()\n")
    assert {"TestA::test_one", "TestA::test_two", "TestB::test_one", "Mixin::test_one"} < whole
    assert not any(name.startswith("TestMade") for name in whole)
    assert whole - held_tests(cut_functions(INHERITED, ["TestA::test_one"])) == {"TestA::test_one"}


def test_a_mask_hides_a_test_in_one_class_and_leaves_it_in_the_others() -> None:
    seen: dict[str, type] = {}
    exec(compile(cut_functions(INHERITED, ["TestA::test_one"]), "t.py", "exec"), seen)  # noqa: S102
    assert seen["TestA"].test_one is None  # type: ignore[attr-defined]
    assert callable(seen["TestB"].test_one)  # type: ignore[attr-defined]
    assert callable(seen["TestA"].test_two)  # type: ignore[attr-defined]


def test_an_inherited_test_whose_definition_is_cut_needs_no_mask() -> None:
    cut = cut_functions(INHERITED, ["Mixin::test_one", "TestA::test_one", "TestC::test_two"])
    assert "test_one" not in cut
    assert held_tests(INHERITED) - held_tests(cut) == {
        *(f"{name}::test_one" for name in ("Mixin", "TestA", "TestB", "TestC")),
        "TestC::test_two",
    }


def test_source_of_tests_has_their_decorators_and_comments(tmp_path: Path) -> None:
    (tmp_path / "test_a.py").write_text('@mark("x")\ndef test_a():  # issue7\n    pass\n\n\ndef test_b():\n    pass\n')
    text = test_sources(tmp_path, ["test_a.py::test_a[1]"])
    assert "issue7" in text
    assert "@mark" in text
    assert "test_b" not in text


def result(outcome: TestOutcome = TestOutcome.PASSED, duration_s: float = 0.1) -> TestResult:
    return TestResult(outcome=outcome, duration_s=duration_s)


def test_usable_are_passed_quick_tests_of_files(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "test_a.py").write_text("def test_one(): pass\ndef test_two(): pass\ndef test_three(): pass\n")
    results = {
        "docs": result(TestOutcome.ERROR),  # a folder whose conftest breaks
        "test_a.py": result(),
        "test_a.py::test_one": result(),
        "test_a.py::test_two": result(TestOutcome.FAILED),
        "test_a.py::test_three": result(duration_s=9.0),
    }
    backend = ScriptedBackend(lambda files, request: TestRun(results=results, exit_status=1))
    spec = SandboxSpec(environment=tmp_path, tree=tmp_path)
    suite = asyncio.run(trace_suite(backend, spec, TestRequest(test_ids=("test_a.py",)), max_test_s=1.0))
    assert list(suite.num_executed) == ["test_a.py::test_one"]


def test_a_suite_without_usable_tests_tells_its_first_error(tmp_path: Path) -> None:
    output = "start\nError: Cannot find module 'tap'\n" + "    at require\n" * 40
    backend = ScriptedBackend(lambda files, request: TestRun(results={}, exit_status=1, output_tail=output))
    spec = SandboxSpec(environment=tmp_path, tree=tmp_path)
    with pytest.raises(TaskError, match="First error: Error: Cannot find module 'tap'"):
        asyncio.run(trace_suite(backend, spec, TestRequest(test_ids=("test_a.py",)), max_test_s=1.0))

from __future__ import annotations

import pytest

from mendwright.errors import TaskError
from mendwright.tasks.testfiles import (
    conftest_paths,
    cut_functions,
    cuttable_names,
    file_of,
    function_id,
    functions_of,
)

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

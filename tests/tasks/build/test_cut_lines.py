"""Hidden test functions are cut where Python counts their lines, also in files with form feeds."""

from __future__ import annotations

import pytest

from repairgym.errors import TaskError
from repairgym.tasks.build.test_files import cut_functions

SOURCE = "def test_a():\n    x = 1\n    assert x == 1\n\n\ndef test_b():\n    assert True\n"


@pytest.mark.parametrize("feed", ["\x0c\n", "# \u2028\n", "\x0c\n\x0c\n"])
def test_a_function_behind_an_odd_line_end_is_cut_whole(feed: str) -> None:
    cut = cut_functions(feed + SOURCE, ["test_a"])
    assert "x == 1" not in cut
    assert "test_a" not in cut
    assert cut.endswith("def test_b():\n    assert True\n")


def test_of_two_functions_of_one_name_none_may_stay() -> None:
    with pytest.raises(TaskError, match="still uses test_a"):
        cut_functions(SOURCE + "\n\ndef test_a():\n    assert 2\n", ["test_a"])

"""A task that needs no sandbox until something must run."""

import pytest

from mendwright.records import Certificate, Environment, Location, Provenance, Task


@pytest.fixture
def task() -> Task:
    return Task(
        id="tiny-1",
        source="mutations",
        provenance=Provenance(package="tiny", version="1", sdist_sha256=""),
        issue="f in m.py is wrong: assert False",
        base_tree="",
        base_files={"m.py": "def f(a, b):\n    return a < b\n"},
        environment=Environment(lock="", python="3.11", digest=""),
        visible_tests=("test_m.py::test_f",),
        fail_to_pass=("test_m.py::test_f",),
        pass_to_pass=(),
        test_paths=("test_m.py",),
        gold_files={"m.py": "def f(a, b):\n    return a <= b\n"},
        gold_patch="",
        location=Location(path="m.py", name="f", first_line=1, last_line=2),
        split="train",
        certificate=Certificate(num_empty_runs=3, num_empty_failed=3, num_gold_runs=3, num_gold_passed=3),
    )

"""Canaries: fresh, hidden among the real tests, and right in an honest run."""

import ast
import os
import subprocess
import sys

import pytest

from repairgym.grading.canaries import NO_CANARIES, make_canaries
from repairgym.records import TestOutcome, TestResult, TestRun

TESTS = """import m


def test_value_of_name():
    assert len("ab") == 2


def test_name_of_value():
    assert m.f(1, 1)


class TestMore:
    def test_more_names(self):
        assert True
"""
SECRET = b"s" * 32


@pytest.fixture
def tested(task):
    return task.model_copy(
        update={"fail_to_pass": ("test_m.py::test_name_of_value",), "pass_to_pass": ("test_m.py::test_value_of_name",)}
    )


def run_of(outcomes, **changes):
    results = {name: TestResult(outcome=outcome) for name, outcome in outcomes.items()}
    return TestRun(**{"results": results, "exit_status": 1, **changes})


def test_they_answer_as_expected_in_an_honest_run(tested, tmp_path):
    canaries = [make_canaries(tested, {"test_m.py": TESTS}, bytes([number]) * 32, 6) for number in range(8)]
    (tmp_path / "m.py").write_text("def f(a, b):\n    return a < b\n")
    for number, one in enumerate(canaries):
        (tmp_path / f"test_{number}.py").write_text(one.files["test_m.py"])
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-rA", "--tb=no", "-p", "no:cacheprovider"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, env=environment)
    words = {"PASSED": TestOutcome.PASSED, "FAILED": TestOutcome.FAILED, "ERROR": TestOutcome.ERROR}
    lines = [line.split() for line in done.stdout.splitlines() if line.partition(" ")[0] in words]
    outcomes = {parts[1]: words[parts[0]] for parts in lines}
    for number, one in enumerate(canaries):
        got = {name: outcomes[name.replace("test_m", f"test_{number}", 1)] for name in one.expected}
        assert got == dict(one.expected)
        assert one.wrong(run_of(got)) == ()
        assert set(got.values()) == set(words.values())


def test_each_grading_has_its_own(tested):
    first, again, other = (
        make_canaries(tested, {"test_m.py": TESTS}, secret, 3) for secret in (SECRET, SECRET, b"t" * 32)
    )
    assert first == again
    assert not set(first.expected) & set(other.expected)
    assert first.files != other.files


def test_real_tests_stay_and_names_look_alike(tested):
    text = make_canaries(tested, {"test_m.py": TESTS}, SECRET, 6).files["test_m.py"]
    names = [node.name for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef)]
    real = [node.name for node in ast.walk(ast.parse(TESTS)) if isinstance(node, ast.FunctionDef)]
    assert set(real) <= set(names)
    assert len(names) == len(set(names)) == len(real) + 6
    assert {word for name in names for word in name.split("_") if not word.isdigit()} <= {
        "test", "value", "of", "name", "more", "names"
    }  # fmt: skip


@pytest.mark.parametrize("text", ["def f(:\n", "import pytest\npytestmark = pytest.mark.skip\ndef test_f(): pass\n"])
def test_files_that_cannot_hold_them_get_none(tested, text):
    assert make_canaries(tested, {"test_m.py": text}, SECRET, 3) == NO_CANARIES
    assert make_canaries(tested, {"test_m.py": TESTS}, SECRET, 0) == NO_CANARIES


def test_a_wrong_answer_shows(tested):
    canaries = make_canaries(tested, {"test_m.py": TESTS}, SECRET, 3)
    all_pass = dict.fromkeys(canaries.expected, TestOutcome.PASSED)
    assert len(canaries.wrong(run_of(all_pass))) == 2
    assert len(canaries.wrong(run_of(dict.fromkeys(canaries.expected, TestOutcome.SKIPPED)))) == 3
    assert len(canaries.wrong(run_of({}))) == 3


def test_a_run_that_was_cut_short_proves_nothing(tested):
    canaries = make_canaries(tested, {"test_m.py": TESTS}, SECRET, 3)
    assert canaries.wrong(run_of({}, exit_status=None, is_timed_out=True)) == ()
    assert canaries.wrong(run_of({}, is_finished=False)) == ()

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
    text = m.f(1, 1)
    assert text == "one"


def test_more_of_it():
    count = m.f(0, 0)
    assert count


def test_name_of_more():
    other = m.f(0, 1)
    assert other == "one"


class TestMore:
    def test_more_names(self):
        assert True

    def test_named_value(self):
        value = m.f(2, 2)
        assert value
        assert "two" not in value
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
    canaries = [make_canaries(tested, {"test_m.py": TESTS}, bytes([number]) * 32, 3) for number in range(12)]
    (tmp_path / "m.py").write_text("def f(a, b):\n    return 'one'\n")
    for number, one in enumerate(canaries):
        (tmp_path / f"test_{number}.py").write_text(one.files["test_m.py"])
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-rA", "--tb=no", "-p", "no:cacheprovider"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, env=environment)
    words = {"PASSED": TestOutcome.PASSED, "FAILED": TestOutcome.FAILED, "ERROR": TestOutcome.ERROR}
    lines = [line.split() for line in done.stdout.splitlines() if line.partition(" ")[0] in words]
    outcomes = {parts[1]: words[parts[0]] for parts in lines}
    seen = set()
    for number, one in enumerate(canaries):
        file = f"test_{number}.py"
        of_file = {name.replace(file, "test_m.py"): outcome for name, outcome in outcomes.items() if file in name}
        assert of_file["test_m.py::test_name_of_value"] is TestOutcome.PASSED
        assert one.wrong(run_of(of_file)) == ()
        assert {of_file[name] for name in one.expected if one.expected[name] is TestOutcome.PASSED} <= {
            TestOutcome.PASSED
        }
        seen |= {of_file[name] for name in one.expected}
        assert one.num_decoys == 3
    assert seen == set(words.values())


def test_each_grading_has_its_own(tested):
    first, again, other = (
        make_canaries(tested, {"test_m.py": TESTS}, secret, 3) for secret in (SECRET, SECRET, b"t" * 32)
    )
    assert first == again
    assert first.files != other.files
    assert set(first.expected) != set(other.expected)


def test_tests_of_the_task_stay_and_nothing_else_is_lost(tested):
    for number in range(10):
        text = make_canaries(tested, {"test_m.py": TESTS}, bytes([number]) * 32, 6).files["test_m.py"]
        functions = {node.name: node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef)}
        real = {node.name: node for node in ast.walk(ast.parse(TESTS)) if isinstance(node, ast.FunctionDef)}
        assert set(real) <= set(functions)
        for name in ("test_value_of_name", "test_name_of_value"):
            assert ast.unparse(functions[name]) == ast.unparse(real[name])


def test_decoys_come_from_hidden_tests_first(tested):
    ids = ("test_m.py::test_name_of_value", "test_m.py::TestMore::test_named_value")
    task = tested.model_copy(update={"fail_to_pass": ids, "visible_tests": ids[:1]})
    for number in range(6):
        canaries = make_canaries(task, {"test_m.py": TESTS}, bytes([number]) * 32, 1)
        decoys = [original for name, original in canaries.originals.items() if name not in canaries.replaced]
        assert decoys.count(ids[1]) >= 2


@pytest.mark.parametrize("text", ["def f(:\n", "import pytest\npytestmark = pytest.mark.skip\ndef test_f(): pass\n"])
def test_files_that_cannot_hold_them_get_none(tested, text):
    assert make_canaries(tested, {"test_m.py": text}, SECRET, 3) == NO_CANARIES
    assert make_canaries(tested, {"test_m.py": TESTS}, SECRET, 0) == NO_CANARIES


def test_a_wrong_answer_shows(tested):
    canaries = make_canaries(tested, {"test_m.py": TESTS}, SECRET, 3)
    real = dict.fromkeys(("test_m.py::test_name_of_value", "test_m.py::test_value_of_name"), TestOutcome.PASSED)
    honest = {**real, **canaries.expected}
    assert canaries.wrong(run_of(honest)) == ()
    for name, expected in canaries.expected.items():
        changed = canaries.wrong(run_of({**honest, name: TestOutcome.PASSED}))
        assert changed == ((f"a test that must be {expected} is passed",) if expected != "passed" else ())
    for outcome in (TestOutcome.SKIPPED, TestOutcome.FAILED, TestOutcome.MISSING):
        assert canaries.wrong(run_of({**real, **dict.fromkeys(canaries.expected, outcome)})) == ()


def test_copies_of_a_test_that_fails_prove_nothing(tested):
    canaries = make_canaries(tested, {"test_m.py": TESTS}, SECRET, 3)
    passed = dict.fromkeys(canaries.expected, TestOutcome.PASSED)
    failing = dict.fromkeys(canaries.originals.values(), TestOutcome.FAILED)
    assert canaries.wrong(run_of({**passed, **failing})) == ()


def test_a_run_that_was_cut_short_proves_nothing(tested):
    canaries = make_canaries(tested, {"test_m.py": TESTS}, SECRET, 3)
    assert canaries.wrong(run_of({}, exit_status=None, is_timed_out=True)) == ()
    assert canaries.wrong(run_of({}, is_finished=False)) == ()


def test_a_method_stays_in_its_class_where_a_function_stands_at_the_same_line(tested):
    text = "def test_other():\n    assert True\nclass TestMore:\n    def test_list(self):\n        assert g() == 1\n"
    ids = ("test_m.py::TestMore::test_list", "test_m.py::test_other")
    task = tested.model_copy(update={"fail_to_pass": ids, "pass_to_pass": ()})
    for seed in range(30):
        canaries = make_canaries(task, {"test_m.py": text}, b"%32d" % seed, 3)
        tree = ast.parse(canaries.files["test_m.py"])
        case = next(node for node in tree.body if isinstance(node, ast.ClassDef))
        names = {name.partition("::")[2] for name in canaries.expected}
        assert {name.rpartition("::")[2] for name in names if "TestMore" in name} <= {node.name for node in case.body}
        assert {name for name in names if "::" not in name} <= {node.name for node in tree.body}


def test_a_copy_stands_behind_what_its_decorators_name(tested):
    text = (
        "import pytest\n\n\ndef test_first():\n    assert True\n\n\nROWS = (1, 2)\n\n\n"
        '@pytest.mark.parametrize("row", ROWS)\ndef test_row(row):\n    assert row\n'
    )
    task = tested.model_copy(update={"fail_to_pass": ("test_m.py::test_row[1]",), "pass_to_pass": ()})
    for seed in range(20):
        changed = make_canaries(task, {"test_m.py": text}, b"%32d" % seed, 1).files["test_m.py"]
        assert changed.index("ROWS = ") < changed.index("ROWS)[:3]")


def test_a_copy_has_one_of_the_rows_that_the_task_has_from_a_fixture(tested):
    text = "def test_row(row):\n    assert row == 1\n    assert row\n"
    ids = ("test_m.py::test_row[1]", "test_m.py::test_row[a[b]]")
    task = tested.model_copy(update={"fail_to_pass": ids, "pass_to_pass": ()})
    made = [make_canaries(task, {"test_m.py": text}, b"%32d" % seed, 3) for seed in range(10)]
    rows = {name.partition("[")[2] for canaries in made for name in canaries.expected}
    assert rows == {"1]", "a[b]]"}
    first = made[0]
    decoy = next(name for name, original in first.originals.items() if original == "test_m.py::test_row")
    outcomes = {**dict.fromkeys(ids, TestOutcome.PASSED), decoy: TestOutcome.PASSED}
    assert first.is_one(decoy)
    assert first.wrong(run_of(outcomes))


def test_no_copy_hides_an_inherited_test(tested):
    text = "class TestIt(Inherited):\n    def test_get(self):\n        value = m.update(1)\n        assert value == 1\n"
    inherited = tuple(f"test_m.py::TestIt::test_{word}" for word in ("update", "value", "Inherited"))
    task = tested.model_copy(update={"fail_to_pass": ("test_m.py::TestIt::test_get",), "pass_to_pass": inherited})
    for number in range(40):
        canaries = make_canaries(task, {"test_m.py": text}, bytes([number]) * 32, 3)
        assert canaries.expected
        assert not canaries.expected.keys() & set(inherited)

from __future__ import annotations

import subprocess
import sys

import pytest

from repairgym.tasks.build.exposed_tasks import expose, find_test_place, hollow_tests

IDS = (
    "tests/test_a.py::test_plain",
    "tests/test_a.py::test_cases[1-a b]",
    "tests/test_a.py::test_cases[x\\ny]",
    "tests/test_a.py::NumbersCase::test_method",
    "tests/test_a.py::TestGroup::test_case[é]",
    "tests/test_a.py::TestGroup::test_other",
)


@pytest.fixture
def hidden(task):
    return task.model_copy(
        update={
            "base_files": {**task.base_files, "test_m.py": "cut"},
            "fail_to_pass": ("test_m.py::test_f", "test_m.py::test_hidden"),
            "pass_to_pass": ("test_m.py::TestC::test_g",),
        }
    )


def test_an_exposed_task_hides_nothing_and_is_judged_alike(hidden):
    found = expose(hidden)
    assert found.id == "tiny-1-exposed-source"
    assert found.base_files == {"m.py": hidden.base_files["m.py"]}
    assert found.visible_tests == (*hidden.fail_to_pass, *hidden.pass_to_pass)
    assert (found.fail_to_pass, found.gold_files, found.certificate) == (
        hidden.fail_to_pass,
        hidden.gold_files,
        hidden.certificate,
    )
    assert found.labels["exposed"] == "source"


def test_the_window_on_the_failing_test(hidden, tmp_path):
    (tmp_path / "test_m.py").write_text(
        "x = 1\n\n\ndef test_hidden():\n    assert x\n\nclass TestC:\n    def test_g(self): 0\n"
    )
    found = expose(hidden, "test", tmp_path)
    assert (found.location.name, found.location.first_line, found.location.last_line) == ("test_hidden", 4, 5)
    assert found.fail_to_pass == ("test_m.py::test_hidden",)
    assert find_test_place(tmp_path, ["test_m.py::TestC::test_g"]).name == "TestC.test_g"
    assert expose(hidden.model_copy(update={"fail_to_pass": ("none.py::test_x",)}), "test", tmp_path) is None


def test_hollow_tests_have_the_ids_and_pass(task, tmp_path):
    files = hollow_tests(task.model_copy(update={"fail_to_pass": IDS, "pass_to_pass": ()}))
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_a.py").write_text(files["tests/test_a.py"], encoding="utf-8")
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "--rootdir",
        str(tmp_path),
        "-c",
        "/dev/null",
    ]
    ids = [name.replace("é", "\\xe9") for name in IDS]
    done = subprocess.run([*command, *ids], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert "6 passed" in done.stdout, done.stdout

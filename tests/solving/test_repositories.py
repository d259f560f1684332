"""A plain repository as a task: what is pinned, what fails, where it is suspected."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from repairgym.config.pipeline import GradingConfig
from repairgym.config.rollout import RolloutConfig
from repairgym.errors import InputError, TaskError
from repairgym.grading.grader import Grader
from repairgym.records import TestRun, VerdictKind
from repairgym.sandbox.backends.namespace import NamespaceBackend
from repairgym.sandbox.base import SandboxSpec
from repairgym.sandbox.cache import ExecutionCache
from repairgym.solving.repositories import Repair, pin_environment, pin_files, pin_repository, suspect
from repairgym.tasks.build.validation import task_layers
from repairgym.tasks.layers.store import LayerStore

CODE = "def clamp(value, high):\n    return value if value > high else high\n\n\ndef double(x):\n    return 2 * x\n"
TESTS = "from shop import clamp, double\n\n\ndef test_clamp():\n    assert clamp(7, 5) == 5\n"
TESTS += "\n\ndef test_double():\n    assert double(2) == 4\n"


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "shop"
    (folder / "tests").mkdir(parents=True)
    (folder / "shop.py").write_text(CODE)
    (folder / "tests" / "test_shop.py").write_text(TESTS)
    return folder


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LayerStore:
    monkeypatch.setenv("REPAIRGYM_CACHE", str(tmp_path / "cache"))
    return LayerStore()


def pin(repository: Path, environment: Path, test: str, issue: str = ""):
    return pin_repository(Repair(repository, test, issue, str(environment)), RolloutConfig())


def test_files_are_copied_without_environments_and_caches(repository, store):
    for name in (".venv/lib", "__pycache__", "src/x.egg-info"):
        (repository / name).mkdir(parents=True)
        (repository / name / "a.py").write_text("")
    tree = pin_files(repository, store)
    assert sorted(path.name for path in tree.rglob("*.py")) == ["shop.py", "test_shop.py"]
    assert pin_files(repository, store) == tree
    (repository / "shop.py").write_text(CODE + "\n")
    assert pin_files(repository, store) != tree
    with pytest.raises(InputError, match="is no folder"):
        pin_files(repository / "shop.py", store)


class EditedMeanwhile(LayerStore):
    """A store before whose builds somebody edits ``path``; None: somebody removes it."""

    def __init__(self, path: Path, text: str | None):
        super().__init__()
        self.path, self.text = path, text

    def build_once(self, kind, digest, build):
        """Edit, then build."""
        if self.text is None:
            self.path.unlink()
        else:
            self.path.write_text(self.text)
        return super().build_once(kind, digest, build)


@pytest.mark.parametrize("text", ["EDITED = 1\n", None])
def test_a_file_that_changes_while_it_is_copied_is_stored_under_no_other_content(repository, store, text):
    path = repository / "shop.py"
    with pytest.raises(InputError, match="changed while"):
        pin_files(repository, EditedMeanwhile(path, text))
    path.write_text(CODE)
    assert (pin_files(repository, store) / "shop.py").read_text() == CODE


def test_a_run_within_the_repository_changes_nothing(repository, store):
    subprocess.run(["git", "init", "-q", str(repository)], check=True)
    (repository / "runs").mkdir()
    (repository / "runs" / "kept.py").write_text("")
    subprocess.run(["git", "-C", str(repository), "add", "-A"], check=True)
    tree = pin_files(repository, store, repository / "out")
    assert (tree / "runs" / "kept.py").exists()
    for name in ("out/tasks", "runs/solve-shop", "__pycache__"):
        (repository / name).mkdir(parents=True)
        (repository / name / "run.db").write_text("")
    assert pin_files(repository, store, repository / "out") == tree
    (repository / "outer.py").write_text("")
    other = pin_files(repository, store, repository / "out")
    assert (other / "outer.py").exists()
    assert pin_files(repository, store, repository) == pin_files(repository, store)


def test_an_environment_is_known_by_its_files(repository, store, tmp_path):
    site = tmp_path / "env" / "lib" / "python3.11" / "site-packages"
    (site / "_pytest").mkdir(parents=True)
    (site / "dep-1.0.dist-info").mkdir()
    (site / "dep-1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: dep\nVersion: 1.0\n")
    (tmp_path / "env" / "bin").mkdir()
    (tmp_path / "env" / "bin" / "python").symlink_to("/bin/true")
    (tmp_path / "env" / "pyvenv.cfg").write_text("")
    made = []
    for digest in ("a", "b", "b"):
        (site / "dep-1.0.dist-info" / "RECORD").write_text(f"dep.py,sha256={digest},1\n")
        made.append(pin_environment(Repair(repository, "pytest", python=str(tmp_path / "env")), store))
    assert made[0] != made[1] == made[2]


def test_environments_that_cannot_be_used_are_named(repository, store, tmp_path, small_environment):
    with pytest.raises(TaskError, match="is no virtual environment"):
        pin_environment(Repair(repository, "pytest", python=str(tmp_path)), store)
    (bare := tmp_path / "bare" / "lib" / "python3.11" / "site-packages").mkdir(parents=True)
    (bare.parents[2] / "bin").mkdir()
    (bare.parents[2] / "bin" / "python").symlink_to("/bin/true")
    (bare.parents[2] / "pyvenv.cfg").write_text("")
    with pytest.raises(TaskError, match="has no pytest"):
        pin_environment(Repair(repository, "pytest", python=str(bare.parents[2])), store)
    made = pin_environment(Repair(repository, "pytest", python=str(small_environment / "bin" / "python")), store)
    assert (made / "bin" / "python").resolve() == (small_environment / "bin" / "python").resolve()


def executed(**functions: Sequence[str]) -> TestRun:
    return TestRun(results={}, exit_status=1, executed_functions={name: tuple(v) for name, v in functions.items()})


def test_the_function_that_only_failing_tests_execute_is_suspected():
    run = executed(bad=["m.py::1", "m.py::9", "m.py::5"], worse=["m.py::9"], good=["m.py::1", "m.py::5"])
    assert suspect(run, ("bad", "worse")) == "m.py::9"
    assert suspect(executed(good=["m.py::1"]), ("bad",)) == ""


def test_a_failing_suite_becomes_a_task_without_hidden_tests(repository, store, small_environment):
    task = pin(repository, small_environment, "python -m pytest -q")
    assert task.fail_to_pass == ("tests/test_shop.py::test_clamp",)
    assert task.pass_to_pass == ("tests/test_shop.py::test_double",)
    assert set(task.visible_tests) == {*task.fail_to_pass, *task.pass_to_pass}
    assert task.location is not None
    assert (task.location.path, task.location.name, task.location.first_line) == ("shop.py", "clamp", 1)
    assert "clamp" in task.issue
    assert "assert 7 == 5" in task.issue
    assert task.gold_files == {}
    assert pin(repository, small_environment, "python -m pytest -q") == task


@pytest.mark.parametrize(
    ("command", "before", "failing"),
    [
        ("pytest tests", "", "tests/test_shop.py::test_clamp"),
        ("pytest tests/test_shop.py", "", "tests/test_shop.py::test_clamp"),
        ("pytest", "from shop import half\n", "tests/test_shop.py"),
    ],
)
def test_a_repair_passes_where_a_folder_or_a_file_was_named(
    repository, store, small_environment, command, before, failing
):
    """By the command, or because its tests are unknown before it can be imported."""
    (repository / "tests" / "test_shop.py").write_text(before + TESTS)
    task = pin(repository, small_environment, command, "clamp is wrong")
    assert task.fail_to_pass == (failing,)
    right = {"shop.py": CODE.replace("value > high", "value < high") + "half = 0.5\n"}
    wrong = {"shop.py": right["shop.py"].replace("2 * x", "3 * x")}

    async def grade() -> list[VerdictKind]:
        backend = NamespaceBackend()
        layers = task_layers(task, store)

        def spec(task, files):
            return SandboxSpec(environment=layers.environment, tree=layers.tree, files=files)

        grader = Grader(backend, spec, GradingConfig(is_replayed=False), ExecutionCache())
        try:
            return [(await grader.grade(task, files)).kind for files in (right, wrong, {})]
        finally:
            await backend.close()

    assert asyncio.run(grade()) == [VerdictKind.PASSED, VerdictKind.FAILED, VerdictKind.FAILED]


def test_any_command_can_be_the_test(repository, store, small_environment):
    task = pin(repository, small_environment, "python -c 'import shop; assert shop.clamp(7, 5) == 5'", "clamp is wrong")
    assert (task.fail_to_pass, task.runner.type, task.issue) == (("command",), "exit_code", "clamp is wrong")
    with pytest.raises(InputError, match="nothing fails"):
        pin(repository, small_environment, "python -c 'import shop'")


def test_a_missing_package_is_named(repository, store, small_environment):
    (repository / "tests" / "test_shop.py").write_text("import some_package_of_nobody\n")
    with pytest.raises(TaskError, match="lacks some_package_of_nobody"):
        pin(repository, small_environment, "pytest")

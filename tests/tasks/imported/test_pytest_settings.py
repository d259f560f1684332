from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError
from tests.tasks.imported.conftest import NEW_TESTS

from repairgym.config.tasks import ImportedConfig
from repairgym.records import TestRunner
from repairgym.sandbox.base import SandboxBackend
from repairgym.tasks.build.validation import TaskLayers
from repairgym.tasks.imported.certifying import Certifier
from repairgym.tasks.imported.environments import packages_of
from repairgym.tasks.imported.installation import Installed, graded_tree, write_below
from repairgym.tasks.imported.interpreters import Interpreter
from repairgym.tasks.imported.pytest_settings import asked_plugins, kept_settings, search_paths
from repairgym.tasks.layers.repositories import GitRepository
from repairgym.tasks.layers.store import LayerStore
from repairgym.tasks.unbuilt import UnbuiltTask


def test_plugins_that_settings_ask_for_are_read(tmp_path: Path) -> None:
    assert asked_plugins(tmp_path) == ()
    (tmp_path / "tox.ini").write_text("[tox]\n[pytest]\naddopts = -ra -p pytester -p no:doctest\n")
    assert asked_plugins(tmp_path) == ("pytester",)
    (tmp_path / "pyproject.toml").write_text('[tool.pytest.ini_options]\naddopts = ["-p=plugins.own", "-x"]\n')
    assert asked_plugins(tmp_path) == ("plugins.own",)


def test_settings_that_decide_are_kept_and_code_is_not(tmp_path: Path) -> None:
    (tmp_path / "setup.cfg").write_text("""[tool:pytest]
addopts = -p evil --import-mode=importlib -m "not slow"
filterwarnings =
    error
    # a remark
    ignore:old:DeprecationWarning
asyncio_mode = auto
python_classes = Test Check
DJANGO_SETTINGS_MODULE = app.settings
required_plugins = evil
""")
    kept = dict(kept_settings(tmp_path, ("pytest_django",), is_neighbour=False))
    assert kept == {
        "addopts": "--import-mode=importlib",
        "filterwarnings": "error\nignore:old:DeprecationWarning",
        "python_classes": "Test Check",
        "DJANGO_SETTINGS_MODULE": "app.settings",
    }
    assert "filterwarnings" not in dict(kept_settings(tmp_path, (), is_neighbour=True))
    assert dict(kept_settings(tmp_path, ("pytest_asyncio.plugin",), False))["asyncio_mode"] == "auto"


def test_the_file_that_pytest_would_choose_is_read(tmp_path: Path) -> None:
    (tmp_path / "lib/deep").mkdir(parents=True)
    (tmp_path / "setup.cfg").write_text("[tool:pytest]\nxfail_strict = false\n")
    (tmp_path / "pyproject.toml").write_text("""[tool.pytest.ini_options]
xfail_strict = true
markers = ["slow: takes long", "net"]
python_functions = ["test", "a b"]
pythonpath = [".", "lib", "../out", "absent", "lib/deep"]
""")
    assert kept_settings(tmp_path, (), False) == (
        ("markers", "slow: takes long\nnet"),
        ("python_functions", "test 'a b'"),
        ("xfail_strict", "true"),
    )
    assert search_paths(tmp_path) == ("", "lib", "lib/deep")
    (tmp_path / "pytest.ini").write_text("")
    assert kept_settings(tmp_path, (), False) == ()
    (tmp_path / "pytest.ini").write_text("no section = 1")
    assert dict(kept_settings(tmp_path, (), False))["xfail_strict"] == "true", "a broken file is as good as none"


def test_only_pytest_has_settings_and_a_runner_without_keeps_its_digest() -> None:
    with pytest.raises(ValidationError, match="reads no settings"):
        TestRunner(type="django", settings=(("xfail_strict", "true"),))
    assert TestRunner().model_dump(mode="json") == {"type": "pytest", "command": [], "parser": "", "report_path": ""}
    strict = TestRunner(settings=(("xfail_strict", "true"),))
    assert TestRunner.model_validate_json(strict.model_dump_json()) == strict


@pytest.mark.asyncio
async def test_settings_of_the_record_decide_in_its_runs(
    record: UnbuiltTask, clones: Path, tmp_path: Path, backend: SandboxBackend, small_environment: Path
) -> None:
    """A class of tests with a name of its own counts, and a warning is an error."""
    more = "\n\nclass CheckMore:\n    def test_all(self):\n        assert calc.double(1) == 2\n"
    warning = '\n\ndef test_warns():\n    __import__("warnings").warn("old")\n'
    tree = tmp_path / "tree"
    source = graded_tree(LayerStore(tmp_path / "layers"), GitRepository(clones / "acme__calc"), record)
    ini = b"[pytest]\npython_classes = Check\nfilterwarnings = error\n"
    files = {path.relative_to(source).as_posix(): path.read_bytes() for path in source.rglob("*") if path.is_file()}
    tests = (NEW_TESTS + more + warning).encode()
    write_below(tree, {**files, "pytest.ini": ini, "tests/test_calc.py": tests})
    name = "tests/test_calc.py::"
    wanted = record.model_copy(
        update={"fail_to_pass": (f"{name}CheckMore::test_all", f"{name}test_double", f"{name}test_warns")}
    )
    installed = Installed(TaskLayers(small_environment, tree), ("src",), packages_of(small_environment))
    config = ImportedConfig(repos=str(clones), num_certificate_runs=1)
    here = Interpreter(Path("python3"), "3.12.0")
    task, counts = await Certifier(wanted, installed, here, backend, config).certify()
    assert task.fail_to_pass == (f"{name}CheckMore::test_all", f"{name}test_double")
    assert f"{name}test_warns" in counts.failed_after
    assert task.runner.settings == (("filterwarnings", "error"), ("python_classes", "Check"))

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.tasks.formats.conftest import SAMPLES

from repairgym.errors import InputError, TaskError
from repairgym.tasks.formats.registry import FORMATS
from repairgym.tasks.imported.harness import HarnessFiles, read_environment
from repairgym.tasks.imported.interpreters import find_interpreter, installed_interpreters
from repairgym.tasks.imported.recipes import RecipeError, find_recipe, requirements_of_repair
from repairgym.tasks.unbuilt import UnbuiltTask

ENVIRONMENT = """name: testbed
dependencies:
  - libffi=3.4.4=h6a678d5_1
  - python=3.9.20=he870216_1
  - pip=24.2=py39h06a4308_0
  - matplotlib-base=3.5.1=py39h1234567_0
  - wheel=0.44.0=py39h06a4308_0
  - pip:
      - attrs==24.2.0
      - local @ file:///opt/local
"""
SPECS = """
_OLD = {"python": "3.8", "pip_packages": ["attrs==23.1.0"], "install": "python -m pip install -e .[test, dev]",
        "packages": "requirements.txt", "pre_install": ["sed -i s/a/b/ setup.py"]}
MAP_REPO_VERSION_TO_SPECS_PY = {"acme/calc": {version: _OLD for version in ("1.0", "1.1")}}
"""


def make_task(**fields: Any) -> UnbuiltTask:
    given = {"repository": "acme/calc", "version": "1.0", "fail_to_pass": ("tests/test_a.py::test_b",), **fields}
    return UnbuiltTask(id="acme__calc-7", format="swe_bench", created_at="2024-05-06T07:08:09Z", **given)


@pytest.fixture
def files(tmp_path: Path) -> HarnessFiles:
    (tmp_path / "environments/acme__calc/7").mkdir(parents=True)
    (tmp_path / "environments/acme__calc/7/environment.yml").write_text(ENVIRONMENT)
    (tmp_path / "specs.py").write_text(SPECS)
    return HarnessFiles(str(tmp_path / "environments"), str(tmp_path / "specs.py"))


def test_an_environment_file_gives_the_packages_and_specs_the_installation(files: HarnessFiles) -> None:
    recipe = find_recipe(make_task(), files)
    assert (recipe.source, recipe.python, recipe.is_complete) == ("environment_file", "3.9", True)
    assert recipe.requirements == ("matplotlib==3.5.1", "wheel==0.44.0", "attrs==24.2.0")
    assert recipe.unusable == ("local @ file:///opt/local",)
    assert recipe.extras == ("test", "dev")
    assert recipe.pre_install == ("sed -i s/a/b/ setup.py",)
    assert recipe.uploaded_before == ""


def test_specs_alone_are_no_whole_environment(files: HarnessFiles) -> None:
    recipe = find_recipe(make_task(version="1.1").model_copy(update={"id": "acme__calc-8"}), files, "2024-01-01")
    assert (recipe.source, recipe.python, recipe.is_complete) == ("specs", "3.8", False)
    assert recipe.requirements == ("attrs==23.1.0",)
    assert recipe.uploaded_before == "2024-01-01"


def test_the_record_decides_before_any_file(files: HarnessFiles) -> None:
    install = {"install_config": {"install": "pip install -e .[all]", "pre_install": ["true"]}}
    recipe = find_recipe(
        make_task(lock="attrs==1.0\n-e git+https://example.org#egg=x", python="3.10", extra=install), files
    )
    assert (recipe.source, recipe.python, recipe.requirements) == ("record", "3.10", ("attrs==1.0",))
    assert recipe.unusable == ("-e git+https://example.org#egg=x",)
    assert (recipe.extras, recipe.pre_install) == (("all",), ("true",))


def test_without_anything_the_date_of_the_commit_bounds_what_the_project_declares() -> None:
    recipe = find_recipe(make_task(), HarnessFiles())
    assert (recipe.source, recipe.python, recipe.requirements) == ("declared", "", ())
    assert recipe.uploaded_before == "2024-05-06T07:08:09Z"


SMITH_SPECS = """
_NEW = {"python": "3.10", "install": ["pip install -e .[test]"], "test_cmd": "pytest -rA"}
MAP_REPO_TO_SPECS = {"acme/calc": {"0" * 40: {}, "abcdef12" + "0" * 32: _NEW}}
MAP_REPO_VERSION_TO_SPECS = {"acme/calc": {"1.0": {"python": "3.8", "packages": "numpy"}}}
"""


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("swe_bench", ("specs", "3.8", ("numpy",), (), "")),
        ("swe_gym", ("specs", "3.8", ("numpy",), (), "")),
        ("swe_rebench", ("record", "3.9", ("pytest==8.0",), (), "2024-05-06T07:08:09Z")),
        ("swe_smith", ("specs", "3.10", (), ("test",), "")),
        ("multi_swe", ("declared", "", (), (), "")),
        ("swe_bench_5", ("specs", "3.8", ("numpy",), (), "")),
        ("harbor", ("specs", "3.8", ("numpy",), (), "")),
    ],
)
def test_records_of_every_form_have_a_recipe(tmp_path: Path, name: str, expected: tuple[object, ...]) -> None:
    (tmp_path / "specs.py").write_text(SMITH_SPECS)
    recipe = find_recipe(FORMATS[name].read(SAMPLES[name]), HarnessFiles(specs=str(tmp_path / "specs.py")))
    assert (recipe.source, recipe.python, recipe.requirements, recipe.extras, recipe.uploaded_before) == expected
    assert recipe.runner == "pytest"


@pytest.mark.parametrize(
    ("name", "reason"), [("r2e_gym", "names no test that fails before"), ("swe_rebench_v2", "its language is go")]
)
def test_forms_that_cannot_be_built_say_why(name: str, reason: str) -> None:
    with pytest.raises(RecipeError, match=reason):
        find_recipe(FORMATS[name].read(SAMPLES[name]), HarnessFiles())


def test_specs_by_commit_need_enough_of_it(tmp_path: Path) -> None:
    (tmp_path / "specs.py").write_text(SMITH_SPECS)
    files = HarnessFiles(specs=str(tmp_path / "specs.py"))
    assert files.specs_of("acme/calc", "", "abcdef12")["python"] == "3.10"
    assert files.specs_of("acme/calc", "", "abcdef12" + "0" * 32)["python"] == "3.10"
    assert files.specs_of("acme/calc", "", "abcdef") == files.specs_of("acme/calc", "", "") == {}
    assert files.specs_of("acme/calc", "1.0", "abcdef12")["python"] == "3.8"


def test_the_names_of_the_tests_decide_the_runner() -> None:
    names = {"pytest": "tests/test_a.py::test_b", "django": "test_save (model_tests.SaveTest)", "sympy": "test_Symbol"}
    for runner, name in names.items():
        assert find_recipe(make_task(fail_to_pass=(name,)), HarnessFiles()).runner == runner


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"fail_to_pass": ()}, "names no test"),
        ({"fail_to_pass": ("ModelTests: saves",)}, "no known runner: 'ModelTests: saves'"),
        ({"language": "go"}, "only Python"),
    ],
)
def test_a_record_that_cannot_be_built_says_why(fields: dict[str, Any], reason: str) -> None:
    with pytest.raises(RecipeError, match=reason):
        find_recipe(make_task(**fields), HarnessFiles())


def test_broken_files_are_named(tmp_path: Path) -> None:
    broken = tmp_path / "broken.yml"
    broken.write_text("name: x\n")
    with pytest.raises(InputError, match=r"broken\.yml is no environment file"):
        read_environment(broken)
    with pytest.raises(InputError, match="assigns no MAP_REPO"):
        HarnessFiles(specs=str(_write(tmp_path / "empty.py", "x = 1\n")))
    with pytest.raises(InputError, match="is no file of specs"):
        HarnessFiles(specs=str(_write(tmp_path / "raises.py", "raise ValueError\n")))


def _write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_an_interpreter_has_the_wanted_minor_version_or_is_a_labelled_neighbour() -> None:
    newest = max(installed_interpreters(), key=lambda interpreter: interpreter.minor)
    wanted = f"{newest.minor[0]}.{newest.minor[1]}"
    assert find_interpreter(wanted, (3, 6)).minor == newest.minor
    with pytest.raises(TaskError, match=r"no Python 3\.1 on this machine"):
        find_interpreter("3.1", (3, 6))
    assert find_interpreter("3.1", newest.minor, is_neighbour_allowed=True).is_neighbour
    with pytest.raises(TaskError, match=r"older than 3\.99"):
        find_interpreter(wanted, (3, 99))


def test_requirements_that_the_repair_declares_are_part_of_the_environment() -> None:
    before, after = (
        "[options]\ninstall_requires =\n    six\n",
        "[options]\ninstall_requires =\n    Six>=1\n    app-dirs>=1.4\n",
    )
    task = make_task(
        base_files={"setup.cfg": before, "a.py": ""}, gold_files={"setup.cfg": after, "a.py": "import appdirs\n"}
    )
    assert requirements_of_repair(task) == ("app-dirs>=1.4",)
    assert requirements_of_repair(make_task(base_files={"a.py": ""}, gold_files={"a.py": "x"})) == ()

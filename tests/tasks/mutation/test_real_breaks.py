from __future__ import annotations

import tomllib

import pytest

from repairgym.tasks.mutation.real_breaks import REAL_BREAKS, REAL_NAMES, find_breaks
from repairgym.tasks.mutation.settings_operators import find_edits

PYPROJECT = """[build-system]
requires = ["setuptools>=61", "wheel"]
build-backend = "setuptools.build_meta"

[project]
name = "tinycalc"
requires-python = ">=3.8"
readme = "README.md"
license = "MIT"
license-files = ["LICENSE"]
authors = [{name = "Ada", email = "ada@example.org"}]
dynamic = ["version"]

[project.scripts]
tinycalc = "tinycalc.numbers:main"

[tool.setuptools.packages.find]
where = ["src"]
include = ["tinycalc*"]

[tool.setuptools.dynamic]
version = {attr = "tinycalc.__version__"}

[tool.hatch.version]
path = "src/tinycalc/__init__.py"

[tool.hatch.build.targets.wheel]
packages = ["src/tinycalc"]
"""
SETUP_PY = """setup(
    name="tinycalc",
    long_description=open("README.rst").read(),
    entry_points={"console_scripts": ["tinycalc = tinycalc:main"]},
    python_requires=">=3.8",
)
"""


@pytest.mark.parametrize(
    ("path", "text", "operator", "broken"),
    [
        ("pyproject.toml", PYPROJECT, "moved_function", 'tinycalc = "tinycalc:main"'),
        ("setup.py", SETUP_PY, "moved_function", '["tinycalc = tinycalc.cli:main"]'),
        ("pyproject.toml", PYPROJECT, "another_source_root", 'where = ["."]'),
        ("pyproject.toml", PYPROJECT, "another_source_root", 'packages = ["tinycalc"]'),
        ("pyproject.toml", PYPROJECT, "another_source_root", 'path = "tinycalc/__init__.py"'),
        ("pyproject.toml", PYPROJECT, "subpackages_left_out", 'include = ["tinycalc"]'),
        ("pyproject.toml", PYPROJECT, "renamed_file", 'readme = "README.rst"'),
        ("pyproject.toml", PYPROJECT, "renamed_file", 'license-files = ["LICENSE.txt"]'),
        ("setup.py", SETUP_PY, "renamed_file", 'open("README.md")'),
        ("pyproject.toml", PYPROJECT, "version_elsewhere", 'attr = "tinycalc._version.__version__"'),
        ("pyproject.toml", PYPROJECT, "version_elsewhere", 'path = "src/tinycalc/_version.py"'),
        ("pyproject.toml", PYPROJECT, "static_and_dynamic", 'dynamic = ["version", "description"]'),
        ("pyproject.toml", PYPROJECT, "old_build_cap", '"setuptools<1"'),
        ("pyproject.toml", PYPROJECT, "former_backend", '"setuptools.pep517"'),
        ("pyproject.toml", PYPROJECT, "rejected_bound", 'requires-python = ">=3.8.*"'),
        ("setup.py", SETUP_PY, "rejected_bound", 'python_requires=">=3.8.*"'),
        ("pyproject.toml", PYPROJECT, "rejected_license", 'license = "MIT License"'),
        ("pyproject.toml", PYPROJECT, "people_of_another_tool", 'authors = ["Ada <ada@example.org>"]'),
    ],
)
def test_each_operator_makes_its_break(path: str, text: str, operator: str, broken: str) -> None:
    made = [edit for edit in find_breaks(path, text) if edit.operator == operator]
    assert any(broken in edit.text for edit in made), [edit.text for edit in made]


def test_every_operator_is_tried_here_and_leaves_toml_readable() -> None:
    edits = find_edits("pyproject.toml", PYPROJECT, REAL_BREAKS)
    assert {edit.operator for edit in edits} == REAL_NAMES
    for edit in edits:
        tomllib.loads(edit.text)


def test_recorded_recipes_come_first_and_none_is_there_twice() -> None:
    breaks = find_breaks("pyproject.toml", PYPROJECT)
    old = find_edits("pyproject.toml", PYPROJECT)
    recipes = [edit.recipe for edit in breaks]
    assert len(set(recipes)) == len(recipes)
    assert [edit for edit in breaks if edit in old] == breaks[: len({edit.recipe for edit in old})]

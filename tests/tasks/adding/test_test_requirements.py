from __future__ import annotations

from pathlib import Path

from repairgym.tasks.adding.layout import find_layout
from repairgym.tasks.adding.test_requirements import declared_names, find_requirements, own_plugins, plugins_of

SETTINGS = """
[project]
name = "pkg"
dependencies = ["idna>=2", "click>=8,<9", "tomli; python_version < '3.0'"]
[project.optional-dependencies]
test = ["freezegun>=1", "pytest-cov", "pytest-mock"]
icu = ["PyICU>=1"]
[dependency-groups]
dev = ["pytest-asyncio", {include-group = "test"}]
"""
TESTS = """
import json, os.path
import yaml
from hypothesis import given
from pkg.core import x
from .sibling import y
from support import z
import pytest
try:
    import freezegun
    import icu
    import unknown_accelerator
except ImportError:
    pass
lxml = pytest.importorskip("lxml")

@pytest.mark.asyncio
async def test_it(mocker, own_fixture): ...

@pytest.fixture
def own_fixture(): ...
"""


def write_tree(tree: Path) -> Path:
    (tree / "pkg").mkdir()
    (tree / "pkg" / "core.py").write_text("")
    (tree / "tests").mkdir()
    (tree / "tests" / "support.py").write_text("import simplejson\n")
    (tree / "tests" / "test_a.py").write_text(TESTS)
    (tree / "pyproject.toml").write_text(SETTINGS)
    return tree


def test_requirements_are_declared_imported_or_plugins(tmp_path: Path) -> None:
    tree = write_tree(tmp_path)
    found = find_requirements(tree, "pkg", find_layout(tree, "pkg"), ["tests/test_a.py"])
    assert found.requirements == (
        "click<9", "freezegun", "hypothesis", "idna", "pyicu", "pytest-asyncio", "pytest-mock", "pyyaml", "simplejson",
    )  # fmt: skip
    assert found.reasons["pyyaml"] == "tests/test_a.py imports yaml"
    assert found.reasons["pytest-mock"] == "tests use the fixture mocker"
    assert found.reasons["simplejson"] == "tests/support.py imports simplejson"


def test_declared_names_of_every_place(tmp_path: Path) -> None:
    (tmp_path / "tox.ini").write_text("[testenv]\ndeps =\n    py311: Mock>=2\n    -rrequirements.txt\n    pytest\n")
    (tmp_path / "requirements-test.txt").write_text("# comment\nresponses[all]==0.2 ; python_version > '3'\n-e .\n")
    (tmp_path / "setup.py").write_text("setup(tests_require=['Nose_Thing >= 1', \"pretend\"])")
    (tmp_path / "PKG-INFO").write_text("Name: x\nRequires-Dist: trio>=0.3; extra == 'test'\n\nRequires-Dist: body\n")
    (tmp_path / "pyproject.toml").write_text("[tool.poetry.group.dev.dependencies]\nsybil = '*'\n")
    names = declared_names(tmp_path)
    assert {"mock", "responses", "nose-thing", "pretend", "trio", "sybil"} <= names
    assert "body" not in names


def test_plugins_come_from_the_environment(tmp_path: Path) -> None:
    for name, text in {
        "pytest_asyncio-1.0": "[pytest11]\nasyncio = pytest_asyncio.plugin\n\n[console_scripts]\nx = y:z\n",
        "hypothesis-6.0": "[pytest11]\nhypothesispytest = _hypothesis_pytestplugin\n",
        "pytest_xdist-3.0": "[pytest11]\nxdist = xdist.plugin\n",
    }.items():
        folder = tmp_path / "lib" / "python3.11" / "site-packages" / f"{name}.dist-info"
        folder.mkdir(parents=True)
        (folder / "entry_points.txt").write_text(text)
    assert plugins_of(tmp_path, ["pytest-asyncio<2", "hypothesis"]) == ("pytest_asyncio.plugin",)


def test_plugins_of_the_project_itself(tmp_path: Path) -> None:
    assert own_plugins(tmp_path) == ()
    (tmp_path / "pyproject.toml").write_text('[project.entry-points.pytest11]\nanyio = "anyio.pytest_plugin"\n')
    (tmp_path / "anyio.egg-info").mkdir()
    (tmp_path / "anyio.egg-info" / "entry_points.txt").write_text("[pytest11]\na = anyio.pytest_plugin\nb = other\n")
    assert own_plugins(tmp_path) == ("anyio.pytest_plugin", "other")


def test_a_module_of_the_tree_is_never_asked_of_the_index(tmp_path: Path) -> None:
    tree = write_tree(tmp_path)
    (tree / "tools").mkdir()
    (tree / "tools" / "capabilities.py").write_text("")
    (tree / "tools" / "yaml.py").write_text("")
    (tree / "tests" / "test_a.py").write_text("import capabilities, yaml\n")
    layout = find_layout(tree, "pkg")
    assert {"capabilities", "pyyaml"}.isdisjoint(
        find_requirements(tree, "pkg", layout, ["tests/test_a.py"]).requirements
    )
    (tree / "test-requirements.txt").write_text("PyYAML\n")
    assert "pyyaml" in find_requirements(tree, "pkg", layout, ["tests/test_a.py"]).requirements


def test_a_folder_of_tests_is_never_third_party(tmp_path: Path) -> None:
    tree = write_tree(tmp_path)
    (tree / "setup.py").write_text('setup(packages=find_packages(exclude=["tests"]))')
    (tree / "tests" / "test_a.py").write_text(
        "from tests import unittest\nfrom tests.sub.deep import x\nimport support\n"
    )
    found = find_requirements(tree, "pkg", find_layout(tree, "pkg"), ["tests/test_a.py"])
    assert {"tests", "support"}.isdisjoint(found.requirements)

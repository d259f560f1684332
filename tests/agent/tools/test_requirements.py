"""Requirements in settings files: found in every form, changed and removed without touching anything else."""

import tomllib

import pytest
from packaging.requirements import Requirement

from repairgym.agent.tools.requirements import find_declared, is_settings_file, with_added, with_specifier, without

PYPROJECT = """\
[build-system]
requires = ["setuptools>=999", "wheel"]
[project]
name = "x"
dependencies = [
  "a>=1",  # first
  "b[c]<2; python_version < '3.12'",
  # "commented"
]
[project.optional-dependencies]
dev = ["pytest"]
[tool.poetry.dependencies]
python = "^3.9"
foo = "^1.2"
bar = {version = "^2", optional = true}
local = {path = "x"}
"""
CFG = """\
[metadata]
name = x
[options]
install_requires =
    foo>=1
    Bar_Baz  # why
[options.extras_require]
test = pytest>2
"""
LINES = '# head\n-r other.txt\nfoo==1.0 # c\nlocked==2 \\\n   --hash=sha256:aa\nbaz; python_version<"3"\n'
SETUP = 'from setuptools import setup\nsetup(\n    name="x",\n    install_requires=["a>=1", "b"],\n)\n'


def names(path, text):
    return [(one.name, one.place) for one in find_declared(path, text)]


def test_every_form_is_found():
    assert names("pyproject.toml", PYPROJECT) == [
        ("setuptools", "[build-system] requires"),
        ("wheel", "[build-system] requires"),
        ("a", "[project] dependencies"),
        ("b", "[project] dependencies"),
        ("pytest", "[project.optional-dependencies] dev"),
        ("foo", "[tool.poetry.dependencies] foo"),
        ("bar", "[tool.poetry.dependencies] bar"),
    ]
    assert [name for name, _ in names("setup.cfg", CFG)] == ["foo", "bar-baz", "pytest"]
    assert [name for name, _ in names("requirements-dev.txt", LINES)] == ["foo", "locked", "baz"]
    assert [name for name, _ in names("setup.py", SETUP)] == ["a", "b"]
    assert names("notes.txt", LINES) == []
    assert [one.is_hashed for one in find_declared("requirements.txt", LINES)] == [False, True, False]


@pytest.mark.parametrize(
    ("path", "is_one"),
    [("requirements/dev.in", True), ("a/setup.cfg", True), ("pyproject.toml", True), ("docs/notes.txt", False)],
)
def test_settings_files_are_known_by_name(path, is_one):
    assert is_settings_file(path) is is_one


@pytest.mark.parametrize(
    ("path", "text"),
    [("pyproject.toml", PYPROJECT), ("setup.cfg", CFG), ("requirements.txt", LINES), ("setup.py", SETUP)],
)
def test_an_edit_touches_its_requirement_only(path, text):
    before = find_declared(path, text)
    for index, one in enumerate(before):
        assert text[one.start : one.end] == one.text
        changed = with_specifier(text, one, "==5")
        after = find_declared(path, changed)
        assert [other.text for k, other in enumerate(after) if k != index] == [
            other.text for k, other in enumerate(before) if k != index
        ]
        assert "==5" in after[index].text
        removed = find_declared(path, without(text, one))
        assert [other.text for other in removed] == [other.text for k, other in enumerate(before) if k != index]


def test_extras_and_markers_stay():
    b = find_declared("pyproject.toml", PYPROJECT)[3]
    table = tomllib.loads(with_specifier(PYPROJECT, b, ">=3"))
    assert Requirement(table["project"]["dependencies"][1]) == Requirement("b[c]>=3; python_version < '3.12'")


@pytest.mark.parametrize("index", range(7))
def test_the_rest_is_valid_toml(index):
    one = find_declared("pyproject.toml", PYPROJECT)[index]
    assert tomllib.loads(without(PYPROJECT, one))["project"]["name"] == "x"


def test_a_build_requirement_can_be_added():
    changed = with_added(PYPROJECT, "build-system", "requires", "hatchling>=1")
    assert tomllib.loads(changed)["build-system"]["requires"] == ["hatchling>=1", "setuptools>=999", "wheel"]
    empty = with_added("[build-system]\nrequires = []\n", "build-system", "requires", "hatchling")
    assert tomllib.loads(empty)["build-system"]["requires"] == ["hatchling"]
    assert with_added("[project]\nname = 'x'\n", "build-system", "requires", "hatchling") is None

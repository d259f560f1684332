from __future__ import annotations

import tomllib
from difflib import SequenceMatcher

import pytest

from repairgym.tasks.mutation.settings_operators import find_edits, parse_entries

PYPROJECT = """[build-system]
requires = ["flit_core >=3.2,<4"]  # the back end
build-backend = "flit_core.buildapi"

[project]
name = "tinycalc"
requires-python = ">=3.8"
dependencies = [
    "attrs>=20",
    "six",
]
dynamic = ["version"]

[project.scripts]
tinycalc = "tinycalc.numbers:main"
"""
SETUP_CFG = """[metadata]
name = tinycalc

[options]
packages = find:
python_requires = >=3.8
install_requires =
    attrs>=20
    six

[options.package_data]
* = *.txt
"""
SETUP_PY = """from setuptools import setup
setup(
    name="tinycalc",
    packages=["tinycalc", "tinycalc.sub"],
    package_data={"": ["*.txt"]},
    entry_points={"console_scripts": ["tinycalc = tinycalc.numbers:main"]},
)
"""


def test_entries_of_toml_and_ini() -> None:
    found = {(entry.section, entry.key): entry for entry in parse_entries(PYPROJECT)}
    assert (found["project", "dependencies"].first, found["project", "dependencies"].end) == (7, 11)
    assert found["project.scripts", "tinycalc"].value == '"tinycalc.numbers:main"\n'
    ini = {(entry.section, entry.key): entry for entry in parse_entries(SETUP_CFG)}
    assert ini["options", "install_requires"].value.split() == ["attrs>=20", "six"]
    assert ini["options", "packages"].value == "find:\n"


@pytest.mark.parametrize(
    ("path", "text", "operator", "broken"),
    [
        ("pyproject.toml", PYPROJECT, "removed_build_requirement", "requires = []  # the back end"),
        ("pyproject.toml", PYPROJECT, "bad_build_bound", 'requires = ["flit_core >=999"]'),
        ("pyproject.toml", PYPROJECT, "bad_backend", 'build-backend = "flit_core.buildaip"'),
        ("pyproject.toml", PYPROJECT, "bad_python_bound", 'requires-python = ">=3.99"'),
        ("pyproject.toml", PYPROJECT, "removed_dependency", '    "attrs>=20",\n    \n]'),
        ("pyproject.toml", PYPROJECT, "bad_entry_point", 'tinycalc = "tinycalc.numbers:mani"'),
        ("pyproject.toml", PYPROJECT, "wrong_name", 'name = "tinycalc-project"'),
        ("pyproject.toml", PYPROJECT, "removed_dynamic", "dynamic = []"),
        ("pyproject.toml", PYPROJECT, "broken_syntax", 'name = "tinycalc\n'),
        ("setup.cfg", SETUP_CFG, "bad_python_bound", "python_requires = <3.8"),
        ("setup.cfg", SETUP_CFG, "removed_dependency", "install_requires =\n    attrs>=20\n\n"),
        ("setup.cfg", SETUP_CFG, "wrong_name", "name = tinycalc-project"),
        ("setup.py", SETUP_PY, "missing_package", 'packages=["tinycalc", ],'),
        ("setup.py", SETUP_PY, "missing_data", 'package_data={"": []},'),
        ("setup.py", SETUP_PY, "bad_entry_point", '["tinycalc = tinycalc.numbers:mani"]'),
        ("MANIFEST.in", "include a.txt\ninclude b.txt\n", "missing_data", "include b.txt"),
    ],
)
def test_each_operator_makes_its_break(path: str, text: str, operator: str, broken: str) -> None:
    made = [edit for edit in find_edits(path, text) if edit.operator == operator]
    assert any(broken in edit.text for edit in made), [edit.text for edit in made]


def test_edits_differ_touch_one_entry_and_are_the_same_each_time() -> None:
    edits = find_edits("pyproject.toml", PYPROJECT)
    assert edits == find_edits("pyproject.toml", PYPROJECT)
    assert len({edit.text for edit in edits}) == len(edits)
    before = PYPROJECT.splitlines()
    for edit in edits:
        codes = SequenceMatcher(None, before, edit.text.splitlines(), autojunk=False).get_opcodes()
        places = [code[1:] for code in codes if code[0] != "equal"]
        assert len(places) == 1, f"{edit.recipe}: changes in several places"
        ((first, end, first_new, end_new),) = places
        assert max(end - first, end_new - first_new) == 1, f"{edit.recipe}: more than one line"
        if edit.operator != "broken_syntax":
            tomllib.loads(edit.text)

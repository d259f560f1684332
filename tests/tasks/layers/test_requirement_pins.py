from __future__ import annotations

from pathlib import Path

import pytest

from repairgym.tasks.layers.requirement_pins import Place, bound_edit, build_requirements, runtime_requirements

PYPROJECT = """[build-system]
requires = ["flit_core >=3.2,<4", "wheel"]  # the back end

[project]
name = "tinycalc"
dependencies = [
    "attrs>=20",
    'Jinja2[i18n] ; python_version > "3"',
]
"""
SETUP_CFG = """[options]
install_requires =
    attrs (>=20)
    six
"""
SETUP_PY = """from setuptools import setup
setup(
    name='tinycalc',
    install_requires=['Flask', "six"],
)
"""


def edited(tree: Path, files: dict[str, str], place: Place, name: str, bound: str) -> tuple[str, list[str]]:
    """Path and the lines that an edit changes or adds."""
    for path, text in files.items():
        (tree / path).write_text(text)
    edit = bound_edit(tree, {}, place, name, bound)
    assert edit is not None
    path, text = edit
    old = files.get(path, "").splitlines()
    return path, [line for line in text.splitlines() if line not in old]


BACK_END = "  # the back end"


@pytest.mark.parametrize(
    ("path", "text", "place", "name", "expected"),
    [
        ("pyproject.toml", PYPROJECT, "runtime", "attrs", '    "attrs>=20,<9",'),
        ("pyproject.toml", PYPROJECT, "build", "flit-core", f'requires = ["flit_core >=3.2,<4,<9", "wheel"]{BACK_END}'),
        ("pyproject.toml", PYPROJECT, "build", "six", f'requires = ["flit_core >=3.2,<4", "wheel", "six<9"]{BACK_END}'),
        ("setup.cfg", SETUP_CFG, "runtime", "attrs", "    attrs (>=20,<9)"),
        ("setup.cfg", SETUP_CFG, "runtime", "werkzeug", "    werkzeug<9"),
        ("setup.py", SETUP_PY, "runtime", "flask", "    install_requires=['Flask<9', \"six\"],"),
        ("setup.py", SETUP_PY, "runtime", "idna", '    install_requires=[\'Flask\', "six", "idna<9"],'),
    ],
)
def test_a_bound_is_added_where_the_requirement_is_listed(
    tmp_path: Path, path: str, text: str, place: Place, name: str, expected: str
) -> None:
    assert edited(tmp_path, {path: text}, place, name, "<9") == (path, [expected])


def test_a_project_without_build_requirements_gets_a_list(tmp_path: Path) -> None:
    path, lines = edited(tmp_path, {"setup.py": SETUP_PY}, "build", "setuptools", "<72")
    assert (path, lines) == ("pyproject.toml", ["[build-system]", 'requires = ["setuptools<72", "wheel"]'])


def test_a_new_list_of_build_requirements_keeps_another_bound(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "tinycalc"\ndependencies = ["attrs>=20"]\n')
    first = bound_edit(tmp_path, {}, "runtime", "attrs", "<22")
    assert first is not None
    second = bound_edit(tmp_path, dict([first]), "build", "setuptools", "<72")
    assert second is not None
    assert "attrs>=20,<22" in second[1]
    assert "setuptools<72" in second[1]


def test_a_list_with_a_name_of_its_own_gets_the_bound(tmp_path: Path) -> None:
    text = "NEEDED = [\n    'Flask>=1',\n]\nsetup(\n    install_requires=NEEDED,\n)\n"
    path, lines = edited(tmp_path, {"setup.py": text}, "runtime", "flask", "<9")
    assert (path, lines) == ("setup.py", ["    'Flask>=1,<9',"])
    (tmp_path / "setup.py").write_text("setup(\n    install_requires=ELSEWHERE,\n)\n")
    assert bound_edit(tmp_path, {}, "runtime", "flask", "<9") is None


def test_without_a_list_of_requirements_there_is_no_edit(tmp_path: Path) -> None:
    (tmp_path / "setup.py").write_text("from setuptools import setup\nsetup(install_requires=read())\n")
    assert bound_edit(tmp_path, {}, "runtime", "six", "<9") is None


def test_a_second_bound_goes_on_from_the_first(tmp_path: Path) -> None:
    (tmp_path / "setup.cfg").write_text(SETUP_CFG)
    first = bound_edit(tmp_path, {}, "runtime", "six", "<9")
    assert first is not None
    second = bound_edit(tmp_path, dict([first]), "runtime", "attrs", "<8")
    assert second == ("setup.cfg", SETUP_CFG.replace("six", "six<9").replace(">=20", ">=20,<8"))


def test_requirements_are_read_from_what_an_sdist_brings(tmp_path: Path) -> None:
    assert build_requirements(tmp_path) == ("setuptools", "wheel")
    (tmp_path / "setup.cfg").write_text(SETUP_CFG)
    assert runtime_requirements(tmp_path) == ("attrs>=20", "six")
    (tmp_path / "PKG-INFO").write_text(
        "Name: x\nRequires-Dist: idna>=2\nRequires-Dist: mock; extra == 'test'\n\ntext\n"
    )
    assert runtime_requirements(tmp_path) == ("idna>=2",)
    (tmp_path / "x.egg-info").mkdir()
    (tmp_path / "x.egg-info" / "requires.txt").write_text("flask\n\n[test]\nmock\n")
    assert runtime_requirements(tmp_path) == ("flask",)
    (tmp_path / "pyproject.toml").write_text(PYPROJECT)
    assert build_requirements(tmp_path) == ("flit_core >=3.2,<4", "wheel")

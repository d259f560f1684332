from __future__ import annotations

from pathlib import Path

import pytest

from repairgym.errors import TaskError
from repairgym.tasks.adding.layout import find_layout, pytest_settings

TEST = "def test_it():\n    assert True\n"


def write(tree: Path, *paths: str, **texts: str) -> Path:
    for path in paths:
        (tree / path).parent.mkdir(parents=True, exist_ok=True)
        (tree / path).write_text(TEST if "test" in path else "X = 1\n")
    for name, text in texts.items():
        (tree / name.replace("_", ".")).write_text(text)
    return tree


def test_src_layout_with_a_folder_of_tests(tmp_path: Path) -> None:
    write(
        tmp_path, "src/some_pkg/__init__.py", "src/some_pkg/sub/a.py", "tests/test_a.py", "docs/test_b.py", "setup.py"
    )
    layout = find_layout(tmp_path, "some-pkg")
    assert (layout.root, layout.sources, layout.tests) == ("src", ("src/some_pkg/**/*.py",), ("tests/test_*.py",))
    assert "the folder src holds some_pkg" in layout.reasons["root"]


def test_tests_inside_of_the_package_are_no_sources(tmp_path: Path) -> None:
    write(
        tmp_path,
        "pkg/__init__.py",
        "pkg/core.py",
        "pkg/tests/__init__.py",
        "pkg/tests/test_core.py",
        "pkg/_vendor/six.py",
    )
    layout = find_layout(tmp_path, "pkg")
    matched = {path.relative_to(tmp_path).as_posix() for glob in layout.sources for path in tmp_path.glob(glob)}
    assert matched == {"pkg/__init__.py", "pkg/core.py"}
    assert layout.tests == ("pkg/tests/test_*.py",)


def test_test_files_next_to_sources(tmp_path: Path) -> None:
    write(tmp_path, "pkg/__init__.py", "pkg/core.py", "pkg/core_test.py")
    layout = find_layout(tmp_path, "pkg")
    assert layout.sources == ("pkg/__init__.py", "pkg/core.py")
    assert layout.tests == ("pkg/*_test.py",)


def test_a_single_module_and_its_test_at_the_top(tmp_path: Path) -> None:
    write(tmp_path, "six.py", "test_six.py", "setup.py", "conftest.py")
    layout = find_layout(tmp_path, "six")
    assert (layout.root, layout.sources, layout.tests) == ("", ("six.py",), ("test_six.py",))


@pytest.mark.parametrize(
    ("name", "files", "settings", "root", "import_names"),
    [
        ("PyYomi", ("lib/yomi/__init__.py", "tests/test_a.py"), "", "lib", ("yomi",)),
        ("other", ("deep/pkg/__init__.py",), '[tool.setuptools.packages.find]\nwhere = ["deep"]\n', "deep", ("pkg",)),
        (
            "other",
            ("src/one/__init__.py",),
            '[tool.hatch.build.targets.wheel]\npackages = ["src/one"]',
            "src",
            ("one",),
        ),
        ("zz-top", ("src/zz/top/__init__.py",), "", "src", ("zz/top",)),
        ("unlike", ("real/__init__.py", "tests/__init__.py", "examples/__init__.py"), "", "", ("real",)),
    ],
)
def test_import_packages_are_found(
    tmp_path: Path, name: str, files: tuple[str, ...], settings: str, root: str, import_names: tuple[str, ...]
) -> None:
    layout = find_layout(write(tmp_path, *files, pyproject_toml=settings), name)
    assert (layout.root, layout.import_names) == (root, import_names)


def test_testpaths_and_contents_decide_what_is_a_test(tmp_path: Path) -> None:
    write(tmp_path, "pkg/__init__.py", "pkg/testing.py", "unit/test_a.py", "slow/test_b.py")
    (tmp_path / "unit" / "test_data.py").write_text("VALUES = [1]\n")
    assert find_layout(tmp_path, "pkg").tests == ("slow/test_*.py", "unit/test_*.py")
    (tmp_path / "tox.ini").write_text("[pytest]\ntestpaths = unit\n")
    layout = find_layout(tmp_path, "pkg")
    assert layout.tests == ("unit/test_*.py",)
    assert "1 files" in layout.reasons["tests"]


def test_a_tree_without_code(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match="no import package or module"):
        find_layout(write(tmp_path, "README", "tests/test_a.py"), "pkg")


def test_settings_of_pytest(tmp_path: Path) -> None:
    (tmp_path / "setup.cfg").write_text("[tool:pytest]\nasyncio_mode = auto\n[metadata]\nname = x\n")
    assert {key: value.strip() for key, value in pytest_settings(tmp_path).items()} == {"asyncio_mode": "auto"}
    (tmp_path / "pyproject.toml").write_text('[tool.pytest.ini_options]\npythonpath = ["src", "."]\n')
    assert pytest_settings(tmp_path) == {"pythonpath": ["src", "."]}

"""A small repository with a build back end of its own, and a hand-made record of a bug in it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from repairgym.diffs.make import unified_diff
from repairgym.tasks.formats.importing import CloneFolder
from repairgym.tasks.unbuilt import UnbuiltTask

BACKEND = """
import os, zipfile

def build_editable(folder, config_settings=None, metadata_directory=None):
    with open("src/calc/_version.py", "w") as file:
        file.write("version = %r" % os.environ["SETUPTOOLS_SCM_PRETEND_VERSION"])
    with zipfile.ZipFile(os.path.join(folder, "calc-1.0-py3-none-any.whl"), "w") as wheel:
        wheel.writestr("calc.pth", os.path.abspath("src") + "\\n")
        wheel.writestr("calc-1.0.dist-info/METADATA", "Metadata-Version: 2.1\\nName: calc\\nVersion: 1.0\\n")
        wheel.writestr("calc-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        wheel.writestr("calc-1.0.dist-info/RECORD", "calc.pth,,\\ncalc-1.0.dist-info/METADATA,,\\n")
    return "calc-1.0-py3-none-any.whl"
"""
PROJECT = """[build-system]
requires = []
build-backend = "make"
backend-path = ["backend"]

[project]
name = "calc"
version = "1.0"
"""
BROKEN = "def double(x):\n    return x * 3\n\n\ndef half(x):\n    return x / 2\n"
OLD_TESTS = "import calc\n\n\ndef test_half():\n    assert calc.half(4) == 2\n"
NEW_TESTS = (
    OLD_TESTS.replace("import calc\n", "import calc\nimport pytest\n")
    + """

def test_double():
    assert calc.double(2) == 4


def test_zero():
    assert calc.double(0) == 0


@pytest.mark.parametrize("text", ["a b", "c d"])
def test_words(text):
    assert len(text) == 3
"""
)
CODE = "src/calc/__init__.py"
GOLD = unified_diff({CODE: BROKEN}, {CODE: BROKEN.replace("* 3", "* 2")})
TESTS = unified_diff({"tests/test_calc.py": OLD_TESTS}, {"tests/test_calc.py": NEW_TESTS})
FAIL = ("tests/test_calc.py::test_double", "tests/test_calc.py::test_zero")
PASS = ("tests/test_calc.py::test_half", "tests/test_calc.py::test_words[a", "tests/test_calc.py::test_gone")


@pytest.fixture
def clones(tmp_path: Path, make_repository: Callable[[Path], Any]) -> Path:
    """A folder with the clone of acme/calc."""
    repository = make_repository(tmp_path / "clones" / "acme__calc")
    repository.write("pyproject.toml", PROJECT)
    repository.write("backend/make.py", BACKEND)
    repository.write("src/calc/__init__.py", BROKEN)
    repository.write("tests/test_calc.py", OLD_TESTS)
    repository.commit("First version")
    repository.git("tag", "v0.9")
    return tmp_path / "clones"


@pytest.fixture
def image_record() -> UnbuiltTask:
    """A hand-made record of the bug that names its image, and of which nothing is pinned."""
    return UnbuiltTask(
        id="acme__calc-7",
        format="swe_bench_5",
        repository="acme/calc",
        base_commit="0" * 40,
        version="1.0",
        issue="double(2) is 6",
        gold_patch=GOLD,
        test_patch=TESTS,
        fail_to_pass=FAIL,
        pass_to_pass=PASS,
        image="team/calc",
    )


@pytest.fixture
def calc_files() -> dict[str, str]:
    """The code and the tests of acme/calc before the record's patches."""
    return {CODE: BROKEN, "tests/test_calc.py": OLD_TESTS}


@pytest.fixture
def record(clones: Path, image_record: UnbuiltTask) -> UnbuiltTask:
    """The record with the base files of its clone, and without an image."""
    commit = (clones / "acme__calc" / ".git" / "refs" / "heads" / "main").read_text().strip()
    task = image_record.model_copy(update={"format": "swe_gym", "base_commit": commit, "image": ""})
    pinned = CloneFolder(clones).pin(task)
    assert not pinned.pin_error
    return pinned

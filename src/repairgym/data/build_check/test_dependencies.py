"""Installs the project with the newest dependencies that it admits, and runs its own tests beside them.

The wheel is built as in ``test_build.py``; what its metadata requires comes from the environment and its wheelhouse.
``suite.json`` beside this file names the test files, and the folders that go on ``sys.path``.
"""

from __future__ import annotations

import email
import json
import os
import re
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
from test_build import BuildError, built, make_site  # type: ignore[import-not-found]  # noqa: E402

SUITE = json.loads((HERE / "suite.json").read_text(encoding="utf-8"))
_made: list[Path | Exception] = []


def installed() -> Path:
    """A folder with the project's wheel and what it requires, made once; fails each time when it cannot be made."""
    if not _made:
        try:
            _made.append(install(built()[0], Path(tempfile.mkdtemp())))
        except BuildError as error:
            _made.append(error)
    made = _made[0]
    if isinstance(made, Path):
        return made
    raise AssertionError(str(made))


def install(wheel: Path, place: Path) -> Path:
    """What an installer makes of ``wheel`` in an empty environment."""
    with zipfile.ZipFile(wheel) as archive:
        head = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        required = email.message_from_bytes(archive.read(head)).get_all("Requires-Dist") or []
        site: Path = make_site([str(text) for text in required], place / "site")
        archive.extractall(place / "own")
    for path in (place / "own").iterdir():
        if not (site / path.name).exists():
            (site / path.name).symlink_to(path)
    return Path(site)


def test_a_wheel_can_be_built() -> None:
    assert built()[0].suffix == ".whl"


def test_requirements_can_be_met() -> None:
    assert installed().is_dir()


@pytest.mark.parametrize("path", SUITE["tests"])
def test_suite(path: str) -> None:
    status, output = suite_run()
    told = re.findall(rf"^(?:FAILED|ERROR) {re.escape(path)}\b(?:.*? - )?(.*)$", output, flags=re.MULTILINE)
    assert not told, without_places(told[0] or main_line(output))
    assert status in (0, 1), main_line(output)


_runs: list[tuple[int, str]] = []


def suite_run() -> tuple[int, str]:
    """Exit status and output of the project's tests, which run once."""
    site = installed()
    if not _runs:
        folders = [str(HERE.parent / folder) for folder in SUITE["folders"]]
        code = "import sys; sys.path[:0] = sys.argv[1].split(':'); import pytest; sys.exit(pytest.main(sys.argv[2:]))"
        options = ["-c", os.devnull, "--rootdir", ".", "-p", "no:cacheprovider", "-q", "--tb=short", "-rfE"]
        options += ["--no-header", "--continue-on-collection-errors"]
        command = [sys.executable, "-c", code, ":".join([*folders, str(site)]), *options, *SUITE["tests"]]
        variables = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "LC_ALL": "C.UTF-8", "COLUMNS": "400"}
        variables = {**os.environ, **variables}
        done = subprocess.run(command, cwd=HERE.parent, capture_output=True, text=True, env=variables)
        _runs.append((done.returncode, done.stdout + done.stderr))
    return _runs[0]


def main_line(output: str) -> str:
    """The line of pytest's output that says what went wrong: the first error, whatever stands around it."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line[1:].strip() for line in lines if line.startswith("E  ")]
    named = [line for line in errors or lines if re.match(r"[\w.]*(Error|Exception|Warning)\b", line)]
    return without_places((named or errors or lines or ["no output"])[0])


def without_places(line: str) -> str:
    """``line`` without the folder in which a module was found: it is another one in every run."""
    return re.sub(r" \((unknown location|/[^)]*)\)", "", line)

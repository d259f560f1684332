"""Each test that is left out by default is run by a target of make, or a stage of CI, with its marker and folder."""

from __future__ import annotations

import ast
import re
import tomllib
from fnmatch import fnmatch
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
_SELECTION = re.compile(r"""-m (?:"(?P<quoted>[^"]+)"|(?P<word>\w+))(?=(?P<rest>[^"\n]*))""")
_PATH = re.compile(r"(?<![=\w./])tests(?:/[\w./]+)?(?!\w)")


def markers() -> set[str]:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"]
    named = {line.split(":")[0] for line in settings["markers"]}
    assert settings["addopts"].count("not ") == len(named)
    assert all(f"not {name}" in settings["addopts"] for name in named)
    return named


def selections() -> list[tuple[set[str], str]]:
    """Markers and one path of each selection in the Makefile and in .ci/run."""
    text = "".join((ROOT / name).read_text().replace("\\\n", " ") for name in ("Makefile", ".ci/run"))
    found = []
    for match in _SELECTION.finditer(text):
        chosen = set((match["quoted"] or match["word"]).split(" or "))
        found += [(chosen, path) for path in _PATH.findall(match["rest"])]
    return found


def marked() -> list[tuple[str, str]]:
    """Marker and file of the tests that are left out."""
    found = set()
    for path in (ROOT / "tests").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and ast.unparse(node).startswith("pytest.mark."):
                found.add((node.attr, path.relative_to(ROOT).as_posix()))
    return sorted(found)


def covers(path: str, file: str) -> bool:
    return file == path or file.startswith(f"{path}/")


def test_every_marked_test_is_in_a_selection() -> None:
    known, asked = markers(), selections()
    assert {name for chosen, _ in asked for name in chosen} >= known
    assert ("mcp", "tests/rollout/external/test_tool_servers.py") in marked()
    forgotten = [
        (name, file)
        for name, file in marked()
        if name in known and not any(name in chosen and covers(path, file) for chosen, path in asked)
    ]
    assert forgotten == []


@pytest.mark.parametrize("target", ["long", "clients", "quickstarts", "parity", "vllm"])
def test_ci_names_what_it_leaves_out(target: str) -> None:
    last = (ROOT / ".ci" / "run").read_text().strip().splitlines()[-1]
    assert re.search(rf"not run here: .*\b{target}\b", last)
    assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE)


def test_no_folder_of_tests_is_passed_over() -> None:
    patterns = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"]["norecursedirs"]
    folders = {part for path in (ROOT / "tests").rglob("test_*.py") for part in path.relative_to(ROOT).parts[:-1]}
    # Packages under repair lie in "fixture"; their tests are data.
    assert {folder for folder in folders if any(fnmatch(folder, pattern) for pattern in patterns)} == {"fixture"}

"""Environments and installation specs from the user's own copy of a harness; nothing of it is part of this package.

Reads a folder of conda environment files (``ID/environment.yml``, ``OWNER__NAME/NUMBER/environment.yml`` or ``ID.yml``)
and a Python file that assigns ``MAP_REPO_VERSION_TO_SPECS...`` (repository -> version -> specs), as the packages of
SWE-bench and SWE-Gym have one, or ``MAP_REPO_TO_SPECS`` (repository -> commit -> specs), as SWE-smith has one. Makes
requirement lines and tables. Guarantees: environment files are parsed only; the file of specs runs in a process of its
own, as the program of the user that it is; a broken file is an `InputError`.
"""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

from repairgym.errors import InputError

Specs = dict[str, dict[str, dict[str, Any]]]
_TIMEOUT_S = 60.0
_LEAST_COMMIT_CHARACTERS = 7
_PYTHON_BUILD = re.compile(r"py(\d|h|$|_)|^\d+$")
"""Build texts of conda packages that hold Python code."""
_CONDA_NAMES = {
    "matplotlib-base": "matplotlib", "msgpack-python": "msgpack", "pytables": "tables", "typing_extensions":
    "typing-extensions", "importlib_metadata": "importlib-metadata", "python-dateutil": "python-dateutil",
    "dask-core": "dask", "distributed": "distributed", "seaborn-base": "seaborn", "sqlalchemy": "sqlalchemy",
}  # fmt: skip
_READ_SPECS = """
import json, runpy, sys
values = runpy.run_path(sys.argv[1])
names = ("MAP_REPO_VERSION_TO_SPECS", "MAP_REPO_TO_SPECS")
tables = [value for name, value in values.items() if name.startswith(names)]
merged = {}
for repo, specs in (item for table in tables for item in table.items()):
    merged.setdefault(repo, {}).update(specs)
print(json.dumps(merged))
"""


class HarnessFiles:
    """The user's copies of environment files and specs; either may be missing."""

    def __init__(self, environments: str = "", specs: str = "") -> None:
        """Use a folder of environment files and a file of specs; InputError for a path that is not there."""
        self._folder = Path(environments) if environments else None
        if self._folder and not self._folder.is_dir():
            raise InputError(f"there is no folder {self._folder} with environment files; name another")
        self._specs = _read_specs(Path(specs)) if specs else {}

    def specs_of(self, repository: str, version: str, commit: str = "") -> dict[str, Any]:
        """Return the installation specs of a version, else of a commit, of a repository; empty without any.

        Either id of the commit may be cut.
        """
        known = self._specs.get(repository, {})
        if version in known:
            return dict(known[version])
        num = _LEAST_COMMIT_CHARACTERS
        cut = (
            name
            for name in known
            if len(name) >= num <= len(commit) and (name.startswith(commit) or commit.startswith(name))
        )
        return dict(known.get(next(cut, ""), {}))

    def environment_of(self, task_id: str) -> tuple[str, tuple[str, ...]] | None:
        """Return Python version and exact requirements of the environment file of a task; None without a file."""
        if self._folder is None:
            return None
        name, _, number = task_id.rpartition("-")
        places = (f"{task_id}/environment.yml", f"{name}/{number}/environment.yml", f"{task_id}.yml")
        path = next((self._folder / place for place in places if (self._folder / place).is_file()), None)
        return read_environment(path) if path else None


def read_environment(path: Path) -> tuple[str, tuple[str, ...]]:
    """Return Python version and exact requirements of a conda environment file.

    Packages of conda that hold no Python code are left out; those that do have, as far as known, their name on the
    package index.
    """
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
        entries = list(content["dependencies"])
    except (OSError, UnicodeDecodeError, yaml.YAMLError, KeyError, TypeError) as error:
        raise InputError(f"{path} is no environment file: {error}; export it again") from error
    python, lines = "", []
    for entry in entries:
        if isinstance(entry, dict):
            lines += [str(line) for line in entry.get("pip") or ()]
            continue
        name, _, rest = str(entry).partition("=")
        version, _, build = rest.strip("=").partition("=")
        if name == "python":
            python = version
        elif name != "pip" and version and _PYTHON_BUILD.search(build):
            lines.append(f"{_CONDA_NAMES.get(name, name)}=={version}")
    return python, tuple(lines)


def _read_specs(path: Path) -> Specs:
    if not path.is_file():
        raise InputError(f"there is no file {path} with specs; name constants/python.py of your swebench installation")
    argv = [sys.executable, "-I", "-c", _READ_SPECS, str(path)]
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=_TIMEOUT_S, cwd="/")
        specs: Specs = json.loads(done.stdout)
    except (ValueError, subprocess.TimeoutExpired) as error:
        raise InputError(f"{path} is no file of specs ({error}); name constants/python.py of swebench") from error
    if not specs:
        raise InputError(
            f"{path} assigns no MAP_REPO_VERSION_TO_SPECS or MAP_REPO_TO_SPECS; name constants/python.py of swebench"
        )
    return specs

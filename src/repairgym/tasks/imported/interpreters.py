"""Interpreters of imported tasks: those of this machine, as uv finds them.

Reads what is installed: the search path, uv's managed versions, and the folders of pyenv and conda. Makes an
`Interpreter`. Guarantees: nothing is downloaded; another minor version than the wanted one is used only where it is
allowed, and then says so.
"""

import functools
import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

from uv import find_uv_bin

from repairgym.errors import TaskError

OLDEST_PYTHON = (3, 8)
"""Older ones have no audit hooks and no ends of syntax nodes, without which tests cannot be sealed."""
_TIMEOUT_S = 120.0
_FOLDERS = (("PYENV_ROOT", "~/.pyenv", "versions/*/bin"), ("CONDA_ROOT", "~/miniconda3", "envs/*/bin"))
"""Variable, default and pattern of each place in which versions lie next to each other."""


@dataclass(frozen=True)
class Interpreter:
    """A CPython of this machine."""

    path: Path
    version: str
    """Full version, e.g. ``3.9.18``."""
    is_neighbour: bool = False
    """True when the wanted minor version is not here, and this one is the nearest newer one."""

    @property
    def minor(self) -> tuple[int, int]:
        """Major and minor version."""
        major, minor, *_ = self.version.split(".")
        return int(major), int(minor)


def find_interpreter(wanted: str, oldest: tuple[int, int], is_neighbour_allowed: bool = False) -> Interpreter:
    """Return the interpreter of the minor version ``wanted`` (empty: the newest), not older than ``oldest``.

    Raises:
        TaskError: there is none.
    """
    known = installed_interpreters()
    usable = [interpreter for interpreter in known if interpreter.minor >= oldest]
    minor = tuple(map(int, wanted.split("."))) if wanted else ()
    same = [interpreter for interpreter in usable if interpreter.minor == minor or not minor]
    if same:
        return max(same, key=_rank)
    newer = sorted((i for i in usable if i.minor > minor), key=lambda i: (i.minor, _rank(i)))
    if newer and is_neighbour_allowed:
        nearest = [i for i in newer if i.minor == newer[0].minor]
        best = max(nearest, key=_rank)
        return Interpreter(best.path, best.version, is_neighbour=True)
    if minor and minor < oldest and any(i.minor == minor for i in known):
        raise TaskError(f"Python {wanted} is older than {oldest[0]}.{oldest[1]}, which sandboxes need")
    raise TaskError(
        f"no Python {wanted or 'interpreter'} on this machine; install it (uv python install {wanted}), or allow the "
        "nearest newer version: is_neighbour_allowed=true"
    )


def _rank(interpreter: Interpreter) -> tuple[int, ...]:
    return tuple(int(part) if part.isdigit() else 0 for part in interpreter.version.split("."))


@functools.lru_cache(maxsize=1)
def installed_interpreters() -> tuple[Interpreter, ...]:
    """Return every CPython that uv finds on this machine."""
    places = [str(folder) for variable, default, pattern in _FOLDERS for folder in _below(variable, default, pattern)]
    environ = {**os.environ, "PATH": os.pathsep.join([*places, os.environ.get("PATH", "")])}
    argv = [find_uv_bin(), "python", "list", "--only-installed", "--output-format", "json", "--no-python-downloads"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=_TIMEOUT_S, cwd="/", env=environ)
    try:
        rows = json.loads(done.stdout)
    except ValueError as error:
        raise TaskError(f"uv lists no interpreters: {' '.join(done.stderr.split())[-300:]}") from error
    # A shim chooses its version when it runs: only the program behind it stays the same.
    real = [row for row in rows if row["implementation"] == "cpython" and "/shims/" not in row["path"]]
    unique = {Path(row["path"]).resolve(): row["version"] for row in real if row.get("variant") == "default"}
    return tuple(Interpreter(path, version) for path, version in unique.items())


def _below(variable: str, default: str, pattern: str) -> list[Path]:
    return sorted(Path(os.environ.get(variable) or default).expanduser().glob(pattern))

"""Where the interpreter of an environment really lives.

Reads the symbolic links of ``<environment>/bin/python``, makes the host folders that must be visible inside a sandbox
for it to start.
"""

from __future__ import annotations

import os
from pathlib import Path

from repairgym.errors import InputError, SandboxError

_SYSTEM_FOLDERS = ("/usr", "/bin", "/sbin", "/lib", "/lib64")
_RESERVED_FOLDERS = ("/tmp", "/proc", "/dev", "/testbed", "/opt/env", "/opt/repairgym")
_MAX_LINKS = 40


def find_interpreter_folders(environment: Path) -> tuple[str, ...]:
    """Prefix folders that a sandbox with a root of its own has to show: those of :func:`find_prefixes`.

    Raises:
        InputError: ``environment`` has no interpreter.
        SandboxError: the interpreter lies where the sandbox has a folder of its own.
    """
    folders = find_prefixes(environment)
    reserved = [folder for folder in folders if folder == "/" or _is_below(folder, _RESERVED_FOLDERS)]
    if reserved:
        raise SandboxError(
            f"the interpreter of {environment} lies in {reserved[0]}, which a sandbox replaces; "
            "build the environment with an interpreter installed elsewhere"
        )
    return folders


def find_prefixes(environment: Path) -> tuple[str, ...]:
    """Prefix folders of the interpreter behind a virtual environment that ``/usr`` does not hold.

    Raises:
        InputError: ``environment`` has no interpreter.
    """
    python = environment / "bin" / "python"
    if not python.exists():
        raise InputError(f"got {environment}, expected a virtual environment with bin/python; build it again")
    shown = (*_SYSTEM_FOLDERS, str(environment))
    outside = sorted({str(link.parent.parent) for link in _links(python) if not _is_below(str(link), shown)})
    return tuple(p for p in outside if not any(p != other and _is_below(p, (other,)) for other in outside))


def _links(path: Path) -> list[Path]:
    """``path`` and each place on the way its links lead through, last the real one with all folders resolved."""
    chain = []
    for _ in range(_MAX_LINKS):
        chain.append(path)
        if not path.is_symlink():
            break
        path = Path(os.path.normpath(path.parent / path.readlink()))
    return [*chain, path.resolve()]


def _is_below(path: str, folders: tuple[str, ...]) -> bool:
    return any(path == folder or path.startswith(folder.rstrip("/") + "/") for folder in folders)

"""The host folders that an environment's interpreter needs in order to start inside a sandbox.

Reads the symbolic links of ``<environment>/bin/python``.
"""

from __future__ import annotations

import os
from pathlib import Path

from repairgym.errors import InputError, SandboxError

_SYSTEM_FOLDERS = ("/usr", "/bin", "/sbin", "/lib", "/lib64")
_RESERVED_FOLDERS = ("/tmp", "/proc", "/dev", "/testbed", "/opt/env", "/opt/repairgym")
_MAX_LINKS = 40


def find_interpreter_folders(environment: Path) -> tuple[str, ...]:
    """Return the folders of :func:`find_prefixes` for a sandbox with its own root.

    Raises:
        InputError: ``environment`` has no interpreter.
        SandboxError: the interpreter lies in a folder that the sandbox replaces.
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
    """Return the prefix folders of the interpreter behind a virtual environment, except those below ``/usr``.

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
    """Return ``path``, each link that it leads through, and last the real path with all folders resolved."""
    chain = []
    for _ in range(_MAX_LINKS):
        chain.append(path)
        if not path.is_symlink():
            break
        path = Path(os.path.normpath(path.parent / path.readlink()))
    return [*chain, path.resolve()]


def _is_below(path: str, folders: tuple[str, ...]) -> bool:
    return any(path == folder or path.startswith(folder.rstrip("/") + "/") for folder in folders)

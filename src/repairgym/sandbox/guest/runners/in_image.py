"""The signed runners on the interpreter of a container image.

Runs with ``-S`` and none of the image's variables, because both can name modules in ``/testbed``: the supervisor
imports from the image's standard library and packages only. The tests' process, its fork, then reads the image's
``.pth`` files and variables, as any program of the image does. Reads a request on standard input.
"""

from __future__ import annotations

import importlib.machinery
import json
import os
import site
import sys
from typing import Dict, List

from . import start

_WRITABLE = ("/testbed/", "/tmp/")


def package_folders() -> List[str]:
    """Return the folders of installed packages that no code of the sandbox can write."""
    prefixes = [os.path.dirname(os.path.dirname(sys.executable)), sys.prefix]
    folders = [os.path.realpath(path) for path in site.getsitepackages(prefixes) if os.path.isdir(path)]
    return [path for path in dict.fromkeys(folders) if not f"{path}/".startswith(_WRITABLE)]


def missing() -> int:
    """Return 0 when both runners can run here, 3 when pytest is missing."""
    return 0 if importlib.machinery.PathFinder.find_spec("pytest", package_folders()) else 3


def main(testbed: str, variables: str) -> None:
    """Run the request; ``variables`` (JSON) are those of the image."""
    request = sys.stdin.buffer.read()
    # Code of the tree finds no module of ours on the path.
    standard = sys.path[1:]
    sys.path += package_folders()

    def become_program() -> None:
        _load_site(standard, json.loads(variables))

    os._exit(start.main(request, testbed, become_program))


def _load_site(standard: List[str], variables: Dict[str, str]) -> None:
    os.environ.update(variables)
    sys.path[:] = standard
    site.main()
    sys.path[:0] = [path for path in variables.get("PYTHONPATH", "").split(":") if path]

"""A listing of the Python of an image, printed as JSON on standard output.

Reads the search path and the metadata of installed packages; starts nothing of them beyond what the interpreter itself
loads. Parses on Python 3.6 and later. The keys: ``version``, ``packages`` (name and version), ``plugins`` (pytest's
entry points and what they name), ``has_pytest``, and ``sources``, the folders of ``/testbed`` on the path.
"""

import json
import os
import sys
from typing import List, Tuple

TESTBED = "/testbed"


def read(path: str) -> List[str]:
    """Return the lines of a text file; none if it cannot be read."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read().splitlines()
    except OSError:
        return []


def field(lines: List[str], name: str) -> str:
    """Return the first field ``name`` of a package's metadata."""
    values = [line.partition(":")[2].strip() for line in lines if line.lower().startswith(name + ":")]
    return values[0] if values else ""


def plugins(path: str) -> List[Tuple[str, str]]:
    """Return the entry points of pytest in a file of entry points."""
    points, section = [], ""
    for line in read(path):
        if line.startswith("["):
            section = line.strip()
        elif section == "[pytest11]" and "=" in line:
            name, _, value = line.partition("=")
            points.append((name.strip(), value.strip()))
    return points


def main() -> None:
    """Print the listing."""
    packages = []  # type: List[Tuple[str, str]]
    points = []  # type: List[Tuple[str, str]]
    folders = [path for path in sys.path if os.path.isdir(path)]
    own = [path for path in folders if (path + "/").startswith(TESTBED + "/")]
    for folder in folders:
        for name in sorted(os.listdir(folder)):
            if name.endswith((".dist-info", ".egg-info")):
                place = os.path.join(folder, name)
                names = [os.path.join(place, inner) for inner in ("METADATA", "PKG-INFO")]
                lines = [line for path in names if os.path.isdir(place) for line in read(path)] or read(place)
                packages.append((field(lines, "name"), field(lines, "version")))
                points += plugins(os.path.join(place, "entry_points.txt"))
    result = {
        "version": sys.version.split()[0],
        "packages": packages,
        "plugins": points,
        "has_pytest": any(os.path.isdir(os.path.join(path, "_pytest")) for path in folders if path not in own),
        "sources": [path[len(TESTBED) :].strip("/") for path in own],
    }
    json.dump(result, sys.stdout)


if __name__ == "__main__":
    main()

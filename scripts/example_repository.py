"""Make a git repository of a package of the catalogue, for `make examples`: `example_repository.py PACKAGE FOLDER`.

Reads the pinned sdist. Makes FOLDER with one commit, whose id is the same every time; an existing folder is replaced.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from repairgym.tasks.layers.catalogue import load_catalogue
from repairgym.tasks.layers.metadata import METADATA_FOLDER
from repairgym.tasks.layers.store import LayerStore

_PERSON = {"NAME": "example", "EMAIL": "example@example.org", "DATE": "2026-01-01T00:00:00Z"}


def main(name: str, folder: Path) -> None:
    """Unpack the package and commit it."""
    (package,) = load_catalogue().select((name,))
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(LayerStore().tree(package.sdist()), folder, ignore=shutil.ignore_patterns(METADATA_FOLDER))
    environment = {f"GIT_{role}_{key}": value for role in ("AUTHOR", "COMMITTER") for key, value in _PERSON.items()}
    for arguments in (
        ["init", "--quiet", "--initial-branch=main"],
        ["add", "--all"],
        ["commit", "--message", f"{name} {package.version}"],
    ):
        subprocess.run(
            ["git", "-C", str(folder), *arguments], env=os.environ | environment, check=True, stdout=subprocess.DEVNULL
        )


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))

"""Model folders of the policy versions that are still sampled from while newer ones are trained.

Reads model folders; makes one folder per version beside each other, by hard links where the file system has them.
Invariant: a folder never changes once it is published, so that a worker that loads late loads what it was asked to.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from repairgym.errors import disk_full_as_repairgym_error


class WeightVersions:
    """The versions in one folder."""

    def __init__(self, folder: Path) -> None:
        """Begin with none: what a killed run left in ``folder`` is removed."""
        self._folder = folder
        self.clear()

    def path(self, version: int) -> Path:
        """Model folder of a version."""
        return self._folder / f"{version:06d}"

    def publish(self, model: Path, version: int) -> None:
        """Keep the model folder ``model`` as ``version``, whatever becomes of it later.

        Raises:
            DiskFullError: no room.
        """
        with disk_full_as_repairgym_error(self._folder):
            shutil.copytree(model, self.path(version), copy_function=_link_or_copy)

    def forget_before(self, version: int) -> None:
        """Remove the versions below ``version``."""
        for path in self._folder.iterdir():
            if int(path.name) < version:
                shutil.rmtree(path)

    def clear(self) -> None:
        """Remove all versions."""
        shutil.rmtree(self._folder, ignore_errors=True)


def _link_or_copy(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)

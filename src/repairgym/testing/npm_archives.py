"""Archives of npm packages made from texts, and an index that serves them."""

import io
import tarfile
from collections.abc import Mapping
from pathlib import Path

from repairgym.tasks.layers.package_index import Sdist


def archive_path(folder: Path, name: str, version: str) -> Path:
    """Return the place of an archive in ``folder``, named as npm names it."""
    return folder / f"{name.removeprefix('@').replace('/', '-')}-{version}.tgz"


def pack(folder: Path, name: str, version: str, files: Mapping[str, str]) -> Path:
    """Write the archive of a release of ``name`` into ``folder``; return its path."""
    path = archive_path(folder, name, version)
    with tarfile.open(path, "w") as tar:
        for place, text in sorted(files.items()):
            info = tarfile.TarInfo(f"package/{place}")
            info.size = len(text.encode())
            tar.addfile(info, io.BytesIO(text.encode()))
    return path


class Folder:
    """An index that serves the archives of a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def fetch(self, sdist: Sdist, folder: Path) -> Path:
        """Return the path of the archive of ``sdist`` (see `SdistIndex.fetch`)."""
        return archive_path(self.folder, sdist.name, sdist.version)

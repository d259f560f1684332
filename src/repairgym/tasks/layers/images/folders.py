"""Folders of an image as a sandbox would show them, read on the host without a mount.

Reads unpacked layers, their whiteouts and opaque folders. Makes copies of folders. Guarantees: no link is followed,
because those of an image can name any file of the host, and a copy holds none that leads out of it; files of a copy are
hard links to those of the layers where that is possible, so whoever changes a file of a copy has to replace it.
"""

import os
import shutil
import stat
from collections.abc import Collection, Sequence
from itertools import takewhile
from pathlib import Path, PurePosixPath

from repairgym.errors import InputError
from repairgym.tasks.layers.images.unpacking import OPAQUE_ATTRIBUTE, get_attribute, is_whiteout

Places = list[str]
"""The entries of one name, the topmost first: one for a file or link, those that are merged for a folder."""


def find_entry(layers: Sequence[Path], path: str) -> Places:
    """Return the places of the absolute ``path`` in ``layers`` (lowest first); none if absent or behind a link."""
    places = [str(layer) for layer in reversed(layers)]
    for part in PurePosixPath(path).parts[1:]:
        if not _is_folder(places):
            return []
        places = _children(places).get(part, [])
    return places


def is_image_folder(layers: Sequence[Path], path: str) -> bool:
    """Return True when ``path`` is a folder of the image."""
    return _is_folder(find_entry(layers, path))


def copy_folder(layers: Sequence[Path], path: str, place: Path, left_out: Collection[str]) -> None:
    """Fill ``place`` with the folder ``path`` of the image, without entries that are called as one of ``left_out``.

    Links that lead out of the folder are left out, too, and so are devices and pipes.

    Raises:
        InputError: the image has no such folder.
    """
    places = find_entry(layers, path)
    if not _is_folder(places):
        raise InputError(f"the image has no folder {path}")
    _copy(places, str(place), left_out, 0)


def _copy(places: Places, target: str, left_out: Collection[str], depth: int) -> None:
    for name, inner in _children(places).items():
        if name in left_out:
            continue
        if _is_folder(inner):
            os.mkdir(f"{target}/{name}")
            _copy(inner, f"{target}/{name}", left_out, depth + 1)
        elif _is_kept(inner[0], depth):
            _link(inner[0], f"{target}/{name}")
    shutil.copymode(places[0], target)


def _is_kept(path: str, depth: int) -> bool:
    """Return True for a file, and for a link that stays in the folder ``depth`` levels up, whatever it passes."""
    mode = os.lstat(path).st_mode
    if not stat.S_ISLNK(mode):
        return stat.S_ISREG(mode)
    target = PurePosixPath(os.readlink(path))
    num_up = len(list(takewhile(lambda part: part == "..", target.parts)))
    return not target.is_absolute() and num_up <= depth and ".." not in target.parts[num_up:]


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError:  # a layer of another user, or another file system
        shutil.copy2(source, target, follow_symlinks=False)


def _is_folder(places: Places) -> bool:
    return bool(places) and stat.S_ISDIR(os.lstat(places[0]).st_mode)


def _children(places: Places) -> dict[str, Places]:
    """Return the entries of the folder that ``places`` make together."""
    children: dict[str, Places] = {}
    closed: set[str] = set()
    for place in places:
        for name in sorted(os.listdir(place)):
            if name in closed:
                continue
            path = f"{place}/{name}"
            mode = os.lstat(path).st_mode
            below = children.get(name, [])
            if is_whiteout(path, mode) or (below and not stat.S_ISDIR(mode)):
                closed.add(name)
                continue
            children[name] = [*below, path]
            if not stat.S_ISDIR(mode) or get_attribute(path, OPAQUE_ATTRIBUTE) == b"y":
                closed.add(name)
    return children

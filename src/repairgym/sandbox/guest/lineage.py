"""The copy-on-write layers of a sandbox and its ancestors, and the mount of its testbed over them.

Reads a :class:`Lineage`, makes overlay mounts; a :class:`Branch` freezes layers on request. Every sandbox has one tmpfs
of bounded size, at its depth below :data:`.rootfs.SCRATCH`; a mount namespace made from another one has the tmpfs of
every ancestor, so the depth is a free name. Guarantees: a frozen layer is never written again; layers can be reached
only before :func:`.rootfs.hide_private`, or through a descriptor opened before; a failed freeze changes nothing.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
from typing import Any, Dict, List, NamedTuple, Sequence, Tuple

from . import rootfs, syscalls
from .files import copy_tree

_OPTION_BYTES = 4000
"""The kernel copies one page of options."""
_FLAGS = syscalls.MS_NOSUID | syscalls.MS_NODEV


class Lineage(NamedTuple):
    """The layers of one sandbox; names are relative to :data:`.rootfs.SCRATCH`."""

    depth: int = 0
    """Number of ancestors; names the sandbox's tmpfs."""
    num_frozen: int = 0
    """Uppers of the sandbox itself that are frozen; numbers the next one."""
    layers: Tuple[str, ...] = ()
    """Frozen uppers, newest first."""
    has_files: bool = False
    """True when the first ancestor has a layer of files over the tree."""
    tmp: str = ""
    """Frozen copy of the parent's ``/tmp``."""

    @classmethod
    def parse(cls, values: Dict[str, Any]) -> Lineage:
        """Rebuild the value that :meth:`describe` made."""
        return cls(**{**values, "layers": tuple(values["layers"])})

    def describe(self) -> Dict[str, Any]:
        """Return JSON values."""
        return self._asdict()

    @property
    def scratch(self) -> str:
        """The sandbox's own tmpfs."""
        return f"{rootfs.SCRATCH}/{self.depth}"

    @property
    def upper(self) -> str:
        """Name of the writable layer."""
        return f"{self.depth}/u{self.num_frozen}"

    @property
    def work(self) -> str:
        """Name of the folder that overlayfs needs next to the upper."""
        return f"{self.depth}/w{self.num_frozen}"

    @property
    def frozen_tmp(self) -> str:
        """Name of the copy of ``/tmp`` that the next freeze makes."""
        return f"{self.depth}/t{self.num_frozen}"

    def freeze(self) -> Lineage:
        """Return the same sandbox with its upper frozen and a new upper."""
        return self._replace(num_frozen=self.num_frozen + 1, layers=(self.upper, *self.layers))

    def fork(self) -> Lineage:
        """Return a child of the sandbox as it was before its last freeze (:meth:`freeze` made ``self``)."""
        parent = self._replace(num_frozen=self.num_frozen - 1)
        return Lineage(self.depth + 1, 0, self.layers, self.has_files, parent.frozen_tmp)


def make_folders(lineage: Lineage, mode: int) -> None:
    """Make the upper (with ``mode``) and work folders of ``lineage``, below the current folder."""
    os.mkdir(lineage.upper)
    os.chmod(lineage.upper, mode)
    os.mkdir(lineage.work)


def mount_options(lineage: Lineage) -> str:
    """Return the options of the overlay over the layers of ``lineage``.

    Raises:
        OSError: E2BIG when the chain of layers is too long; make a new sandbox from a patch instead.
    """
    lower = [*lineage.layers, *(["0/files"] if lineage.has_files else []), f"../{os.path.basename(rootfs.TREE)}"]
    options = f"lowerdir={':'.join(lower)},upperdir={lineage.upper},workdir={lineage.work},userxattr"
    if len(options) > _OPTION_BYTES:
        raise OSError(errno.E2BIG, f"got a chain of {len(lineage.layers)} snapshots, too long for one mount")
    return options


def mount_testbed(lineage: Lineage) -> None:
    """Mount the testbed of ``lineage``.

    Raises:
        OSError: the chain of layers is too long, or the kernel denies the mount.
    """
    options = mount_options(lineage)
    # Relative names, because all options have to fit into one page.
    os.chdir(rootfs.SCRATCH)
    syscalls.mount("repairgym", rootfs.TESTBED, "overlay", _FLAGS, options)
    os.chdir("/")


def leave_parent() -> None:
    """Unmount what belongs to the parent alone, in a copy of its mount namespace."""
    for target in (rootfs.PRIVATE, rootfs.TESTBED, "/tmp", "/dev/shm", "/dev/pts", "/proc", rootfs.RAW_PROC):
        # The parent's testbed may be in the middle of a remount.
        with contextlib.suppress(OSError):
            syscalls.umount(target)


def remount_testbed(lineage: Lineage) -> None:
    """Mount the testbed over the layer frozen last, in the mount namespace of a sandbox at rest."""
    syscalls.umount(rootfs.PRIVATE)
    try:
        syscalls.umount(rootfs.TESTBED)
        mount_testbed(lineage)
    finally:
        rootfs.hide_private()


def used_bytes(folder: str) -> int:
    """Return the bytes in use on the file system of ``folder``."""
    status = os.statvfs(folder)
    return (status.f_blocks - status.f_bfree) * status.f_frsize


def layer_paths(lineage: Lineage, scratch: str) -> List[str]:
    """Return the paths of the upper and the frozen layers below ``scratch``, newest first."""
    return [f"{scratch}/{name}" for name in (lineage.upper, *lineage.layers)]


class Branch:
    """The lineage of one sandbox as its trusted process follows it."""

    def __init__(self, line: Lineage, scratch: str) -> None:
        """Begin at ``line``; ``scratch`` is a path through a descriptor, because no other path leads there any more."""
        self._line = line
        self._scratch = scratch

    def layers(self) -> List[str]:
        """Return the paths of the copy-on-write layers above the start, newest first."""
        return layer_paths(self._line, self._scratch)

    def freeze(self, _: Dict[str, Any], __: List[bytes]) -> Tuple[Dict[str, Any], Sequence[bytes]]:
        """Make the next upper above the current one; it must be mounted before anything runs again.

        Raises:
            OSError: no room for the copy of ``/tmp``.
        """
        frozen = self._line.freeze()
        names = [self._line.frozen_tmp, frozen.upper, frozen.work]
        paths = [f"{self._scratch}/{name}" for name in names]
        try:
            for path in paths:
                os.mkdir(path)
            copy_tree("/tmp", paths[0])
            os.chmod(paths[1], stat.S_IMODE(os.stat(rootfs.TESTBED).st_mode) | 0o700)
        except BaseException:
            for path in paths:
                with contextlib.suppress(OSError):
                    shutil.rmtree(path)
            raise
        self._line = frozen
        return {"lineage": frozen.describe(), "num_bytes": used_bytes(f"{self._scratch}/{frozen.depth}")}, ()

"""Where a sandbox's layers are, and how its testbed is mounted over those of its ancestors.

Reads a :class:`Lineage`, makes overlay mounts. Every sandbox has one tmpfs of bounded size, at its depth below
:data:`.rootfs.SCRATCH`; a mount namespace made from another one has the tmpfs of every ancestor, so the depth is a
name that is free. Invariants: a layer that is a lower one somewhere is never written again; layers can be reached only
before :func:`.rootfs.hide_private`, or through a descriptor opened before.
"""

from __future__ import annotations

import contextlib
import errno
import os
from typing import Any, Dict, List, NamedTuple, Tuple

from . import rootfs, syscalls

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
    """Whether the first ancestor has a layer of files over the tree."""
    tmp: str = ""
    """Frozen copy of the parent's ``/tmp``."""

    @classmethod
    def parse(cls, values: Dict[str, Any]) -> Lineage:
        """What :meth:`describe` made."""
        return cls(**{**values, "layers": tuple(values["layers"])})

    def describe(self) -> Dict[str, Any]:
        """As JSON values."""
        return self._asdict()

    @property
    def scratch(self) -> str:
        """The sandbox's own tmpfs."""
        return f"{rootfs.SCRATCH}/{self.depth}"

    @property
    def upper(self) -> str:
        """Name of the layer that is written."""
        return f"{self.depth}/u{self.num_frozen}"

    @property
    def work(self) -> str:
        """Name of the folder that overlayfs needs beside the upper."""
        return f"{self.depth}/w{self.num_frozen}"

    @property
    def frozen_tmp(self) -> str:
        """Name of the copy of ``/tmp`` that the next freeze makes."""
        return f"{self.depth}/t{self.num_frozen}"

    def freeze(self) -> Lineage:
        """The same sandbox with its upper frozen and a new one."""
        return self._replace(num_frozen=self.num_frozen + 1, layers=(self.upper, *self.layers))

    def fork(self) -> Lineage:
        """A child of the sandbox as it was before its last freeze (:meth:`freeze` made ``self``)."""
        parent = self._replace(num_frozen=self.num_frozen - 1)
        return Lineage(self.depth + 1, 0, self.layers, self.has_files, parent.frozen_tmp)


def make_folders(lineage: Lineage, mode: int) -> None:
    """The upper (with ``mode``) and work folders of ``lineage``, below the current folder."""
    os.mkdir(lineage.upper)
    os.chmod(lineage.upper, mode)
    os.mkdir(lineage.work)


def mount_options(lineage: Lineage) -> str:
    """Options of the overlay over the layers of ``lineage``.

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
        OSError: the chain of layers is too long, or the kernel refuses.
    """
    options = mount_options(lineage)
    # Names relative to the current folder, because all of them have to fit into one page.
    os.chdir(rootfs.SCRATCH)
    syscalls.mount("repairgym", rootfs.TESTBED, "overlay", _FLAGS, options)
    os.chdir("/")


def leave_parent() -> None:
    """Take what belongs to the parent alone out of a copy of its mount namespace."""
    for target in (rootfs.PRIVATE, rootfs.TESTBED, "/tmp", "/dev/shm", "/dev/pts", "/proc", rootfs.RAW_PROC):
        # The parent may be having its testbed mounted anew at this moment.
        with contextlib.suppress(OSError):
            syscalls.umount(target)


def remount_testbed(lineage: Lineage) -> None:
    """In the mount namespace of a sandbox that rests: mount its testbed over the layer that was frozen last."""
    syscalls.umount(rootfs.PRIVATE)
    try:
        syscalls.umount(rootfs.TESTBED)
        mount_testbed(lineage)
    finally:
        rootfs.hide_private()


def used_bytes(folder: str) -> int:
    """Bytes in use on the file system of ``folder``."""
    status = os.statvfs(folder)
    return (status.f_blocks - status.f_bfree) * status.f_frsize


def layer_paths(lineage: Lineage, scratch: str) -> List[str]:
    """Paths of the upper and the frozen layers below ``scratch``, newest first."""
    return [f"{scratch}/{name}" for name in (lineage.upper, *lineage.layers)]

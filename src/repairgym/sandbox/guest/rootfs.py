"""The root file system that a zygote and its sandboxes see.

Reads a :class:`Layout` (host paths), makes a mount tree and enters it. Guarantees: everything from the host is
read-only and without set-user-id; the root itself is read-only; nothing of the host is visible but what the layout
names; the pinned tree is visible only to trusted code.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from typing import Dict, List, NamedTuple, Optional, Tuple

from . import syscalls

ENVIRONMENT = "/opt/env"
PYTHON = "/opt/env/bin/python"
GUEST = "/opt/repairgym/repairgym_guest"
PRIVATE = "/.repairgym"
"""Visible only to trusted code, and only until :func:`hide_private`."""
TREE = "/.repairgym/tree"
START = "/.repairgym/start"
SCRATCH = "/.repairgym/scratch"
"""Parent of a mount point per depth of a sandbox's lineage (:mod:`.lineage`)."""
RAW_PROC = "/.repairgym/proc"
TESTBED = "/testbed"
COMMANDS_ROOT, TESTS_ROOT = "/image/commands", "/image/tests"
"""Roots over an image (:mod:`.image_root`); only trusted code sees these places."""
IMAGE_LAYERS = "/.repairgym/i"
"""Folder of the layers of an image, the lowest one is ``0``."""
IMAGE_TOP = "/.repairgym/top"
"""The layer of ours above them."""
IMAGE_SHARED = ("dev", "proc", "tmp", "testbed")
"""Mounts that the roots over an image share with this one."""
IMAGE_GUEST = "/.repairgym/repairgym_guest"
"""The guest package in the root for tests. Not below ``/opt``, which an image may have as a link."""
_EMPTY_FOLDER, _EMPTY_FILE = "/.repairgym/empty", "/.repairgym/empty_file"

_COVERED = "/tmp"  # any folder does: sources are cloned before the new root covers it
MOUNT_POINTS = ("proc", "tmp", "run", "var", "etc", "dev/shm", "dev/pts", "testbed", "root")
_READ_ONLY = syscalls.MOUNT_ATTR_RDONLY | syscalls.MOUNT_ATTR_NOSUID
HOST_NAME, USER = "sandbox", "user"
"""Names inside; they say nothing of the host and of this project."""
ETC_FILES = {
    "passwd": f"root:x:0:0:root:/root:/bin/sh\n{USER}:x:1000:1000:{USER}:/tmp:/bin/sh\n",
    "group": f"root:x:0:\n{USER}:x:1000:\n",
    "hosts": f"127.0.0.1 localhost {HOST_NAME}\n::1 localhost\n",
    "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
    "hostname": f"{HOST_NAME}\n",
}
_NUM_INODES_PER_MIB = 512
_DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
_DEVICE_LINKS = {
    "/dev/fd": "/proc/self/fd",
    "/dev/stdin": "/proc/self/fd/0",
    "/dev/stdout": "/proc/self/fd/1",
    "/dev/stderr": "/proc/self/fd/2",
    "/dev/ptmx": "pts/ptmx",
}


class Layout(NamedTuple):
    """The sources of a zygote's root, as absolute host paths."""

    environment: str
    """Empty: ``links`` lead to an interpreter."""
    tree: str
    guest: str
    binds: List[str]
    """Files and folders shown at their own path."""
    folders: List[str]
    """Folders that are made empty, parents first."""
    links: List[Tuple[str, str]]
    """Symbolic links and their destinations."""
    mounts: List[Tuple[str, str]]
    """Folders, each with the place where it is shown."""
    covers: List[str]
    """Paths below ``binds`` over which something empty of their kind lies."""
    prefixes: List[str]
    """Folders whose ``binds`` may be readable to their owner only: prefixes of the base interpreter."""
    image: List[str]
    """Layers of an image, the lowest first; empty: commands run in this root (see :mod:`.image_root`)."""
    image_files: Dict[str, str]
    """Relative path -> text written over the image."""
    image_links: List[Tuple[str, str]]
    """Symbolic links over the image and their destinations."""


class _Root:
    """A tmpfs that becomes the root. Sources are cloned first, attached once the tmpfs covers the mount point."""

    def __init__(self, layout: Layout, userns_fd: Optional[int], owner: Optional[int]) -> None:
        self._userns_fd = userns_fd
        self._owner = owner or 0
        self._mounts: List[Tuple[str, int]] = []
        self._copies: List[Tuple[str, int]] = []
        self._links: Dict[str, str] = dict(layout.links)
        self._folders, self._covers = layout.folders, layout.covers
        self._layout = layout

    def bind(self, source: str, target: str, attributes: int = _READ_ONLY) -> None:
        """Show ``source`` at ``target``; skip an absent one."""
        if os.path.exists(source):
            self._mounts.append((target, syscalls.clone_mount(source, attributes)))

    def bind_owned(self, source: str, target: str) -> None:
        """Show ``source`` with the files of the host user owned by the namespace's user.

        Where the file system cannot do that (overlayfs, network), only world-readable files are readable.
        """
        try:
            self._mounts.append((target, syscalls.clone_mount(source, _READ_ONLY, self._userns_fd)))
        except OSError as error:
            if self._userns_fd is None or error.errno not in (errno.EINVAL, errno.EPERM, errno.EOPNOTSUPP):
                raise
            self.bind(source, target)

    def bind_layer(self, source: str, target: str) -> None:
        """Show a layer of an image with its files owned by the namespace's user, who can change copies of them."""
        try:
            self._mounts.append((target, syscalls.clone_mount(source, _READ_ONLY, self._userns_fd)))
        except OSError as error:
            if self._userns_fd is None or error.errno not in (errno.EINVAL, errno.EPERM, errno.EOPNOTSUPP):
                raise
            text = f"root needs id-mapped mounts, which the file system of {source} lacks; move REPAIRGYM_CACHE"
            raise OSError(error.errno, text) from error

    def bind_tree(self, source: str, target: str) -> None:
        """Show the tree; copy it when overlayfs could not copy its files up from a lower layer."""
        if _is_owned(source):
            with contextlib.suppress(OSError):
                self._mounts.append((target, syscalls.clone_mount(source, _READ_ONLY, self._userns_fd)))
                return
        self._copies.append((target, os.open(source, os.O_RDONLY | os.O_CLOEXEC)))

    def build(self, path: str) -> None:
        """Cover ``path`` with the root and fill it."""
        syscalls.mount("tmpfs", path, "tmpfs", syscalls.MS_NOSUID, "mode=0755")
        for name in MOUNT_POINTS:
            os.makedirs(f"{path}/{name}")
        for inner in (TREE, START, SCRATCH, RAW_PROC, _EMPTY_FOLDER):
            os.makedirs(path + inner)
        os.close(os.open(path + _EMPTY_FILE, os.O_CREAT | os.O_WRONLY, 0o444))
        for name, text in ETC_FILES.items():
            with open(f"{path}/etc/{name}", "w") as file:
                file.write(text)
        if self._layout.image:
            for inner in (COMMANDS_ROOT, TESTS_ROOT):
                os.makedirs(path + inner)
            _make_top(path + IMAGE_TOP, self._layout.image_files, self._layout.image_links, self._owner)
        for folder in self._folders:
            os.makedirs(path + folder, exist_ok=True)
        for target, destination in (*_DEVICE_LINKS.items(), *self._links.items()):
            os.makedirs(os.path.dirname(path + target), exist_ok=True)
            os.symlink(destination, path + target)
        for target, fd in sorted(self._mounts):
            _attach(fd, path + target)
        for target, fd in self._copies:
            self._copy(fd, path + target)
        read_only = syscalls.MS_REMOUNT | syscalls.MS_BIND | syscalls.MS_RDONLY | syscalls.MS_NOSUID
        syscalls.mount("tmpfs", path, None, read_only)
        for covered in self._covers:
            # Binds of the root are as read-only as it is by now.
            empty = _EMPTY_FOLDER if os.path.isdir(path + covered) else _EMPTY_FILE
            syscalls.mount(path + empty, path + covered, None, syscalls.MS_BIND)

    def _copy(self, fd: int, target: str) -> None:
        shutil.copytree(f"/proc/self/fd/{fd}", target, symlinks=True, dirs_exist_ok=True)
        os.close(fd)
        owner = self._owner
        os.chown(target, owner, owner)
        for folder, folders, files in os.walk(target):
            for name in folders + files:
                os.chown(os.path.join(folder, name), owner, owner, follow_symlinks=False)


def _make_top(place: str, files: Dict[str, str], links: List[Tuple[str, str]], owner: int) -> None:
    """Fill ``place`` with mount points, ``files`` (relative path -> text) and ``links``, all of user ``owner``.

    The kernel copies no file up whose owner the namespace of the sandbox does not know.
    """
    for name in (*IMAGE_SHARED, IMAGE_GUEST.lstrip("/")):
        os.makedirs(f"{place}/{name}")
    for name, text in files.items():
        os.makedirs(os.path.dirname(f"{place}/{name}"), exist_ok=True)
        with open(f"{place}/{name}", "w", encoding="utf-8", errors="surrogateescape") as file:
            file.write(text)
    for target, destination in links:
        os.makedirs(os.path.dirname(place + target), exist_ok=True)
        os.symlink(destination, place + target)
    for folder, _, names in os.walk(place):
        for path in (folder, *(f"{folder}/{name}" for name in names)):
            os.chown(path, owner, owner, follow_symlinks=False)


def _is_owned(folder: str) -> bool:
    """Return True when everything in ``folder`` belongs to user and group 0 as this process sees them.

    The kernel cannot copy up files of users that the namespace does not know (EOVERFLOW).
    """
    paths = [folder]
    for parent, folders, files in os.walk(folder):
        paths += [os.path.join(parent, name) for name in folders + files]
    statuses = map(os.lstat, paths)
    return all(status.st_uid == 0 and status.st_gid == 0 for status in statuses)


def _attach(fd: int, target: str) -> None:
    if os.path.isdir(f"/proc/self/fd/{fd}"):
        os.makedirs(target, exist_ok=True)
    else:
        os.makedirs(os.path.dirname(target), exist_ok=True)
        with open(target, "a"):
            pass
    syscalls.attach_mount(fd, target)


def assemble(layout: Layout, userns_fd: Optional[int], owner: Optional[int]) -> str:
    """Mount the root in the current (own) mount namespace and return its path.

    ``userns_fd`` and ``owner`` are given when layers need an idmap to another host user.
    """
    syscalls.mount("none", "/", None, syscalls.MS_REC | syscalls.MS_PRIVATE)
    root = _Root(layout, userns_fd, owner)
    for name in _DEVICES:
        root.bind(f"/dev/{name}", f"/dev/{name}", syscalls.MOUNT_ATTR_NOSUID | syscalls.MOUNT_ATTR_NOEXEC)
    for path in layout.binds:
        is_owned = any(path == prefix or path.startswith(prefix + "/") for prefix in layout.prefixes)
        (root.bind_owned if is_owned else root.bind)(path, path)
    root.bind_owned(layout.guest, GUEST)
    if layout.environment:
        root.bind_owned(layout.environment, ENVIRONMENT)
    for source, target in layout.mounts:
        root.bind_owned(source, target)
    for number, folder in enumerate(layout.image):
        root.bind_layer(folder, f"{IMAGE_LAYERS}/{number}")
    root.bind_tree(layout.tree, TREE)
    root.build(_COVERED)
    return _COVERED


def enter(root: str) -> None:
    """Make ``root`` the root of this process, the first of its pid namespace."""
    # Mounts inherited from a more privileged namespace are locked; a bind of them can become the root.
    syscalls.mount(root, root, None, syscalls.MS_BIND | syscalls.MS_REC)
    mount_proc(root + "/proc")
    syscalls.mount("tmpfs", root + "/tmp", "tmpfs", syscalls.MS_NOSUID | syscalls.MS_NODEV, "size=64m,mode=1777")
    syscalls.mount("tmpfs", root + SCRATCH, "tmpfs", syscalls.MS_NOSUID | syscalls.MS_NODEV, "size=4m,mode=0755")
    syscalls.pivot_root(root)


def hide_private() -> None:
    """Cover :data:`PRIVATE` with an empty folder; it cannot be unmounted, because its mounts may be locked."""
    syscalls.mount(_EMPTY_FOLDER, PRIVATE, None, syscalls.MS_BIND)


def mount_proc(target: str) -> None:
    """Mount a proc of the current pid namespace at ``target``."""
    syscalls.mount("proc", target, "proc", syscalls.MS_NOSUID | syscalls.MS_NODEV | syscalls.MS_NOEXEC)


def mount_scratch(target: str, disk_bytes: int) -> None:
    """Mount a tmpfs of bounded size and number of files at ``target``."""
    options = f"size={disk_bytes},nr_inodes={max(4096, disk_bytes // (1 << 20) * _NUM_INODES_PER_MIB)},mode=0755"
    syscalls.mount("tmpfs", target, "tmpfs", syscalls.MS_NOSUID | syscalls.MS_NODEV, options)

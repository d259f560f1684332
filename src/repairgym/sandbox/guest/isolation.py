"""The namespaces of one sandbox, and the copy-on-write layers of its testbed and of its ancestors'.

Makes, in a process just forked from a zygote (the first of a new pid namespace), the sandbox's ``/testbed``, ``/tmp``,
``/proc``, ``/dev/shm``, network and identity; a :class:`Lineage` names the layers, a :class:`Branch` freezes them.
Every sandbox has one tmpfs of bounded size, at its depth below :data:`.rootfs.SCRATCH`; a mount namespace made from
another one has the tmpfs of every ancestor, so the depth is a free name. Guarantees: after :func:`isolate` the calling
process has no privilege over its mounts or network; all files of untrusted code lie in that tmpfs; layers can be
reached only before :func:`.rootfs.hide_private`, or through a descriptor opened before; a frozen layer is never written
again; a failed freeze changes nothing.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import socket
import stat
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

from . import image_root, rootfs, syscalls
from .files import copy_tree, placing
from .spawner import write_id_maps

_INNER_ID = 1000
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
    """Frozen copy of the parent's ``/tmp``; that of its ``/dev/shm`` has the same number."""
    num_layers: int = 0
    """Layers of the image that commands run in; 0: none."""

    @classmethod
    def parse(cls, values: Dict[str, Any]) -> Lineage:
        """Rebuild a value from its ``_asdict``, also after a journey as JSON."""
        return cls(**{**values, "layers": tuple(values["layers"])})

    @property
    def scratch(self) -> str:
        """The sandbox's own tmpfs."""
        return f"{rootfs.SCRATCH}/{self.depth}"

    def name(self, kind: str) -> str:
        """Name of the upper (``u``), its work folder (``w``), or frozen ``/tmp`` (``t``) or ``/dev/shm`` (``s``)."""
        return f"{self.depth}/{kind}{self.num_frozen}"

    @property
    def upper(self) -> str:
        """Name of the writable layer."""
        return self.name("u")

    def freeze(self) -> Lineage:
        """Return the same sandbox with its upper frozen and a new upper."""
        return self._replace(num_frozen=self.num_frozen + 1, layers=(self.upper, *self.layers))

    def fork(self) -> Lineage:
        """Return a child of the sandbox as it was before its last freeze (:meth:`freeze` made ``self``)."""
        parent = self._replace(num_frozen=self.num_frozen - 1)
        return Lineage(self.depth + 1, 0, self.layers, self.has_files, parent.name("t"), self.num_layers)

    @property
    def root_upper(self) -> Tuple[str, str]:
        """Names of the writable layer of the commands' root, and of its work folder."""
        return self.name("r"), self.name("x")

    def root_options(self) -> str:
        """Return the options of the overlay that is the commands' root; frozen ones are named like the testbed's."""
        upper, work = self.root_upper
        lower = [name.replace("/u", "/r") for name in self.layers] + image_root.lower_layers(self.num_layers)
        return f"lowerdir={':'.join(lower)},upperdir={upper},workdir={work},userxattr"


def mount_options(line: Lineage) -> str:
    """Return the options of the overlay over the layers of ``line``.

    E2BIG when the chain of layers is too long: make a new sandbox from a patch instead.
    """
    lower = [*line.layers, *(["0/files"] if line.has_files else []), f"../{os.path.basename(rootfs.TREE)}"]
    options = f"lowerdir={':'.join(lower)},upperdir={line.upper},workdir={line.name('w')},userxattr"
    if max(len(options), len(line.root_options()) if line.num_layers else 0) > _OPTION_BYTES:
        raise OSError(errno.E2BIG, f"got a chain of {len(line.layers)} snapshots, too long for one mount")
    return options


def _mount_overlay(line: Lineage) -> None:
    options = mount_options(line)
    # Relative names, because all options have to fit into one page.
    os.chdir(rootfs.SCRATCH)
    syscalls.mount("overlay", rootfs.TESTBED, "overlay", _FLAGS, options)
    os.chdir("/")


def isolate(limits: Dict[str, Any], files: Dict[str, Optional[str]], line: Lineage) -> Tuple[str, Branch]:
    """Leave the zygote's (or the parent's) namespaces, mount the sandbox with ``files`` written over the tree.

    Returns the tree at the start, as a ``/proc/self/fd`` path, and the branch of the sandbox.
    """
    syscalls.unshare(syscalls.CLONE_NEW_OTHERS)
    syscalls.bring_loopback_up()
    socket.sethostname(rootfs.HOST_NAME)
    if line.depth:
        _leave_parent(line)
    _mount_scratch(line, limits["disk_bytes"])
    before = _mount_testbed(files, line)
    branch = Branch(line, _hold(rootfs.SCRATCH))
    proc = _mount_system()
    if line.num_layers:
        image_root.make_upper(line, rootfs.SCRATCH)
        image_root.mount_roots(line)
    rootfs.hide_private()
    syscalls.unshare(syscalls.CLONE_NEWUSER)
    write_id_maps(f"/proc/self/fd/{proc}/self", _INNER_ID, 0, 0)
    os.close(proc)
    syscalls.drop_bounding_set()
    return before, branch


def _leave_parent(line: Lineage) -> None:
    """Unmount what belongs to the parent alone, in a copy of its mount namespace."""
    if line.num_layers:
        with contextlib.suppress(OSError):
            image_root.unmount_roots()
    for target in (rootfs.PRIVATE, rootfs.TESTBED, "/tmp", "/dev/shm", "/dev/pts", "/proc", rootfs.RAW_PROC):
        # The parent's testbed may be in the middle of a remount.
        with contextlib.suppress(OSError):
            syscalls.umount(target)


def _mount_scratch(line: Lineage, disk_bytes: int) -> None:
    os.makedirs(line.scratch, exist_ok=True)
    rootfs.mount_scratch(line.scratch, disk_bytes)
    for name, target in (("tmp", "/tmp"), ("shm", "/dev/shm")):
        os.mkdir(f"{line.scratch}/{name}")
        os.chmod(f"{line.scratch}/{name}", 0o1777)
        syscalls.mount(f"{line.scratch}/{name}", target, None, syscalls.MS_BIND)
    if line.tmp:
        copy_tree(f"{rootfs.SCRATCH}/{line.tmp}", "/tmp")
        copy_tree(f"{rootfs.SCRATCH}/{line.tmp.replace('/t', '/s')}", "/dev/shm")


def _mount_testbed(files: Dict[str, Optional[str]], line: Lineage) -> str:
    """Mount the testbed; return the folder of the tree at the start."""
    layer = f"{rootfs.SCRATCH}/0/files"
    if line.has_files and not line.depth:
        os.mkdir(layer)
        write_layer(layer, rootfs.TREE, files)
        options = f"lowerdir={layer}:{rootfs.TREE},userxattr"
        syscalls.mount("overlay", rootfs.START, "overlay", _FLAGS | syscalls.MS_RDONLY, options)
    upper = f"{rootfs.SCRATCH}/{line.upper}"
    os.mkdir(upper)
    os.chmod(upper, stat.S_IMODE(os.stat(rootfs.TREE).st_mode) | 0o700)
    os.mkdir(f"{rootfs.SCRATCH}/{line.name('w')}")
    _mount_overlay(line)
    return _hold(rootfs.START if line.has_files else rootfs.TREE)


def _hold(folder: str) -> str:
    return f"/proc/self/fd/{os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)}"


def write_layer(layer: str, tree: str, files: Dict[str, Optional[str]]) -> None:
    """Write ``files`` as an overlay layer above ``tree``; None becomes a whiteout (character device 0, 0).

    A file hides a folder of its name, and a folder a file; `PlacingError` for a path that cannot be made.
    """
    # Texts first: what they hide needs no whiteout.
    for path, text in sorted(files.items(), key=lambda item: item[1] is None):
        target = os.path.normpath(os.path.join(layer, path))
        if not target.startswith(layer + "/"):
            raise PermissionError(f"got the path {path!r}, expected one below the repository")
        if text is None:
            with contextlib.suppress(FileExistsError, NotADirectoryError):
                os.makedirs(os.path.dirname(target), exist_ok=True)
                os.mknod(target, stat.S_IFCHR | 0o600, 0)
            continue
        with placing(path):
            os.makedirs(os.path.dirname(target), exist_ok=True)
            with open(target, "w", encoding="utf-8", errors="surrogateescape", newline="") as file:
                file.write(text)
        below = os.path.join(tree, path)
        if os.path.isfile(below):
            os.chmod(target, stat.S_IMODE(os.stat(below).st_mode))


def _mount_system() -> int:
    """Mount ``/proc`` (read-only) and ``/dev/pts``; return a descriptor of a writable proc without a path."""
    rootfs.mount_proc(rootfs.RAW_PROC)
    syscalls.mount(rootfs.RAW_PROC, "/proc", None, syscalls.MS_BIND)
    flags = syscalls.MS_NOSUID | syscalls.MS_NODEV | syscalls.MS_NOEXEC
    syscalls.mount("none", "/proc", None, syscalls.MS_REMOUNT | syscalls.MS_BIND | syscalls.MS_RDONLY | flags)
    proc = os.open(rootfs.RAW_PROC, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    no_exec = syscalls.MS_NOSUID | syscalls.MS_NOEXEC
    syscalls.mount("devpts", "/dev/pts", "devpts", no_exec, "newinstance,ptmxmode=0666,mode=0620")
    return proc


def remount_testbed(line: Lineage) -> None:
    """Mount the testbed over the layer frozen last, in the mount namespace of a sandbox at rest."""
    syscalls.umount(rootfs.PRIVATE)
    try:
        syscalls.umount(rootfs.TESTBED)
        _mount_overlay(line)
        if line.num_layers:
            image_root.unmount_roots()
            image_root.mount_roots(line)
    finally:
        rootfs.hide_private()


class Branch:
    """The lineage of one sandbox as its trusted process follows it."""

    def __init__(self, line: Lineage, scratch: str) -> None:
        """Begin at ``line``; ``scratch`` is a path through a descriptor, because no other path leads there any more."""
        self._line = line
        self._scratch = scratch

    def layers(self) -> List[str]:
        """Return the paths of the copy-on-write layers above the start, newest first."""
        return [f"{self._scratch}/{name}" for name in (self._line.upper, *self._line.layers)]

    def freeze(self, _: Dict[str, Any], __: List[bytes]) -> Tuple[Dict[str, Any], Sequence[bytes]]:
        """Make the next upper above the current one, to be mounted before anything runs; ``OSError`` without room."""
        frozen = self._line.freeze()
        names = [self._line.name("t"), self._line.name("s"), frozen.upper, frozen.name("w")]
        names += frozen.root_upper if frozen.num_layers else ()
        paths = [f"{self._scratch}/{name}" for name in names]
        try:
            for path in paths:
                os.mkdir(path)
            copy_tree("/tmp", paths[0])
            copy_tree("/dev/shm", paths[1])
            os.chmod(paths[2], stat.S_IMODE(os.stat(rootfs.TESTBED).st_mode) | 0o700)
            for path in paths[4:5]:
                os.chmod(path, 0o755)
        except BaseException:
            for path in paths:
                with contextlib.suppress(OSError):
                    shutil.rmtree(path)
            raise
        self._line = frozen
        status = os.statvfs(f"{self._scratch}/{frozen.depth}")
        num_bytes = (status.f_blocks - status.f_bfree) * status.f_frsize
        return {"lineage": frozen._asdict(), "num_bytes": num_bytes}, ()

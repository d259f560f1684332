"""The namespaces and mounts of one sandbox, and the privileges of the code in it.

Reads the size limits, makes (in a process just forked from a zygote, first of a new pid namespace) the sandbox's
``/testbed``, ``/tmp``, ``/proc``, ``/dev/shm``, network and identity. Guarantees: after :func:`isolate` the calling
process has no privilege over its mounts or network; all files of untrusted code lie in one tmpfs of bounded size; the
layers below ``/testbed`` cannot be reached by path.
"""

from __future__ import annotations

import os
import resource
import socket
import stat
from typing import Any, Dict, NamedTuple, Optional

from . import confinement, lineage, rootfs, syscalls
from .files import copy_tree
from .spawner import write_id_maps

_NAMESPACES = (
    syscalls.CLONE_NEWNS
    | syscalls.CLONE_NEWNET
    | syscalls.CLONE_NEWIPC
    | syscalls.CLONE_NEWUTS
    | syscalls.CLONE_NEWCGROUP
)
PYTHON = rootfs.ENVIRONMENT + "/bin/python"
_INNER_ID = 1000
_SECCOMP_PROGRAM = confinement.build_filter()


class Layers(NamedTuple):
    """Folders that only trusted code reaches, as ``/proc/self/fd`` paths."""

    before: str
    """The tree with the sandbox's files written over it."""
    scratch: str
    """Base of the names of a lineage."""


def isolate(limits: Dict[str, Any], files: Dict[str, Optional[str]], line: lineage.Lineage) -> Layers:
    """Leave the zygote's (or the parent's) namespaces, mount the sandbox with ``files`` written over the tree."""
    syscalls.unshare(_NAMESPACES)
    syscalls.bring_loopback_up()
    socket.sethostname("repairgym")
    if line.depth:
        lineage.leave_parent()
    _mount_scratch(line, limits["disk_bytes"])
    layers = _mount_testbed(files, line)
    proc = _mount_system()
    rootfs.hide_private()
    syscalls.unshare(syscalls.CLONE_NEWUSER)
    write_id_maps(f"/proc/self/fd/{proc}/self", _INNER_ID, 0, 0)
    os.close(proc)
    syscalls.drop_bounding_set()
    return layers


def _mount_scratch(line: lineage.Lineage, disk_bytes: int) -> None:
    os.makedirs(line.scratch, exist_ok=True)
    rootfs.mount_scratch(line.scratch, disk_bytes)
    for name, target in (("tmp", "/tmp"), ("shm", "/dev/shm")):
        os.mkdir(f"{line.scratch}/{name}")
        os.chmod(f"{line.scratch}/{name}", 0o1777)
        syscalls.mount(f"{line.scratch}/{name}", target, None, syscalls.MS_BIND)
    if line.tmp:
        copy_tree(f"{rootfs.SCRATCH}/{line.tmp}", "/tmp")


def _mount_testbed(files: Dict[str, Optional[str]], line: lineage.Lineage) -> Layers:
    layer = f"{rootfs.SCRATCH}/0/files"
    if line.has_files and not line.depth:
        os.mkdir(layer)
        write_layer(layer, rootfs.TREE, files)
        flags = syscalls.MS_NOSUID | syscalls.MS_NODEV | syscalls.MS_RDONLY
        syscalls.mount("repairgym", rootfs.START, "overlay", flags, f"lowerdir={layer}:{rootfs.TREE},userxattr")
    os.chdir(rootfs.SCRATCH)
    lineage.make_folders(line, stat.S_IMODE(os.stat(rootfs.TREE).st_mode) | 0o700)
    lineage.mount_testbed(line)
    return Layers(_hold(rootfs.START if line.has_files else rootfs.TREE), _hold(rootfs.SCRATCH))


def _hold(folder: str) -> str:
    return f"/proc/self/fd/{os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)}"


def write_layer(layer: str, tree: str, files: Dict[str, Optional[str]]) -> None:
    """Write ``files`` as an overlay layer above ``tree``; None becomes a whiteout (character device 0, 0)."""
    for path, text in files.items():
        target = os.path.normpath(os.path.join(layer, path))
        if not target.startswith(layer + "/"):
            raise PermissionError(f"got the path {path!r}, expected one below the repository")
        os.makedirs(os.path.dirname(target), exist_ok=True)
        if text is None:
            os.mknod(target, stat.S_IFCHR | 0o600, 0)
            continue
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


def set_limits(limits: Dict[str, Any]) -> None:
    """Apply the resource limits of untrusted code to this process (None: unlimited)."""
    for kind, value in (
        (resource.RLIMIT_AS, limits["memory_bytes"]),
        (resource.RLIMIT_NPROC, limits["num_processes"]),
        (resource.RLIMIT_FSIZE, limits["file_bytes"]),
        (resource.RLIMIT_NOFILE, 1024),
        (resource.RLIMIT_CORE, 0),
    ):
        if value is not None:
            hard = resource.getrlimit(kind)[1]
            bounded = value if hard == resource.RLIM_INFINITY else min(value, hard)
            resource.setrlimit(kind, (bounded, bounded))


def drop_privileges() -> None:
    """Drop, for good, every capability and system call that untrusted code must not have."""
    syscalls.set_no_new_privileges()
    syscalls.drop_capabilities()
    syscalls.set_dumpable()
    if _SECCOMP_PROGRAM:
        syscalls.set_seccomp_filter(_SECCOMP_PROGRAM)


def confine(limits: Dict[str, Any]) -> None:
    """Turn the calling process into an untrusted one."""
    set_limits(limits)
    drop_privileges()

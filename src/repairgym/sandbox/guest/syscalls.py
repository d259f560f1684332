"""Linux system calls that Python before 3.12 lacks, through the C library.

Makes thin functions that raise ``OSError``. Guarantees: everything is resolved at import, so nothing is loaded after
the root file system changed or privileges were dropped. Numbers above 423 are equal on all architectures.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import resource
import socket
import struct
from typing import Any

CLONE_NEWNS = 0x00020000
CLONE_NEWCGROUP = 0x02000000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000
CLONE_NEW_OTHERS = CLONE_NEWNS | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS | CLONE_NEWCGROUP
"""All namespaces but those of users and pids."""

MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC = 1, 2, 4, 8
MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE = 0x20, 0x1000, 0x4000, 0x40000
MNT_DETACH = 2

MOUNT_ATTR_RDONLY, MOUNT_ATTR_NOSUID, MOUNT_ATTR_NOEXEC = 1, 2, 8
MOUNT_ATTR_IDMAP = 0x00100000
AT_FDCWD = -100
AT_EMPTY_PATH = 0x1000
AT_RECURSIVE = 0x8000
OPEN_TREE_CLONE = 1
MOVE_MOUNT_F_EMPTY_PATH = 4

_SYS_OPEN_TREE, _SYS_MOVE_MOUNT, _SYS_PIDFD_OPEN, _SYS_MOUNT_SETATTR = 428, 429, 434, 442
_SYS_CLOSE_RANGE = 436
_SYS_LANDLOCK_CREATE_RULESET, _SYS_LANDLOCK_ADD_RULE, _SYS_LANDLOCK_RESTRICT_SELF = 444, 445, 446
_LANDLOCK_CREATE_RULESET_VERSION, _LANDLOCK_RULE_PATH_BENEATH = 1, 1
_SYS_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}.get(os.uname().machine, -1)

_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_NO_NEW_PRIVS = 1, 4, 38
_PR_SET_SECCOMP, _PR_CAPBSET_DROP, _PR_SET_CHILD_SUBREAPER = 22, 24, 36
_IPC_RMID = 0
_CAPABILITY_VERSION_3 = 0x20080522
_SIOCGIFFLAGS, _SIOCSIFFLAGS, _IFF_UP = 0x8913, 0x8914, 1

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long


def _check(result: int, what: str) -> int:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")
    return result


def _text(value: str | None) -> bytes | None:
    return None if value is None else os.fsencode(value)


def mount(source: str, target: str, kind: str | None, flags: int = 0, options: str | None = None) -> None:
    """Mount ``source`` (or change the flags of a mount) at ``target``."""
    result = _libc.mount(_text(source), _text(target), _text(kind), ctypes.c_ulong(flags), _text(options))
    _check(result, f"mount {kind or 'flags'} on {target}")


def umount(target: str) -> None:
    """Detach the mounts at ``target``."""
    _check(_libc.umount2(_text(target), MNT_DETACH), f"umount {target}")


def unshare(flags: int) -> None:
    """Move this process (for pids: its next child) into new namespaces."""
    _check(_libc.unshare(ctypes.c_int(flags)), f"unshare {flags:#x}")


def setns(fd: int, kind: int) -> None:
    """Move this process (for pids: its next child) into the namespace behind ``fd``."""
    _check(_libc.setns(ctypes.c_int(fd), ctypes.c_int(kind)), f"setns {kind:#x}")


def _syscall(what: str, number: int, *arguments: Any) -> int:
    return _check(int(_libc.syscall(ctypes.c_long(number), *arguments)), what)


def pivot_root(new_root: str) -> None:
    """Make ``new_root`` (a mount point) the root and detach the old one."""
    os.chdir(new_root)
    _syscall("pivot_root", _SYS_PIVOT_ROOT, b".", b".")
    umount(".")
    os.chdir("/")


def clone_mount(source: str, attributes: int, userns_fd: int | None = None) -> int:
    """Return a detached copy of the mounts at ``source``, idmapped by ``userns_fd`` if given, to be attached later."""
    recursive = 0 if userns_fd is not None else AT_RECURSIVE
    flags = ctypes.c_uint(OPEN_TREE_CLONE | os.O_CLOEXEC | recursive)
    fd = _syscall(f"open_tree {source}", _SYS_OPEN_TREE, ctypes.c_int(AT_FDCWD), _text(source), flags)
    if userns_fd is not None:
        attributes |= MOUNT_ATTR_IDMAP
    record = struct.pack("=QQQQ", attributes, 0, 0, userns_fd or 0)
    flags = ctypes.c_uint(AT_EMPTY_PATH | recursive)
    arguments = (ctypes.c_int(fd), b"", flags, record, ctypes.c_size_t(len(record)))
    try:
        _syscall(f"mount_setattr {source}", _SYS_MOUNT_SETATTR, *arguments)
    except OSError:
        os.close(fd)
        raise
    return fd


def attach_mount(fd: int, target: str) -> None:
    """Attach the result of :func:`clone_mount` at ``target`` and close it."""
    try:
        arguments = (ctypes.c_int(fd), b"", ctypes.c_int(AT_FDCWD), _text(target))
        _syscall(f"move_mount {target}", _SYS_MOVE_MOUNT, *arguments, ctypes.c_uint(MOVE_MOUNT_F_EMPTY_PATH))
    finally:
        os.close(fd)


def pidfd_open(pid: int) -> int:
    """Open a descriptor that is readable once ``pid`` has ended."""
    return _syscall("pidfd_open", _SYS_PIDFD_OPEN, ctypes.c_int(pid), ctypes.c_uint(0))


def _prctl(what: str, option: int, *arguments: int) -> None:
    padded = [ctypes.c_ulong(value) for value in (*arguments, 0, 0, 0, 0)[:4]]
    _check(_libc.prctl(ctypes.c_int(option), *padded), what)


def remove_ipc_object(kind: str, number: int) -> None:
    """Remove a System V object (``shm``, ``sem`` or ``msg``) of this process's IPC namespace."""
    if kind == "sem":
        result = _libc.semctl(ctypes.c_int(number), ctypes.c_int(0), ctypes.c_int(_IPC_RMID))
    else:
        remove = _libc.shmctl if kind == "shm" else _libc.msgctl
        result = remove(ctypes.c_int(number), ctypes.c_int(_IPC_RMID), ctypes.c_void_p(None))
    _check(result, f"remove {kind} {number}")


def set_parent_death_signal(number: int) -> None:
    """Set the signal for the end of the parent; the kernel clears it on each change of credentials."""
    _prctl("PR_SET_PDEATHSIG", _PR_SET_PDEATHSIG, number)


def set_dumpable(is_dumpable: bool) -> None:
    """Set whether others may read this process's memory, descriptors and environment, and it its own ``/proc/self``."""
    _prctl("PR_SET_DUMPABLE", _PR_SET_DUMPABLE, int(is_dumpable))


def set_no_new_privileges() -> None:
    """Make every later execve grant no privileges."""
    _prctl("PR_SET_NO_NEW_PRIVS", _PR_SET_NO_NEW_PRIVS, 1)


def set_child_subreaper() -> None:
    """Make orphaned descendants children of this process."""
    _prctl("PR_SET_CHILD_SUBREAPER", _PR_SET_CHILD_SUBREAPER, 1)


def set_seccomp_filter(program: bytes) -> None:
    """Install ``program``, an array of ``sock_filter`` (8 bytes each)."""
    buffer = ctypes.create_string_buffer(program, len(program))
    descriptor = struct.pack("@HP", len(program) // 8, ctypes.addressof(buffer))
    record = ctypes.create_string_buffer(descriptor, len(descriptor))
    _prctl("PR_SET_SECCOMP", _PR_SET_SECCOMP, 2, ctypes.addressof(record))


def landlock_version() -> int:
    """Return the kernel's version of Landlock; 0 when it is missing or disabled."""
    arguments = (ctypes.c_void_p(None), ctypes.c_size_t(0), ctypes.c_uint(_LANDLOCK_CREATE_RULESET_VERSION))
    return max(0, int(_libc.syscall(ctypes.c_long(_SYS_LANDLOCK_CREATE_RULESET), *arguments)))


def landlock_create(attributes: bytes) -> int:
    """Make a rule set that handles ``attributes`` (``struct landlock_ruleset_attr``) and return its descriptor."""
    size = ctypes.c_size_t(len(attributes))
    return _syscall("landlock_create", _SYS_LANDLOCK_CREATE_RULESET, attributes, size, ctypes.c_uint(0))


def landlock_allow(ruleset: int, rights: int, folder: int) -> None:
    """Allow ``rights`` on everything below the descriptor ``folder``."""
    record = struct.pack("=Qi", rights, folder)
    kind = ctypes.c_int(_LANDLOCK_RULE_PATH_BENEATH)
    _syscall("landlock_add_rule", _SYS_LANDLOCK_ADD_RULE, ctypes.c_int(ruleset), kind, record, ctypes.c_uint(0))


def landlock_restrict(ruleset: int) -> None:
    """Restrict this thread and its descendants to ``ruleset``; needs ``no_new_privs``."""
    _syscall("landlock_restrict_self", _SYS_LANDLOCK_RESTRICT_SELF, ctypes.c_int(ruleset), ctypes.c_uint(0))


def drop_bounding_set() -> None:
    """Empty the capability bounding set, up to the first number that the kernel does not know."""
    for capability in range(64):
        try:
            _prctl("PR_CAPBSET_DROP", _PR_CAPBSET_DROP, capability)
        except OSError:
            return


def drop_capabilities() -> None:
    """Empty the effective, permitted and inheritable (hence ambient) capability sets."""
    header = struct.pack("=Ii", _CAPABILITY_VERSION_3, 0)
    _check(_libc.capset(header, struct.pack("=6I", 0, 0, 0, 0, 0, 0)), "capset")


def close_range(first: int) -> None:
    """Close every descriptor from ``first`` on."""
    arguments = (ctypes.c_uint(first), ctypes.c_uint(0xFFFFFFFF), ctypes.c_uint(0))
    if _libc.syscall(ctypes.c_long(_SYS_CLOSE_RANGE), *arguments) < 0:
        os.closerange(first, resource.getrlimit(resource.RLIMIT_NOFILE)[0])


def bring_loopback_up() -> None:
    """Set ``lo`` of the current network namespace up."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        answer = fcntl.ioctl(control, _SIOCGIFFLAGS, struct.pack("16sH14x", b"lo", 0))
        flags = struct.unpack("16sH14x", answer)[1] | _IFF_UP
        fcntl.ioctl(control, _SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", flags))

"""Rules that the kernel enforces on untrusted code: limits, no privileges, a seccomp filter, a Landlock rule set.

`confine` turns the calling process into an untrusted one. `build_filter` reads the machine name and makes a classic BPF
program that answers ``EPERM`` to calls that no repair needs: an architecture without a table gets no filter (the other
walls stand), system calls of a foreign ABI are denied, everything not named is allowed. `build_ruleset` reads lists of
paths and makes a rule set for back ends without namespaces: only listed paths can be opened; a kernel without Landlock,
or with a version before 2, which forbids every rename between folders, gives no rule set, and the caller has to report
that.
"""

from __future__ import annotations

import errno
import os
import resource
import stat
import struct
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

from . import syscalls

_LOAD, _JUMP_EQUAL, _JUMP_GREATER_EQUAL, _JUMP_SET, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _DENY = 0x7FFF0000, 0x00050000
_OFFSET_NUMBER, _OFFSET_ARCH, _OFFSET_FIRST_ARGUMENT, _OFFSET_SECOND_ARGUMENT = 0, 4, 16, 24
_CLONE_NAMESPACES = 0x7E020000
_FAMILIES = (1, 2, 10, 16)
"""Unix, IPv4, IPv6, netlink. The others reach out of the sandbox (vsock) or are rare code with frequent flaws."""
_TERMINAL_INPUTS = (0x5412, 0x541C)
"""TIOCSTI and TIOCLINUX, which type into a terminal."""
_X32_BIT = 0x40000000

# fmt: off
_X86_64: Dict[str, int] = {
    "ptrace": 101, "syslog": 103, "uselib": 134, "ustat": 136, "pivot_root": 155,
    "adjtimex": 159, "chroot": 161, "acct": 163, "settimeofday": 164, "mount": 165, "umount2": 166, "swapon": 167,
    "swapoff": 168, "reboot": 169, "sethostname": 170, "setdomainname": 171, "iopl": 172, "ioperm": 173,
    "init_module": 175, "delete_module": 176, "quotactl": 179, "clock_settime": 227, "kexec_load": 246,
    "add_key": 248, "request_key": 249, "keyctl": 250, "unshare": 272, "perf_event_open": 298,
    "name_to_handle_at": 303, "open_by_handle_at": 304, "clock_adjtime": 305, "setns": 308,
    "process_vm_readv": 310, "process_vm_writev": 311, "kcmp": 312, "finit_module": 313, "kexec_file_load": 320,
    "bpf": 321, "userfaultfd": 323, "vhangup": 153, "modify_ldt": 154, "_sysctl": 156, "create_module": 174,
    "get_kernel_syms": 177, "query_module": 178, "nfsservctl": 180, "lookup_dcookie": 212, "fanotify_init": 300,
    "fanotify_mark": 301,
}
_AARCH64: Dict[str, int] = {
    "umount2": 39, "mount": 40, "pivot_root": 41, "chroot": 51, "quotactl": 60, "acct": 89, "unshare": 97,
    "kexec_load": 104, "init_module": 105, "delete_module": 106, "clock_settime": 112, "syslog": 116, "ptrace": 117,
    "reboot": 142, "sethostname": 161, "setdomainname": 162, "settimeofday": 170, "adjtimex": 171, "add_key": 217,
    "request_key": 218, "keyctl": 219, "swapon": 224, "swapoff": 225, "perf_event_open": 241,
    "name_to_handle_at": 264, "open_by_handle_at": 265, "clock_adjtime": 266, "setns": 268,
    "process_vm_readv": 270, "process_vm_writev": 271, "kcmp": 272, "finit_module": 273, "bpf": 280,
    "userfaultfd": 282, "kexec_file_load": 294, "lookup_dcookie": 18, "nfsservctl": 42, "vhangup": 58,
    "fanotify_init": 262, "fanotify_mark": 263,
}
_EVERYWHERE: Dict[str, int] = {
    "io_uring_setup": 425, "io_uring_enter": 426, "io_uring_register": 427, "open_tree": 428, "move_mount": 429,
    "fsopen": 430, "fsconfig": 431, "fsmount": 432, "fspick": 433, "pidfd_getfd": 438, "mount_setattr": 442,
    "quotactl_fd": 443, "process_madvise": 440, "memfd_secret": 447, "open_tree_attr": 467,
}
# fmt: on
# In the namespaces of the host: no socket (pairs come from another call), no shared memory by number.
_HOST_REACHING: Dict[str, Dict[str, int]] = {
    "x86_64": {"socket": 41, "shmget": 29, "semget": 64, "msgget": 68, "mq_open": 240},
    "aarch64": {"socket": 198, "shmget": 194, "semget": 190, "msgget": 186, "mq_open": 180},
}
_CLONE3 = 435


class _Machine(NamedTuple):
    """Differences between architectures."""

    arch: int
    """AUDIT_ARCH"""
    denied: Dict[str, int]
    clone: int
    sockets: Tuple[int, int]
    """socket, socketpair"""
    ioctl: int


_MACHINES: Dict[str, _Machine] = {
    "x86_64": _Machine(0xC000003E, _X86_64, 56, (41, 53), 16),
    "aarch64": _Machine(0xC00000B7, _AARCH64, 220, (198, 199), 29),
}


def _instruction(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, if_true, if_false, value)


def _answer(code: int) -> bytes:
    return _instruction(_RETURN, _DENY | code)


_PASS, _EPERM = _instruction(_RETURN, _ALLOW), _answer(errno.EPERM)


def _check_argument(number: int, offset: int, tests: List[bytes]) -> List[bytes]:
    """Decide call ``number`` by ``tests`` of the argument at ``offset``, which end with an answer."""
    return [_instruction(_JUMP_EQUAL, number, 0, len(tests) + 1), _instruction(_LOAD, offset), *tests]


def _decide(test: int, values: Sequence[int], when_true: bytes, otherwise: bytes) -> List[bytes]:
    tests = [part for value in values for part in (_instruction(test, value, 0, 1), when_true)]
    return [*tests, otherwise]


def denied_calls(machine: str) -> Dict[str, int]:
    """Return names and numbers of the calls that are denied on ``machine`` with any arguments."""
    return {**_MACHINES[machine].denied, **_EVERYWHERE}


def build_filter(machine: str = "", *, is_in_host_namespaces: bool = False) -> bytes:
    """Make the program for ``machine`` (as in ``uname``, default: this one); empty when there is no table for it.

    ``is_in_host_namespaces``: also deny what namespaces would isolate, sockets and System V memory.
    """
    name = machine or os.uname().machine
    if name not in _MACHINES:
        return b""
    table = _MACHINES[name]
    denied = {**denied_calls(name), **(_HOST_REACHING[name] if is_in_host_namespaces else {})}
    program = [
        _instruction(_LOAD, _OFFSET_ARCH),
        _instruction(_JUMP_EQUAL, table.arch, 1, 0),
        _EPERM,
        _instruction(_LOAD, _OFFSET_NUMBER),
        _instruction(_JUMP_GREATER_EQUAL, _X32_BIT, 0, 1),
        _EPERM,
    ]
    for number in denied.values():
        program += [_instruction(_JUMP_EQUAL, number, 0, 1), _EPERM]
    # The flags of clone3 lie in memory that a filter cannot read; ENOSYS makes the C library use clone.
    program += [_instruction(_JUMP_EQUAL, _CLONE3, 0, 1), _answer(errno.ENOSYS)]
    program += _check_argument(
        table.clone, _OFFSET_FIRST_ARGUMENT, _decide(_JUMP_SET, (_CLONE_NAMESPACES,), _EPERM, _PASS)
    )
    for number in table.sockets:
        program += _check_argument(number, _OFFSET_FIRST_ARGUMENT, _decide(_JUMP_EQUAL, _FAMILIES, _PASS, _EPERM))
    program += _check_argument(
        table.ioctl, _OFFSET_SECOND_ARGUMENT, _decide(_JUMP_EQUAL, _TERMINAL_INPUTS, _EPERM, _PASS)
    )
    program.append(_PASS)
    return b"".join(program)


_PROGRAM = build_filter()


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
    syscalls.set_dumpable(True)
    if _PROGRAM:
        syscalls.set_seccomp_filter(_PROGRAM)


def confine(limits: Dict[str, Any]) -> None:
    """Turn the calling process into an untrusted one."""
    set_limits(limits)
    drop_privileges()


# --- Landlock ---------------------------------------------------------------------------------------------------------

_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_FOLDER = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_TRUNCATE, _IOCTL_DEVICE = 1 << 14, 1 << 15
_NUM_RIGHTS = {2: 14, 3: 15, 4: 15}
"""Version -> rights on files that it knows; later versions know 16."""
_OLDEST_VERSION, _NETWORK_VERSION, _SCOPE_VERSION = 2, 4, 6
_BIND_AND_CONNECT_TCP = 3
_ABSTRACT_SOCKETS_AND_SIGNALS = 3
_READ = _EXECUTE | _READ_FILE | _READ_FOLDER
_ON_FILES = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL_DEVICE


def build_ruleset(readable: Sequence[str], writable: Sequence[str], listable: Sequence[str] = ()) -> Optional[int]:
    """Make a descriptor of the rules: ``readable`` files and folders, ``writable`` ones, names below ``listable`` ones.

    Missing paths are skipped. From version 6 on, a restricted process reaches no abstract socket and signals only its
    descendants. None where the kernel lacks support.
    """
    version = syscalls.landlock_version()
    if version < _OLDEST_VERSION:
        return None
    handled = (1 << _NUM_RIGHTS.get(version, 16)) - 1
    network = _BIND_AND_CONNECT_TCP if version >= _NETWORK_VERSION else 0
    scopes = _ABSTRACT_SOCKETS_AND_SIGNALS if version >= _SCOPE_VERSION else 0
    num_fields = 3 if scopes else 2 if network else 1
    ruleset = syscalls.landlock_create(struct.pack("=3Q", handled, network, scopes)[: 8 * num_fields])
    for paths, rights in ((readable, _READ), (writable, handled), (listable, _READ_FOLDER)):
        for path in paths:
            _allow(ruleset, path, rights & handled)
    return ruleset


def build_file_ruleset(readable: Sequence[str], writable: Sequence[str]) -> Optional[int]:
    """Make a descriptor of rules about the contents of files alone: names, programs, network and signals stay free.

    None where the kernel lacks support.
    """
    version = syscalls.landlock_version()
    if version < _OLDEST_VERSION:
        return None
    handled = ((1 << _NUM_RIGHTS.get(version, 16)) - 1) & ~(_EXECUTE | _READ_FOLDER | _IOCTL_DEVICE)
    ruleset = syscalls.landlock_create(struct.pack("=Q", handled))
    for paths, rights in ((readable, _READ_FILE), (writable, handled)):
        for path in paths:
            _allow(ruleset, path, rights)
    return ruleset


def _allow(ruleset: int, path: str, rights: int) -> None:
    try:
        fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        is_folder = stat.S_ISDIR(os.fstat(fd).st_mode)
        syscalls.landlock_allow(ruleset, rights if is_folder else rights & _ON_FILES, fd)
    finally:
        os.close(fd)

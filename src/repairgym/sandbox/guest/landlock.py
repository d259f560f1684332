"""Walls without namespaces: Landlock rules that bound which files a process reaches, and whom it may signal.

Reads lists of paths, makes a rule set that a process can be held to. Invariants: what is not listed cannot be opened;
a kernel without Landlock, or with one that forbids every rename between folders (before version 2), gives no rule set,
and the caller has to say so.
"""

from __future__ import annotations

import os
import stat
import struct
from typing import Optional, Sequence

from . import syscalls

_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_FOLDER = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_TRUNCATE, _IOCTL_DEVICE = 1 << 14, 1 << 15
_NUM_RIGHTS = {2: 14, 3: 15, 4: 15}
"""Version -> rights on files that it knows; later versions know 16."""
_OLDEST_VERSION, _NETWORK_VERSION, _SCOPE_VERSION = 2, 4, 6
_BIND_AND_CONNECT_TCP = 3
_ABSTRACT_SOCKETS_AND_SIGNALS = 3
_READ = _EXECUTE | _READ_FILE | _READ_FOLDER
_ON_FILES = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL_DEVICE


def build_ruleset(readable: Sequence[str], writable: Sequence[str]) -> Optional[int]:
    """A descriptor of the rules: ``readable`` files and folders, ``writable`` ones, nothing else.

    Paths that are not there are left out. From version 6 on, a held process reaches no abstract socket and signals no
    process but those that came from it.

    Returns:
        None where the kernel cannot do it.
    """
    version = syscalls.landlock_version()
    if version < _OLDEST_VERSION:
        return None
    handled = (1 << _NUM_RIGHTS.get(version, 16)) - 1
    network = _BIND_AND_CONNECT_TCP if version >= _NETWORK_VERSION else 0
    scopes = _ABSTRACT_SOCKETS_AND_SIGNALS if version >= _SCOPE_VERSION else 0
    num_fields = 3 if scopes else 2 if network else 1
    ruleset = syscalls.landlock_create(struct.pack("=3Q", handled, network, scopes)[: 8 * num_fields])
    for paths, rights in ((readable, _READ), (writable, handled)):
        for path in paths:
            _allow(ruleset, path, rights & handled)
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

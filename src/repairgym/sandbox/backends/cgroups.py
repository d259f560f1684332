"""Control groups for the untrusted processes of sandboxes: version 2, version 1 (also hybrid), or none.

Reads ``/proc/self/mountinfo`` and ``/proc/self/cgroup``, makes one group per sandbox below a folder of this process,
itself below the group of this process. Guarantees: a controller counts only after a limit was written and read back;
the name of the folder identifies its owner (process id and start time), so the next process removes the groups of a
killed owner; a process of a living owner is never touched.
"""

import contextlib
import errno
import itertools
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from repairgym.config.sandbox import SandboxLimits
from repairgym.sandbox.backends.stale_cleanup import Owner
from repairgym.sandbox.guest import reaping

_NAME = re.compile(r"repairgym-([\w-]+:\d+:\d+:\d+)-\w+")
_LEAF = "host"
_numbers = itertools.count(1)


@dataclass(frozen=True)
class Mount:
    """One mounted hierarchy and the folder of this process in it."""

    version: int
    controllers: frozenset[str]
    own: Path


@dataclass(frozen=True)
class _Driver:
    """File names of one version."""

    memory_limits: tuple[str, ...]
    events: str
    peak: str


_DRIVERS = {
    1: _Driver(
        ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes"), "memory.oom_control", "memory.max_usage_in_bytes"
    ),
    2: _Driver(("memory.max",), "memory.events", "memory.peak"),
}


def _unescape(text: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), text)


def find_mounts(mountinfo: str, membership: str) -> list[Mount]:
    """Parse the hierarchies in ``mountinfo``, with this process's folders from the text of ``/proc/self/cgroup``."""
    folders: dict[str, str] = {}
    for line in membership.splitlines():
        _, controllers, folder = line.split(":", 2)
        folders.update(dict.fromkeys(controllers.split(","), folder))
    mounts = []
    for line in mountinfo.splitlines():
        left, _, right = line.partition(" - ")
        fields, (kind, _, options) = left.split(), right.split(" ", 2)
        if kind not in ("cgroup", "cgroup2"):
            continue
        root, point = _unescape(fields[3]), Path(_unescape(fields[4]))
        names = {""} if kind == "cgroup2" else set(options.split(",")) & folders.keys()
        path = next((folders[name] for name in names if name in folders), None)
        own = None if path is None else _below(path, root)
        if own is not None:
            mounts.append(Mount(2 if kind == "cgroup2" else 1, frozenset(names), point / own))
    return mounts


def _below(path: str, root: str) -> str | None:
    """Return ``path`` relative to the mounted ``root``; None when it lies elsewhere."""
    if root == "/":
        return path.strip("/")
    if path == root or path.startswith(root + "/"):
        return path[len(root) :].strip("/")
    return None


def _join_file(folder: Path) -> Path:
    """Return the file by which a process with one thread enters a group."""
    # That of version 1 takes no lock that the whole machine shares: when busy, `cgroup.procs` costs 10 ms and more.
    threads = folder / "tasks"
    return threads if threads.exists() else folder / "cgroup.procs"


class Group:
    """The control group of one sandbox."""

    def __init__(self, folders: list[Path], memory: tuple[Path, _Driver] | None) -> None:
        self.folders = folders
        self._memory = memory

    @contextlib.contextmanager
    def descriptors(self) -> Iterator[tuple[list[str], list[int]]]:
        """Yield what :class:`~repairgym.sandbox.guest.reaping.Accounting` takes: roles and their descriptors."""
        roles: list[str] = []
        fds: list[int] = []

        def open_as(role: str, path: Path, flags: int) -> None:
            fds.append(os.open(path, flags | os.O_CLOEXEC))
            roles.append(role)

        try:
            for folder in self.folders:
                open_as("join", _join_file(folder), os.O_WRONLY)
            if self._memory is not None:
                folder, driver = self._memory
                open_as("events", folder / driver.events, os.O_RDONLY)
                for role, flags in (("reset_peak", os.O_RDWR), ("peak", os.O_RDONLY)):
                    with contextlib.suppress(OSError):
                        open_as(role, folder / driver.peak, flags)
                        break
            yield roles, fds
        finally:
            for fd in fds:
                os.close(fd)

    def remove(self) -> bool:
        """Kill the remaining processes and remove the group; True when nothing remains."""
        results = [reaping.remove_group(str(folder)) for folder in self.folders]
        return all(results)


class ControlGroups:
    """A maker of one group per sandbox, or of none where this machine has no writable group."""

    def __init__(self, mounts: list[Mount] | None = None) -> None:
        self._name = _name(str(next(_numbers)))
        self._number = 0
        self._parents: list[tuple[Path, Mount]] = []
        self._adopted: list[tuple[Path, Mount, str]] = []
        """Parents with a controller of theirs."""
        mounts = [_above_leaf(mount) for mount in (_read_mounts() if mounts is None else mounts)]
        for mount in mounts:
            with contextlib.suppress(OSError):
                _sweep(mount.own)
        errors = [self._adopt(controller, mounts) for controller in ("memory", "pids")]
        versions = {mount.version for _, mount in self._parents}
        self.kind = f"v{max(versions)}" if versions else "none"
        self.reason = "; ".join(filter(None, errors))

    @property
    def folders(self) -> list[str]:
        """Folders that hold this process's groups."""
        return [str(folder) for folder, _ in self._parents]

    def _adopt(self, controller: str, mounts: list[Mount]) -> str:
        """Use ``controller`` from the first hierarchy where it works; return the reason when there is none."""
        errors = [f"no hierarchy has the controller {controller!r}"]
        for mount in mounts:
            if mount.version == 1 and controller not in mount.controllers:
                continue
            place = (mount.own / self._name, mount)
            try:
                _try(*place, controller, is_new=place not in self._parents)
            except OSError as error:
                errors.append(f"{mount.own} ({controller}): {error.strerror}")
                continue
            self._adopted.append((*place, controller))
            if place not in self._parents:
                self._parents.append(place)
            return ""
        return errors[-1]

    def create(self, limits: SandboxLimits) -> Group | None:
        """Make a group bounded by ``limits``; None where there are none, ``OSError`` when the kernel denies it now."""
        if not self._parents:
            return None
        self._number += 1
        group = Group([], None)
        try:
            for parent, mount in self._parents:
                folder = parent / str(self._number)
                if not parent.is_dir():
                    self._make_again(parent)
                folder.mkdir()
                group.folders.append(folder)
                memory = set_limits(folder, mount, limits)
                group = Group(group.folders, memory or group._memory)
        except OSError:
            group.remove()
            raise
        return group

    def _make_again(self, folder: Path) -> None:
        """Make a parent that a spawner, which removes them at its end, has removed before its successor started."""
        folder.mkdir(exist_ok=True)
        for parent, mount, controller in self._adopted:
            if parent == folder and mount.version == 2:
                enable(parent, controller)

    def close(self) -> None:
        """Remove everything; processes in the groups are killed."""
        for parent, _ in self._parents:
            reaping.remove_group(str(parent))
        self._parents = []


def _name(suffix: str) -> str:
    """Return a folder name that marks this process as the owner."""
    return f"repairgym-{Owner.of_this_process()}-{suffix}"


def _above_leaf(mount: Mount) -> Mount:
    """Return ``mount`` as it was before this process moved into its own leaf."""
    return replace(mount, own=mount.own.parent) if mount.own.name == _name(_LEAF) else mount


def _read_mounts() -> list[Mount]:
    try:
        return find_mounts(Path("/proc/self/mountinfo").read_text(), Path("/proc/self/cgroup").read_text())
    except OSError:
        return []


def _sweep(own: Path) -> None:
    """Remove the groups of killed owners below ``own``."""
    for folder in own.iterdir():
        match = _NAME.fullmatch(folder.name)
        owner = Owner.parse(match[1]) if match and folder.is_dir() else None
        if owner is not None and owner.is_gone():
            reaping.remove_group(str(folder))


def _try(parent: Path, mount: Mount, controller: str, *, is_new: bool) -> None:
    """Make ``parent`` and a group in it, set a limit and read it back; ``OSError`` where that does not work."""
    parent.mkdir(exist_ok=True)
    child = parent / "probe"
    is_kept = False
    try:
        if mount.version == 2:
            enable(mount.own, controller)
            enable(parent, controller)
        child.mkdir()
        set_limits(child, mount, SandboxLimits())
        name = "pids.max" if controller == "pids" else _DRIVERS[mount.version].memory_limits[0]
        if not (child / name).read_text().strip().isdigit():
            raise OSError(errno.EIO, f"the limit {name} was not kept")
        is_kept = True
    finally:
        reaping.remove_group(str(child))
        if is_new and not is_kept:
            reaping.remove_group(str(parent))


def enable(folder: Path, controller: str) -> None:
    """Let groups below ``folder`` use ``controller`` (version 2).

    A group with processes of its own cannot (``OSError``); when this process is the only one, it moves to a leaf.
    """
    control = folder / "cgroup.subtree_control"
    if controller in control.read_text().split():
        return
    try:
        control.write_text(f"+{controller}")
    except OSError as error:
        if error.errno != errno.EBUSY or reaping.group_processes(str(folder)) != [os.getpid()]:
            raise
        leaf = folder / _name(_LEAF)
        leaf.mkdir(exist_ok=True)
        (leaf / "cgroup.procs").write_text("0")
        control.write_text(f"+{controller}")


def set_limits(folder: Path, mount: Mount, limits: SandboxLimits) -> tuple[Path, _Driver] | None:
    """Set the limits that ``folder`` supports; return the folder that counts its memory (None: unbounded)."""
    # Files of a sandbox lie in memory too and are charged to it.
    memory_bytes = limits.memory_bytes + limits.disk_bytes
    driver = _DRIVERS[mount.version]
    memory = None
    if (folder / driver.memory_limits[0]).exists():
        for name in driver.memory_limits:
            _write_if_there(folder / name, memory_bytes)
        _write_if_there(folder / "memory.swap.max", 0)
        memory = (folder, driver)
    _write_if_there(folder / "pids.max", limits.num_processes)
    return memory


def _write_if_there(path: Path, value: int) -> None:
    if path.exists():
        path.write_text(str(value))

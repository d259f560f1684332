"""The two roots over a container image: one that commands may change, and one for tests, which nothing changes.

Reads the layers of the image and :data:`.rootfs.IMAGE_TOP`, which the root of the zygote holds; makes two overlays in
the mount namespace of a sandbox. Guarantees: the trusted process of a sandbox stays in its own root, made from folders
of the host, and imports nothing from an image; what commands write lies in the sandbox's bounded tmpfs; the root for
tests is the image as it was pulled, read-only, and shares only ``/testbed``, ``/tmp`` and ``/dev`` with the other one.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, List, Optional

from . import rootfs, syscalls

if TYPE_CHECKING:
    from .isolation import Lineage

_WRITABLE = ("/testbed", "/tmp", "/dev", "/proc")
_FLAGS = syscalls.MS_NOSUID | syscalls.MS_NODEV


def lower_layers(num_layers: int) -> List[str]:
    """Return the layers of the image with ours above, the topmost first, relative to :data:`.rootfs.SCRATCH`."""
    names = (f"../{os.path.basename(rootfs.IMAGE_LAYERS)}/{number}" for number in reversed(range(num_layers)))
    return [f"../{os.path.basename(rootfs.IMAGE_TOP)}", *names]


def make_upper(line: Lineage, scratch: str) -> None:
    """Make the folders that hold what commands change in the root, from now on."""
    upper, work = line.root_upper
    os.mkdir(f"{scratch}/{upper}")
    os.chmod(f"{scratch}/{upper}", 0o755)
    os.mkdir(f"{scratch}/{work}")


def mount_roots(line: Lineage) -> None:
    """Mount both roots; ``/testbed``, ``/tmp``, ``/dev`` and ``/proc`` are mounted already."""
    os.chdir(rootfs.SCRATCH)
    syscalls.mount("overlay", rootfs.COMMANDS_ROOT, "overlay", _FLAGS, line.root_options())
    options = f"lowerdir={':'.join(lower_layers(line.num_layers))},userxattr"
    syscalls.mount("overlay", rootfs.TESTS_ROOT, "overlay", _FLAGS | syscalls.MS_RDONLY, options)
    os.chdir("/")
    for root in (rootfs.COMMANDS_ROOT, rootfs.TESTS_ROOT):
        for name in rootfs.IMAGE_SHARED:
            syscalls.mount(f"/{name}", f"{root}/{name}", None, syscalls.MS_BIND | syscalls.MS_REC)
    syscalls.mount(rootfs.GUEST, rootfs.TESTS_ROOT + rootfs.IMAGE_GUEST, None, syscalls.MS_BIND)


def unmount_roots() -> None:
    """Detach both roots with all that is mounted in them."""
    for root in (rootfs.COMMANDS_ROOT, rootfs.TESTS_ROOT):
        syscalls.umount(root)


def enter(root: str) -> None:
    """Make ``root`` the root of this process, a child that is to become untrusted.

    Nothing is imported from here until it has lost its privileges: the modules would be those of the image.
    """
    os.chroot(root)
    os.chdir("/")


def find_python(path: str) -> Optional[str]:
    """Return the first ``python3`` on ``path`` that no code of the sandbox can replace, in the root for tests."""
    for folder in path.split(":"):
        python = f"{folder}/python3"
        places = (folder, os.path.realpath(folder), os.path.realpath(python))
        if not any(map(_is_writable, places)) and os.access(python, os.X_OK):
            return python
    return None


def _is_writable(path: str) -> bool:
    return not path.startswith("/") or any(f"{path}/".startswith(f"{place}/") for place in _WRITABLE)

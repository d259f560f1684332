"""Container images as roots of sandboxes, on the host's side.

Reads an :class:`~repairgym.sandbox.base.ImageRoot`, makes the variables of commands and the files of ours that lie over
the image. Guarantees: reading a layer follows no link, because those of an image can name any file of the host.
"""

import os
import stat
from contextlib import suppress
from pathlib import Path

from repairgym.errors import InputError
from repairgym.sandbox.base import ImageRoot, SandboxSpec
from repairgym.sandbox.guest import rootfs
from repairgym.sandbox.guest.spawner import GUEST_ENVIRONMENT

_DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_USER_ID = "1000"
_MAX_FILE_BYTES = 1 << 20


def variables_of(spec: SandboxSpec) -> dict[str, str]:
    """Return the variables of commands in the image of ``spec``; empty without one."""
    if spec.root is None:
        return {}
    path = spec.root.variables.get("PATH", _DEFAULT_PATH)
    path = path if spec.environment == Path("/") else f"{spec.environment}/bin:{path}"
    return {**GUEST_ENVIRONMENT, **spec.root.variables, "PATH": path}


def image_files(root: ImageRoot) -> dict[str, str]:
    """Return the files (relative path -> text) that lie over the image: names of the machine, and of its one user.

    Raises:
        InputError: a layer is not there.
    """
    for layer in root.layers:
        if not layer.is_dir():
            raise InputError(f"the layer {layer} of the image is not there; pull the image again")
    own = {f"etc/{name}": rootfs.ETC_FILES[name] for name in ("hosts", "hostname")}
    for name in ("passwd", "group"):
        path = f"etc/{name}"
        text, user = _read(root, path), rootfs.ETC_FILES[name].splitlines()[-1]
        is_named = any(line.split(":")[2:3] == [_USER_ID] for line in text.splitlines())
        own[path] = text if is_named else f"{text}{user}\n" if text else rootfs.ETC_FILES[name]
    return own


def _read(root: ImageRoot, path: str) -> str:
    """Return the text of a file of the image; empty when it has none, or a link leads there."""
    for layer in reversed(root.layers):
        with suppress(FileNotFoundError):
            folder = os.lstat((layer / path).parent)
            is_file = stat.S_ISDIR(folder.st_mode) and stat.S_ISREG(os.lstat(layer / path).st_mode)
            if not is_file:
                return ""
            descriptor = os.open(layer / path, os.O_RDONLY | os.O_NOFOLLOW)
            with open(descriptor, encoding="utf-8", errors="surrogateescape") as file:
                text = file.read(_MAX_FILE_BYTES)
            return text if not text or text.endswith("\n") else f"{text}\n"
    return ""

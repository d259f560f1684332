"""A small container image made from programs of this machine, for checks and measurements without a download.

Reads installed programs, the interpreter and an environment; makes three layers in the form of the layer store: system,
interpreter, packages. Files are hard links where this user owns them, else copies, because a sandbox can change only
files of its own user.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from repairgym.sandbox.base import ImageRoot

ENVIRONMENT = Path("/opt/venv")
"""Folder of the image that holds its packages."""
_PROGRAMS = (
    "awk", "base64", "bash", "basename", "cat", "chgrp", "chmod", "chown", "cmp", "comm", "cp", "cut", "date", "dd",
    "df", "diff", "dirname", "du", "echo", "env", "expr", "false", "find", "grep", "gzip", "head", "hostname", "id",
    "kill", "ln", "ls", "mkdir", "mkfifo", "mktemp", "mount", "mv", "nproc", "od", "printf", "ps", "pwd", "readlink",
    "realpath", "rm", "rmdir", "sed", "seq", "setsid", "sh", "sha256sum", "sleep", "sort", "stat", "stty", "su",
    "sync", "tail", "tar", "tee", "test", "timeout", "touch", "tr", "true", "truncate", "tty", "uname", "uniq", "wc",
    "which", "whoami", "xargs", "yes",
)  # fmt: skip
_LEFT_OUT = shutil.ignore_patterns(
    "site-packages", "test", "tests", "idlelib", "lib2to3", "turtledemo", "config-*", "ensurepip"
)


def make_image(folder: Path, environment: Path) -> ImageRoot:
    """Make an image below ``folder`` with the packages of ``environment`` at `ENVIRONMENT`."""
    system, interpreter, packages = (folder / name for name in ("system", "interpreter", "packages"))
    programs = [Path(path) for path in map(shutil.which, _PROGRAMS) if path]
    system.mkdir(parents=True)
    for name in ("bin", "sbin", "lib", "lib64"):
        if os.path.islink(f"/{name}"):
            (system / name).symlink_to(os.readlink(f"/{name}"))
    prefix = Path(sys.base_prefix).resolve()
    library = prefix / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}"
    python = Path(sys.executable).resolve()
    for path in (*programs, *find_libraries([*programs, python, *library.glob("lib-dynload/*.so")])):
        _place(path, system / str(path.parent.resolve())[1:] / path.name)
    _place(python, interpreter / str(python)[1:])
    if python.name != "python3":
        (interpreter / str(python)[1:]).with_name("python3").symlink_to(python.name)
    shutil.copytree(library, interpreter / str(library)[1:], symlinks=True, copy_function=_link, ignore=_LEFT_OUT)
    inside = packages / str(ENVIRONMENT)[1:]
    shutil.copytree(environment / "lib", inside / "lib", symlinks=True, copy_function=_link)
    (inside / "bin").mkdir()
    for name in ("python", "python3"):
        (inside / "bin" / name).symlink_to(python)
    (inside / "pyvenv.cfg").write_text(f"home = {python.parent}\ninclude-system-site-packages = false\n")
    return ImageRoot(layers=(system, interpreter, packages), variables={"LANG": "C.UTF-8"})


def find_libraries(programs: Iterable[Path]) -> set[Path]:
    """Return the shared libraries that ``programs`` load, and the loader."""
    done = subprocess.run(["ldd", *map(str, programs)], capture_output=True, text=True)
    return {Path(path) for path in re.findall(r"^\s+(?:\S+ => )?(/\S+) \(", done.stdout, re.MULTILINE)}


def _place(source: Path, target: Path) -> None:
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        _link(str(source.resolve()), str(target))


def _link(source: str, target: str) -> None:
    if os.stat(source).st_uid == os.getuid():
        try:
            os.link(source, target)
            return
        except OSError:
            pass
    shutil.copy2(source, target)

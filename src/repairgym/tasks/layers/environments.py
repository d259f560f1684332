"""Pinned environments: locks with hashes, and the virtual environments built from them.

Reads test requirements. Makes locks (``uv pip compile --universal --generate-hashes``: one lock serves every supported
Python) and environment layers. The locks of the shipped catalogue live in ``repairgym/data/locks``, so that builds
install the same files next year. A lock may end with a *wheelhouse*: more versions of its packages, each in its own
folder (``wheelhouse/NAME-VERSION``), so that a repair with another version can be tried offline. Guarantees: equal
requirements share one environment, and an environment holds exactly its lock. Only this module and `package_index` use
a network, only to resolve or build (`LayersConfig.is_index_allowed`), and no package code runs: only wheels are
installed. An index that does not answer raises `IndexUnavailableError`; versions that are not on it, or that do not fit
together, raise `PackageNotFoundError`.
"""

import glob
import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterable
from datetime import UTC, datetime
from functools import lru_cache
from importlib import metadata, resources
from pathlib import Path

from packaging.utils import canonicalize_name
from uv import find_uv_bin

from repairgym.errors import DiskFullError, IndexUnavailableError, PackageNotFoundError, TaskError
from repairgym.records import Environment
from repairgym.tasks.layers.atomic_write import written_whole
from repairgym.tasks.layers.catalogue import (
    GRADLE_REQUIREMENTS,
    JAVA_REQUIREMENTS,
    JavaPackage,
    NpmPackage,
    NpmRepository,
    Project,
    shipped_path,
)
from repairgym.tasks.layers.debian import (
    DEBIAN_HEAD,
    GRADLE_TOOLS,
    JAVA_TOOLS,
    add_toolchain,
    read_debs,
    resolve_debs,
    toolchain_texts,
)
from repairgym.tasks.layers.npm_locks import install_npm_lock, is_npm_lock, read_npm_lock
from repairgym.tasks.layers.package_index import index_settings
from repairgym.tasks.layers.store import LayerStore

PYTEST = "pytest==8.3.5"
RUNNER_PACKAGES = ("pytest", "pluggy", "iniconfig", "pygments")
"""Requirements of the grader's own runner: no date bounds them."""
OLDEST_PYTHON = "3.11"
"""Locks hold for this version of Python and every later one."""
UV_TIMEOUT_S = 600.0
MAX_LOCK_NAME_CHARS = 200
"""File systems allow 255 bytes; the rest of a longer name is a digest."""
WHEELHOUSE_HEAD = "# wheelhouse: each of these in a folder of its own\n"


def lock_name(requirements: tuple[str, ...]) -> str:
    """Return the file name of the lock of ``requirements`` (beyond pytest)."""
    parts = [re.sub(r"[^A-Za-z0-9.]+", "-", requirement).strip("-") for requirement in sorted(requirements)]
    name = "+".join(["pytest", *parts])
    if len(name) > MAX_LOCK_NAME_CHARS:
        name = f"{name[:MAX_LOCK_NAME_CHARS]}+{hashlib.sha256(name.encode()).hexdigest()[:12]}"
    return f"{name}.txt"


def shipped_locks_folder() -> Path:
    """Return the folder of the shipped locks."""
    return Path(str(resources.files("repairgym") / "data" / "locks"))


def read_lock(requirements: tuple[str, ...], folder: str = "") -> str:
    """Read the lock of ``requirements`` in ``folder`` (default: the shipped ones); TaskError for a missing one."""
    path = (shipped_path(Path(folder)) if folder else shipped_locks_folder()) / lock_name(requirements)
    if not path.is_file():
        command = "repairgym tasks lock --catalogue FILE --output FOLDER"
        raise TaskError(f"no lock {path.name} in {path.parent}; make it with: {command}, and pass locks=FOLDER")
    return path.read_text(encoding="utf-8")


def lock_of(project: Project, folder: str = "") -> str:
    """Read the lock of ``project`` in ``folder`` (default: the shipped ones); TaskError for a missing one."""
    if isinstance(project, NpmPackage | NpmRepository):
        return read_npm_lock(project.name, folder)
    if isinstance(project, JavaPackage):
        return read_lock(project.toolchain, folder)
    return read_lock(project.requirements, folder)


def write_lock(requirements: tuple[str, ...], folder: Path, exclude_newer: str = "") -> Path:
    """Resolve ``requirements`` (see `resolve_lock`) and write their lock below ``folder``; return the file."""
    path, lock = folder / lock_name(requirements), resolve_lock(requirements, exclude_newer)
    with written_whole(path) as stream:
        stream.write(lock.encode())
    return path


def kept_or_resolved_lock(folder: Path, requirements: tuple[str, ...]) -> str:
    """Return the lock of ``requirements`` in ``folder``, which stays as it is, or a new one that is not written."""
    path = folder / lock_name(requirements)
    return path.read_text(encoding="utf-8") if path.is_file() else resolve_lock(requirements)


def requirement_name(requirement: str) -> str:
    """Return the canonical name of the distribution that a requirement or a line of a lock asks for."""
    return canonicalize_name(re.split(r"[^\w.-]", requirement.strip(), maxsplit=1)[0])


def resolve_lock(requirements: tuple[str, ...], exclude_newer: str = "") -> str:
    """Resolve pytest and ``requirements`` to a lock with hashes; those of Java stand for its toolchains.

    Uploads after ``exclude_newer`` (RFC 3339) are ignored, except for `RUNNER_PACKAGES`; an index without upload times
    then has no versions.
    """
    for toolchain, tools in ((JAVA_REQUIREMENTS, JAVA_TOOLS), (GRADLE_REQUIREMENTS, GRADLE_TOOLS)):
        if requirements == toolchain:
            return resolve_lock((), exclude_newer) + resolve_debs(tools)
    argv = ["pip", "compile", "-", "--universal", "--python-version", OLDEST_PYTHON, "--generate-hashes"]
    argv += ["--no-header", "--no-annotate", "--quiet", "--only-binary", ":all:", *index_arguments()]
    if exclude_newer:
        today = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        argv += ["--exclude-newer", exclude_newer]
        argv += [part for name in RUNNER_PACKAGES for part in ("--exclude-newer-package", f"{name}={today}")]
    return run_uv(argv, stdin="\n".join([PYTEST, *sorted(requirements)]) + "\n")


def with_wheelhouse(lock: str, versions: Iterable[str]) -> str:
    """Add more versions to ``lock``, each a part of another lock."""
    return lock + WHEELHOUSE_HEAD + "".join(versions)


def describe_environment(lock: str) -> Environment:
    """Describe the environment of ``lock`` on this machine without building it."""
    python = platform.python_version()
    scripts = toolchain_texts(read_debs(lock.partition(DEBIAN_HEAD)[2])) if DEBIAN_HEAD in lock else ()
    key = "\n".join([lock, python, sys.implementation.name, sysconfig.get_platform(), *scripts])
    return Environment(lock=lock, python=python, digest=hashlib.sha256(key.encode()).hexdigest())


def build_environment(store: LayerStore, lock: str) -> tuple[Environment, Path]:
    """Return the environment of ``lock`` and its folder; build a missing one from uv's cache or an index."""
    environment = describe_environment(lock)
    main, _, wheelhouse = lock.partition(WHEELHOUSE_HEAD)
    # Layers are read-only: the same files serve the environment with and without a wheelhouse.
    plain = build_environment(store, main)[1] if wheelhouse else None
    return environment, store.build_once(
        "environments", environment.digest, lambda place: _install(place, lock, store, plain)
    )


def without_package(store: LayerStore, environment: Path, package: str, source_paths: tuple[str, ...]) -> Path:
    """Return ``environment`` without the distribution ``package``; the same folder when it has none.

    A task of a package that pytest needs (`packaging`) would show a repaired copy there. The new environment has
    ``source_paths`` of the tree on its path instead, so that pytest finds the package there.
    """
    folder, wanted = next(environment.glob("lib/python*/site-packages")), canonicalize_name(package)
    installed = _installed(folder, wanted)
    if not installed:
        return environment
    digest = hashlib.sha256(f"{environment.name}:without:{wanted}:{source_paths}".encode()).hexdigest()

    def build(place: Path) -> None:
        # The first process of a sandbox is the trusted one: it must never import from the tree.
        paths = [f"/testbed/{path}" for path in source_paths if path]
        text = f"import os, sys; sys.path += {paths} if os.getpid() != 1 else []\n"
        shutil.copytree(environment, place, symlinks=True, copy_function=os.link, dirs_exist_ok=True)
        root = place / folder.relative_to(environment)
        (root / "testbed.pth").write_text(text, encoding="utf-8")
        files = [root / file for dist in installed for file in dist.files or ()]
        for file in files:
            file.unlink(missing_ok=True)
            for compiled in file.parent.glob(f"__pycache__/{glob.escape(file.stem)}.*.pyc"):
                compiled.unlink()
        for parent in sorted({parent for file in files for parent in file.parents}, reverse=True):
            for empty in (parent / "__pycache__", parent):
                if empty.is_dir() and empty != root and not any(empty.iterdir()):
                    empty.rmdir()

    return store.build_once("environments", digest, build)


@lru_cache(maxsize=256)
def _installed(folder: Path, wanted: str) -> tuple[metadata.Distribution, ...]:
    """Return the distributions ``wanted`` in ``folder``, which never changes: reading all metadata takes long."""
    everything = metadata.distributions(path=[str(folder)])
    return tuple(dist for dist in everything if canonicalize_name(dist.name) == wanted)


def install_arguments(python: Path, lock: Path, is_index_allowed: bool, target: Path | None = None) -> list[str]:
    """Return uv's arguments to install ``lock`` for ``python``: wheels with the hashes of the lock; no code runs.

    Without an index uv uses its own cache only. With ``target`` everything goes into that folder.
    """
    install = ["pip", "install", "--no-deps", "--target", str(target), "--requirements"] if target else ["pip", "sync"]
    # Copies, not hard links: other programs may write to the cache.
    options = ["--quiet", "--require-hashes", "--compile-bytecode", "--link-mode", "copy", "--only-binary", ":all:"]
    index = index_arguments() if is_index_allowed else ["--offline"]
    return [*install, str(lock), *options, "--python", str(python), *index]


def _install(place: Path, lock: str, store: LayerStore, plain: Path | None) -> None:
    """Fill ``place`` with the packages of ``lock``; ``plain`` is the environment without the wheelhouse, if any."""
    if is_npm_lock(lock):
        install_npm_lock(place, lock, store, _make_python)
        return
    lock, _, debian = lock.partition(DEBIAN_HEAD)
    main, _, wheelhouse = lock.partition(WHEELHOUSE_HEAD)
    python = place / "bin" / "python"
    if plain:
        shutil.copytree(plain, place, symlinks=True, copy_function=os.link, dirs_exist_ok=True)
    else:
        _make_python(place)
        (place / "repairgym.lock").write_text(main, encoding="utf-8")
        run_uv(install_arguments(python, place / "repairgym.lock", store.config.is_index_allowed))
    for part in re.split(r"^(?=[A-Za-z0-9])", wheelhouse, flags=re.MULTILINE)[1:]:
        folder = place / "wheelhouse" / part.split()[0].replace("==", "-")
        shutil.copytree(_wheelhouse_layer(store, part, python), folder, copy_function=os.link)
    if debian:
        add_toolchain(place, read_debs(debian), store)


def _make_python(place: Path) -> None:
    venv = ["venv", "--quiet", "--relocatable", "--allow-existing", "--no-project", "--python", str(base_python())]
    run_uv([*venv, str(place)])


def _wheelhouse_layer(store: LayerStore, part: str, python: Path) -> Path:
    """Return the layer with the distribution that ``part`` of a lock names; many environments share its files."""

    def build(place: Path) -> None:
        (place / "repairgym.lock").write_text(part, encoding="utf-8")
        run_uv(install_arguments(python, place / "repairgym.lock", store.config.is_index_allowed, place))

    return store.build_once("wheelhouses", describe_environment(part).digest, build)


def base_python() -> Path:
    """Return the interpreter of this process outside any virtual environment."""
    return Path(getattr(sys, "_base_executable", sys.executable)).resolve()


def index_arguments() -> list[str]:
    """Return uv's arguments that name the user's index, where only pip's variables do."""
    # uv reads its own UV_* variables but not pip's.
    settings = index_settings()
    is_pip_default = settings.default and not os.environ.get("UV_DEFAULT_INDEX")
    arguments = ["--default-index", settings.default] if is_pip_default else []
    return arguments + [part for url in settings.extra for part in ("--index", url)]


def run_uv(argv: list[str], stdin: str = "") -> str:
    """Return the output of a uv command.

    Raises:
        PackageNotFoundError: no versions fit together.
        IndexUnavailableError: it failed otherwise.
        DiskFullError: there is no room.
    """
    command = [find_uv_bin(), *argv]
    # The root folder has no uv settings that could change the result.
    done = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=UV_TIMEOUT_S, cwd="/")
    if done.returncode == 0:
        return done.stdout
    # The resolver says at both ends what matters: that there is no solution, and which requirements exclude each other.
    text = " ".join(done.stderr.split())
    detail = text if len(text) <= 1000 else f"{text[:400]} ... {text[-600:]}"
    if "No space left on device" in detail or "os error 28" in detail:
        raise DiskFullError(f"no space left for an environment: {detail}; free some space and run the command again")
    if "No solution found" in text:
        raise PackageNotFoundError(f"uv {argv[0]} {argv[1]} finds no versions that fit: {detail}; change a requirement")
    raise IndexUnavailableError(f"uv {argv[0]} {argv[1]} failed: {detail}; check the network or PIP_INDEX_URL")

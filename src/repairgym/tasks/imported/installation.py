"""The install layers of an imported task: its tree as built, and its environment with the project installed.

Reads a pinned record, a clone and a recipe's environment. Makes two layers: the tree of the base commit with the
record's tests and what the build wrote into it, and the environment with the project (editable, at `/testbed`) and its
dependencies. Guarantees: the tree holds no ``.git``, no code of the repair, and the record's own tests; both layers are
addressed by what they are made from; packages that are installed stay at their versions unless the project cannot use
them.
"""

import asyncio
import hashlib
import os
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from repairgym.diffs.apply import apply_patch
from repairgym.records import ImageEnvironment
from repairgym.sandbox.guest.rootfs import TESTBED
from repairgym.tasks.build.validation import TaskLayers
from repairgym.tasks.imported.building import BuiltProject, ProjectBuilder
from repairgym.tasks.imported.environments import ENVIRONMENT_FORMAT, Packages, Wanted, packages_of, site_packages
from repairgym.tasks.imported.recipes import BuildRecipe
from repairgym.tasks.layers.repositories import COMMIT_TREE_FORMAT, GitRepository
from repairgym.tasks.layers.store import LayerStore
from repairgym.tasks.unbuilt import UnbuiltTask

INSTALL_FORMAT = 1
"""Part of each digest; grows when the same input makes other layers."""


@dataclass(frozen=True)
class Installed:
    """The layers in which the tests of a task run."""

    layers: TaskLayers
    source_paths: tuple[str, ...]
    """Folders of the tree from which the project is imported."""
    packages: Packages
    image: ImageEnvironment | None = None
    """None: the environment is a layer of its own."""

    @property
    def tree(self) -> Path:
        """The layer of the tree."""
        return self.layers.tree

    @property
    def digest(self) -> str:
        """The content address of the environment."""
        return self.image.digest() if self.image else self.layers.environment.name


def graded_tree(store: LayerStore, clone: GitRepository, task: UnbuiltTask) -> Path:
    """Return the layer of the agent's base with the tests of the record: `base_commit`, bug and patch of tests.

    Raises:
        UnsupportedTreeError: the commit cannot be pinned.
        PatchError: the patch of tests does not fit.
    """
    files = {**task.base_files, **apply_patch(task.test_patch, task.base_files.get)}
    content = repr(sorted(files.items())).encode()
    address = f"graded-tree:{COMMIT_TREE_FORMAT}:{task.base_tree}:{hashlib.sha256(content).hexdigest()}"

    def build(place: Path) -> None:
        clone.write_tree(task.base_commit, place)
        write_below(place, {path: None if text is None else text.encode() for path, text in files.items()})

    return store.build_once("trees", hashlib.sha256(address.encode()).hexdigest(), build)


async def install(
    store: LayerStore, builder: ProjectBuilder, recipe: BuildRecipe, base: Path, tree: Path, version: str
) -> Installed:
    """Install the project in ``tree`` into the environment ``base``; return both layers.

    Raises:
        BuildError: the project cannot be built.
        PackageNotFoundError: its dependencies cannot be had.
    """
    parts = (INSTALL_FORMAT, ENVIRONMENT_FORMAT, base.name, tree.name, version, recipe.extras, recipe.pre_install)
    added = (recipe.added_by_repair,) if recipe.added_by_repair else ()
    digest = hashlib.sha256(repr((parts, recipe.uploaded_before, *added)).encode()).hexdigest()
    environment, built_tree = store.find("environments", digest), store.find("trees", digest)
    if not environment or not built_tree:
        built = await builder.build(tree, "editable", version, recipe.pre_install)

        def fill_tree(place: Path) -> None:
            shutil.copytree(tree, place, dirs_exist_ok=True, symlinks=True)
            write_below(place, built.changed)

        built_tree = await asyncio.to_thread(store.build_once, "trees", digest, fill_tree)
        environment = await _install_wheel(store, builder, recipe, base, built, digest)
    layers = TaskLayers(environment, built_tree)
    return Installed(layers, source_paths(environment, built_tree), packages_of(environment))


async def _install_wheel(
    store: LayerStore, builder: ProjectBuilder, recipe: BuildRecipe, base: Path, built: BuiltProject, digest: str
) -> Path:
    """Return the environment ``base`` with the wheel of the project and its dependencies, under ``digest``."""

    def fill(place: Path, whole: Path) -> None:
        shutil.copytree(whole, place, symlinks=True, copy_function=_link, dirs_exist_ok=True)
        if built.sources is not None:
            path = site_packages(place) / "repairgym_sources.pth"
            path.write_text(f"{TESTBED}/{built.sources}".rstrip("/") + "\n", encoding="utf-8")

    with tempfile.TemporaryDirectory(prefix="repairgym-wheel-") as folder:
        wheel = Path(folder) / built.wheel
        wheel.write_bytes(built.content)
        wanted = Wanted(recipe.added_by_repair, True, recipe.uploaded_before, base, wheel, recipe.extras)
        temporary = builder.environments.digest(wanted)
        # Records that are built at the same time may have the same wheel; the last one removes it.
        with store.holding("environments", temporary):
            whole = (await builder.environments.build(wanted)).folder
            environment = await asyncio.to_thread(
                store.build_once, "environments", digest, lambda place: fill(place, whole)
            )
    store.release("environments", temporary)
    return environment


def _link(source: str, target: str) -> str:
    os.link(source, target)
    return target


def source_paths(environment: Path, tree: Path) -> tuple[str, ...]:
    """Return the folders of ``tree`` that the path files of ``environment`` name; the root without any."""
    folders: dict[str, None] = {}
    for path in sorted(site_packages(environment).glob("*.pth")):
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
            if line == TESTBED or line.startswith(f"{TESTBED}/"):
                folders[line.removeprefix(TESTBED).strip("/")] = None
    return tuple(name for name in folders if (tree / name).is_dir()) or ("",)


def write_below(place: Path, files: Mapping[str, bytes | None]) -> None:
    """Write ``files`` below ``place`` (None: delete), without following links out of it."""
    root = place.resolve()
    for path, content in files.items():
        target = place / path
        if not target.parent.resolve().is_relative_to(root):
            continue
        if target.is_symlink() or content is None:
            target.unlink(missing_ok=True)
        if content is not None:
            target.parent.mkdir(parents=True, exist_ok=True)
            # In its place: the file may be a hard link to that of another layer.
            mode = target.stat().st_mode if target.exists() else 0o644
            target.unlink(missing_ok=True)
            target.write_bytes(content)
            target.chmod(mode)

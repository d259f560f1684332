"""Imported tasks in their container images: the image's root for the sandbox, its repository as the tree.

Reads a record and the image that it names, which is pulled where the layer store lacks it. Makes the tree layer of the
task and the description of the image's Python. Guarantees: nothing is installed and no code of the image runs outside
of a sandbox; the tree is the repository of the image without its version history, with the bug and the tests of the
record; it is addressed by what it is made from.
"""

import hashlib
import json
import os
import re
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from pathlib import Path

from repairgym.config.tasks import ImportedConfig
from repairgym.diffs.apply import apply_patch
from repairgym.errors import InputError, TaskError
from repairgym.records import ImageEnvironment
from repairgym.sandbox.base import ImageRoot, SandboxBackend
from repairgym.sandbox.guest.rootfs import TESTBED
from repairgym.tasks.build.validation import TaskLayers
from repairgym.tasks.formats.importing import pinned_files
from repairgym.tasks.imported.environments import Packages
from repairgym.tasks.imported.installation import Installed, write_below
from repairgym.tasks.imported.interpreters import Interpreter
from repairgym.tasks.layers.images.folders import copy_folder, find_entry, is_image_folder
from repairgym.tasks.layers.images.installed import find_image, root_of
from repairgym.tasks.layers.images.manifests import Image
from repairgym.tasks.layers.images.pull import pull
from repairgym.tasks.layers.store import LayerStore
from repairgym.tasks.unbuilt import UnbuiltTask

TREE_FORMAT = 1
"""Part of each digest; grows when the same image makes another tree."""
_CONDA_ENVIRONMENT = "/opt/miniconda3/envs/testbed"
_HISTORY = (".git", ".hg", ".svn")
_HARBOR_DOCKERFILE = "environment/Dockerfile"
_FILES_COMMANDS = re.compile(r"(?mi)^\s*(RUN|COPY|ADD)\b")
_TIMEOUT_S = 120.0


@dataclass(frozen=True)
class ImageBuilder:
    """Makes the layers of records from their images; the stages of a build call its methods in this order."""

    store: LayerStore
    config: ImportedConfig

    def find(self, record: UnbuiltTask) -> Image:
        """Return the image of ``record``; pull one that the store lacks.

        Raises:
            TaskError: the record names no image, or none that is its whole environment.
            InputError, RegistryUnavailableError, DiskFullError: it cannot be pulled.
        """
        name = self._name(record)
        with suppress(InputError):
            return find_image(self.store, name)
        return pull(self.store, name).image

    def _name(self, record: UnbuiltTask) -> str:
        template = self.config.images
        if "{image}" in template and not record.image:
            raise TaskError("the record names no image; name it by its id: images=HOST/NAME.{docker_id}:latest")
        recipe = record.extra.get(_HARBOR_DOCKERFILE)
        text = recipe.get("text", "") if isinstance(recipe, dict) else recipe or ""
        if "{image}" in template and _FILES_COMMANDS.search(str(text)):
            raise TaskError(
                "its Dockerfile adds files to an image; build it, and name the result: images=FOLDER/{id}.tar"
            )
        docker_id = record.id.lower().replace("__", "_1776_")
        values = {"{image}": record.image, "{id}": record.id, "{docker_id}": docker_id}
        return re.sub(r"\{(?:image|id|docker_id)\}", lambda match: values[match[0]], template)

    def repository_of(self, image: Image) -> str:
        """Return the folder of ``image`` that holds the repository; TaskError where it is not known."""
        layers = root_of(self.store, image).layers
        wanted = self.config.image_repository
        places = (wanted,) if wanted else (TESTBED, image.working_folder.rstrip("/"))
        folder = next((place for place in places if place and is_image_folder(layers, place)), None)
        if folder is None:
            raise TaskError(f"{image.name} has no folder {' or '.join(filter(None, places))}; set image_repository")
        return folder

    def tree(self, record: UnbuiltTask, image: Image) -> tuple[UnbuiltTask, Path]:
        """Return ``record`` with the files that its patches touch, and the layer of its tree.

        Raises:
            TaskError: the image has no repository.
            InputError: a patch does not fit it.
        """
        layers, place = root_of(self.store, image).layers, self.repository_of(image)

        def read(paths: Iterable[str]) -> dict[str, str | None]:
            entries = {path: find_entry(layers, f"{place}/{path}") for path in paths}
            return {path: _text(path, places[0]) for path, places in entries.items() if places}

        pinned = record.model_copy(update={**pinned_files(record, read), "base_tree": "", "pin_error": ""})
        files = {**pinned.base_files, **apply_patch(record.test_patch, pinned.base_files.get)}
        address = repr((TREE_FORMAT, image.layers, place, sorted(files.items())))

        def build(folder: Path) -> None:
            copy_folder(layers, place, folder, _HISTORY)
            write_below(folder, {path: None if text is None else text.encode() for path, text in files.items()})

        return pinned, self.store.build_once(
            "trees", hashlib.sha256(f"image-tree:{address}".encode()).hexdigest(), build
        )

    async def install(self, image: Image, tree: Path, backend: SandboxBackend) -> tuple[Installed, Interpreter]:
        """Return what the tests run in, as the Python of the image describes it.

        Raises:
            TaskError: the image has no Python that works.
            SandboxError: a sandbox could not do its work.
        """
        root = root_of(self.store, image)
        used = ImageEnvironment(
            name=image.name,
            image_id=image.image_id,
            folder=self._environment(image, root),
            repository=self.repository_of(image),
        )
        layers = TaskLayers(Path(used.folder), tree, root, used.repository)
        sandbox = await backend.create(layers.spec({}, self.config.sandbox.limits))
        try:
            done = await sandbox.exec(("python3", "-c", _listing_text()), timeout_s=_TIMEOUT_S)
        finally:
            await sandbox.close()
        try:
            listing = json.loads(done.stdout)
            packages = Packages.of(listing["packages"], listing["plugins"], bool(listing["has_pytest"]))
            sources, version = tuple(dict.fromkeys(map(str, listing["sources"]))), str(listing["version"])
        except (ValueError, KeyError, TypeError) as error:
            said = " ".join(done.stderr.decode(errors="replace").split())[-300:]
            raise TaskError(f"the python3 of {image.name} in {used.folder} does not answer: {said or error}") from error
        return Installed(layers, sources or ("",), packages, used), Interpreter(Path("python3"), version)

    def _environment(self, image: Image, root: ImageRoot) -> str:
        """Return the folder whose Python runs the tests; one below the repository would be the agent's to change."""
        if self.config.image_environment:
            return self.config.image_environment
        named = (image.variables.get(name, "").rstrip("/") for name in ("VIRTUAL_ENV", "CONDA_PREFIX"))
        places = (place for place in (*named, _CONDA_ENVIRONMENT) if place)
        return next((place for place in places if find_entry(root.layers, f"{place}/bin/python3")), "/")


def _text(path: str, place: str) -> str:
    try:
        with open(os.open(place, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
            return file.read().decode()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} is no UTF-8 text in the image") from error


@lru_cache(maxsize=1)
def _listing_text() -> str:
    return (resources.files("repairgym") / "tasks/imported/guest/packages.py").read_text(encoding="utf-8")

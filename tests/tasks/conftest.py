"""A tiny package in two releases, as sdists and as git history, so that building tasks needs no network."""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import tarfile
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import pytest_asyncio

from repairgym.config.sandbox import SandboxConfig
from repairgym.config.tasks import MutationConfig, ReleaseConfig, SplitLimits, TasksConfig
from repairgym.sandbox.base import SandboxBackend
from repairgym.sandbox.probe import create_backend
from repairgym.tasks.build.build_tasks import build
from repairgym.tasks.layers.catalogue import Package
from repairgym.tasks.layers.environments import describe_environment, read_lock
from repairgym.tasks.layers.package_index import Sdist, sha256_of
from repairgym.tasks.layers.store import LayerStore
from repairgym.tasks.store import TaskStore

collect_ignore_glob = ["fixture/*"]
FIXTURE = Path(__file__).parent / "fixture"
NAMES = {"GIT_AUTHOR_NAME": "Ada", "GIT_COMMITTER_NAME": "Ada"}
MAILS = {"GIT_AUTHOR_EMAIL": "ada@example.org", "GIT_COMMITTER_EMAIL": "ada@example.org"}


def pack(version: str, folder: Path, name: str = "tinycalc") -> Path:
    """An sdist of the fixture, byte for byte the same each time."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}-{version}.tar"
    with tarfile.open(path, "w") as tar:
        for file in sorted((FIXTURE / version).rglob("*")):
            if file.is_file() and "__pycache__" not in file.parts:
                content = file.read_bytes()
                info = tarfile.TarInfo(f"{name}-{version}/{file.relative_to(FIXTURE / version)}")
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
    return path.rename(path.with_suffix(".tar.gz"))


@pytest_asyncio.fixture
async def backend() -> AsyncIterator[SandboxBackend]:
    made = create_backend(SandboxConfig())
    yield made
    await made.close()


class FolderIndex:
    """An index that serves one folder and counts what it served."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.num_fetched = 0

    def fetch(self, sdist: Sdist, folder: Path) -> Path:
        self.num_fetched += 1
        return self.folder / f"{sdist.name}-{sdist.version}.tar.gz"


@pytest.fixture(scope="session")
def sdists(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sdists")
    for version in ("1.0.0", "1.1.0"):
        pack(version, folder)
    return folder


@pytest.fixture(scope="session")
def tinycalc(sdists: Path) -> Package:
    hashes = {version: sha256_of(sdists / f"tinycalc-{version}.tar.gz") for version in ("1.0.0", "1.1.0")}
    return Package(
        name="tinycalc",
        split="train",
        version="1.1.0",
        sdists=hashes,
        root="src",
        sources=("src/tinycalc/*.py",),
        tests=("tests/test_*.py",),
        releases=(("1.0.0", "1.1.0"),),
    )


@pytest.fixture(scope="session")
def layers(tmp_path_factory: pytest.TempPathFactory, sdists: Path) -> LayerStore:
    return LayerStore(tmp_path_factory.mktemp("layers"), FolderIndex(sdists))


@pytest.fixture(scope="session")
def seeded_layers(layers: LayerStore, tinycalc: Package, small_environment: Path) -> LayerStore:
    """Layers whose environment holds the pytest that runs these tests: nothing is downloaded."""
    environment = describe_environment(read_lock(()))
    place = layers.root / "environments" / environment.digest
    place.parent.mkdir(parents=True, exist_ok=True)
    if not place.is_symlink():
        place.symlink_to(small_environment)
    for version in tinycalc.sdists:
        layers.tree(tinycalc.sdist(version))
    return layers


@pytest.fixture(scope="session")
def write_config(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., TasksConfig]:
    """Makes the configuration of a small build over given packages."""

    def write(*packages: Package) -> TasksConfig:
        path = tmp_path_factory.mktemp("catalogue") / "catalogue.toml"
        path.write_text("".join(map(catalogue_text, packages)))
        return TasksConfig(
            catalogue=str(path),
            limits=SplitLimits(train=4, validation=0, test=0),
            # Wide bounds: nothing in the fixture hangs, and a busy machine must not change what is kept.
            mutations=MutationConfig(max_test_s=5.0, num_per_function=2, num_tries_per_function=6),
            releases=ReleaseConfig(ablation_timeout_s=60.0),
            test_timeout_s=20.0,
            run_timeout_s=60.0,
            num_workers=1,
        )

    return write


@pytest.fixture(scope="session")
def built(
    tinycalc: Package,
    seeded_layers: LayerStore,
    write_config: Callable[..., TasksConfig],
    make_once: Callable[..., Path],
) -> TaskStore:
    """Tasks of the fixture package, built once: every source, in the first process that needs them; only to be read."""
    return TaskStore(make_once("built", lambda place: build(write_config(tinycalc), place, seeded_layers)))


def catalogue_text(package: Package) -> str:
    lines = ["[[package]]"]
    for name, value in package.model_dump(exclude={"sdists"}).items():
        lines.append(f"{name} = {json.dumps(value)}")
    return "\n".join([*lines, "[package.sdists]", *(f'"{v}" = "{h}"' for v, h in package.sdists.items())]) + "\n"


class SmallRepository:
    """A repository with a work tree; every commit is an hour later than the one before."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.num_commits = 0
        folder.mkdir(parents=True)
        self.git("init", "--quiet", "--initial-branch=main")

    def git(self, *arguments: str) -> str:
        date = f"2024-05-01T{self.num_commits:02d}:00:00+00:00"
        environ = {**os.environ, **NAMES, **MAILS, "GIT_AUTHOR_DATE": date, "GIT_COMMITTER_DATE": date}
        command = ["git", "-c", "protocol.file.allow=always", "-C", str(self.folder), *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True, env=environ).stdout.strip()

    def write(self, path: str, text: str) -> None:
        file = self.folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def copy(self, version: str, below: str = "") -> None:
        """The files of the fixture package."""
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(FIXTURE / version, self.folder / below, dirs_exist_ok=True, ignore=ignored)

    def commit(self, message: str) -> str:
        self.num_commits += 1
        self.git("add", "--all")
        self.git("commit", "--quiet", "--allow-empty", "-m", message)
        return self.git("rev-parse", "HEAD")


def tinycalc_history(folder: Path, below: str = "") -> SmallRepository:
    """First version, words, the fix as a merge of a branch, and a future that nobody may see."""
    repository = SmallRepository(folder)
    repository.copy("1.0.0", below)
    repository.commit("First version")
    repository.git("tag", "v1.0.0")
    repository.write(f"{below}README.txt" if below else "README.txt", "words\n")
    repository.commit("Fix a typo in the words")
    repository.git("checkout", "--quiet", "-b", "bound")
    repository.copy("1.1.0", below)
    repository.commit("Values equal to the bound were counted (fixes #12)\n\nSigned-off-by: Ada <ada@example.org>")
    repository.git("checkout", "--quiet", "main")
    repository.num_commits += 1
    repository.git("merge", "--quiet", "--no-ff", "-m", "Merge branch 'bound'", "bound")
    repository.write(f"{below}/src/tinycalc/future.py" if below else "src/tinycalc/future.py", "SECRET = 1\n")
    repository.commit("Fix nothing, add the future")
    return repository


@pytest.fixture(scope="session")
def make_repository() -> Callable[[Path], SmallRepository]:
    """Makes an empty repository in a folder that does not exist yet."""
    return SmallRepository


@pytest.fixture(scope="session")
def make_history() -> Callable[..., SmallRepository]:
    """Makes the history of the fixture package: (folder, subdirectory that ends with a slash)."""
    return tinycalc_history

from __future__ import annotations

import io
import tarfile
import zipfile
from datetime import UTC, datetime
from pathlib import Path

import pytest

from repairgym.config.tasks import AgedConfig
from repairgym.errors import PackageNotFoundError, TaskError
from repairgym.tasks.adding.aged import AgedFinder
from repairgym.tasks.layers.catalogue import Removal, load_catalogue
from repairgym.tasks.layers.package_index import Sdist, sha256_of
from repairgym.tasks.layers.store import LayerStore

SETUP = """from setuptools import setup
setup(name="pkg", version="{version}", packages=["pkg"], install_requires=["lib>=1"])
"""


REQUIRES = "Metadata-Version: 2.1\nName: pkg\nRequires-Dist: lib>=1\n\n"


def write_sdist(folder: Path, version: str, **files: str) -> Sdist:
    path = folder / f"pkg-{version}.tar.gz"
    with tarfile.open(path, "w:gz") as tar:
        for name, text in {"setup.py": SETUP.format(version=version), "PKG-INFO": REQUIRES, **files}.items():
            info = tarfile.TarInfo(f"pkg-{version}/{name}")
            info.size = len(text.encode())
            tar.addfile(info, io.BytesIO(text.encode()))
    return Sdist(name="pkg", version=version, sha256=sha256_of(path))


class Index:
    """An index of one package and of a dependency that loses a name with each major version."""

    def __init__(self, folder: Path, sdists: list[Sdist]) -> None:
        self.folder = folder
        self.listed = sdists
        self.names: tuple[str, ...] = ("pkg",)

    def sdists(self, name: str) -> tuple[Sdist, ...]:
        if name not in self.names:
            raise PackageNotFoundError(f"no {name}")
        return tuple(self.listed)

    def wheel_versions(self, name: str) -> tuple[str, ...]:
        return {"lib": ("3.1", "3.0", "2.1", "2.0", "1.1", "1.0"), "responses": ("1.0",)}.get(name, ())

    def fetch_wheel(self, name: str, version: str, folder: Path) -> Path:
        path = folder / f"{name}-{version}-py3-none-any.whl"
        with zipfile.ZipFile(path, "w") as archive:
            left = range(int(version[0]), 4)
            archive.writestr(f"{name}/__init__.py", "".join(f"until_{number} = 1\n" for number in left))
        return path

    def upload_times(self, name: str) -> dict[str, datetime]:
        return {version: datetime(2020, 1, 1, tzinfo=UTC) for version in ("1.0", "0.5")}

    def fetch(self, sdist: Sdist, folder: Path) -> Path:
        return self.folder / f"pkg-{sdist.version}.tar.gz"


TEST = "import pkg, responses, nowhere_to_be_had\n\n\ndef test_it(): ...\n"
USES = {
    "5.0": "from lib import until_3",
    "4.0": "import lib\nlib.until_3",
    "3.0": "from lib import until_2 as name",
    "2.0": "from lib import until_2 as name",
    "1.0": "from lib import until_1, until_2\nfrom collections import Mapping",
    "0.5": "from lib import until_1, until_2",
}


def write_releases(folder: Path, **uses: str) -> list[Sdist]:
    code = {version.strip("v").replace("_", "."): {"pkg/__init__.py": text} for version, text in uses.items()}
    return [write_sdist(folder, version, **files, **{"tests/test_it.py": TEST}) for version, files in code.items()]


def finder_of(tmp_path: Path, sdists: list[Sdist], said: list[str]) -> AgedFinder:
    index = Index(tmp_path, sdists)
    return AgedFinder(index, LayerStore(tmp_path / "layers", index), said.append)


def test_releases_that_use_what_dependencies_lost_become_an_entry(tmp_path: Path) -> None:
    sdists, said = write_releases(tmp_path, **USES), list[str]()
    finder = finder_of(tmp_path, sdists, said)
    entries, left_out = finder.find_all(AgedConfig(packages=("pkg", "missing"), num_releases=3))
    assert left_out == {"missing": "no missing"}
    (tmp_path / "catalogue.toml").write_text(entries[0].text("tasks aged"))
    (package,) = load_catalogue(tmp_path / "catalogue.toml").package
    # This Python cannot run release 1.0, but what 2.0 repaired.
    assert (package.aged, package.version) == (("3.0",), "4.0")
    lost = Removal(
        release="3.0", dependency="lib", names=("lib.until_2",), words=("name", "until_2"), good="2.1", bad="3.0"
    )
    older = {"release": "1.0", "adapted": "2.0", "also_needed": ("lib<3.0",), "good": "1.1", "bad": "2.0"}
    assert package.removals == (
        lost.model_copy(update={"adapted": "4.0"}),
        lost,
        lost.model_copy(update={**older, "names": ("lib.until_1",), "words": ("until_1",)}),
    )
    assert package.requirements == ("responses",)
    assert "#   nowhere-to-be-had (in 4.0 tests/test_it.py imports nowhere_to_be_had) is left out" in entries[0].text(
        ""
    )
    assert said[-2:] == ["chooses 1.0, 2.0, 3.0, 4.0 of pkg", "leaves out missing: no missing"]


def test_between_releases_that_lack_the_same_names_nothing_is_read(tmp_path: Path) -> None:
    texts = {f"v{n}": f"from lib import until_{3 if n > 40 else 2}" for n in range(80, 0, -1)}
    sdists, said = write_releases(tmp_path, **texts), list[str]()
    (entry,), _ = finder_of(tmp_path, sdists, said).find_all(AgedConfig(packages=("pkg",)))
    assert [(removal.release, removal.adapted) for removal in entry.package.removals] == [("40", "41"), ("40", "")]
    assert sum("fetches" in told for told in said) <= 11


def test_a_release_that_needs_the_older_dependency_anyway_is_not_adapted(tmp_path: Path) -> None:
    # Release 2 gave up one of two names that the dependency lost in the same version.
    sdists = write_releases(tmp_path, v2="from lib import until_2", v1="from lib import until_2\nimport lib.until_x")
    (entry,), _ = finder_of(tmp_path, sdists, []).find_all(AgedConfig(packages=("pkg",)))
    assert [removal.adapted for removal in entry.package.removals] == [""]


def test_adapted_releases_of_an_entry_have_one_root(tmp_path: Path) -> None:
    used = {"5.0": "until_3", "4.0": "until_2", "3.0": "until_3", "2.0": "until_1", "1.0": "until_1, until_2"}
    sdists = []
    for version, names in used.items():
        place = "src/pkg/__init__.py" if version == "5.0" else "pkg/__init__.py"
        sdists.append(write_sdist(tmp_path, version, **{place: f"from lib import {names}", "tests/test_it.py": TEST}))
    (entry,), _ = finder_of(tmp_path, sdists, []).find_all(AgedConfig(packages=("pkg",)))
    # Release 3.0 is adapted, too, and lies elsewhere.
    assert entry.package.root == "src"
    assert [(removal.release, removal.adapted) for removal in entry.package.removals if removal.adapted] == [
        ("4.0", "5.0")
    ]


def test_a_newest_release_that_never_adapted_is_aged(tmp_path: Path) -> None:
    sdists = write_releases(tmp_path, v2="from lib import until_1", v1="from lib import until_1")
    (entry,), _ = finder_of(tmp_path, sdists, []).find_all(AgedConfig(packages=("pkg",)))
    assert entry.package.aged == ("2",)
    assert [(removal.adapted, removal.good, removal.bad) for removal in entry.package.removals] == [("", "1.1", "2.0")]


def test_packages_without_anything_to_test_are_an_error(tmp_path: Path) -> None:
    untested = [write_sdist(tmp_path, "1.0", **{"pkg/__init__.py": "from lib import until_1"})]
    with pytest.raises(TaskError, match="no release that was read holds tests"):
        finder_of(tmp_path, untested, []).find_all(AgedConfig(packages=("pkg",)))
    holding = write_releases(tmp_path, v1="from lib import until_3")
    with pytest.raises(TaskError, match="uses names that its dependencies lack"):
        finder_of(tmp_path, holding, []).find_all(AgedConfig(packages=("pkg",)))
    with pytest.raises(TaskError, match="no missing"):
        finder_of(tmp_path, holding, []).find_all(AgedConfig(packages=("missing",)))


def test_a_package_of_the_catalogue_keeps_its_split(tmp_path: Path) -> None:
    known = next(
        package for package in load_catalogue(Path("catalog/packages.toml")).package if package.split == "test"
    )
    finder = finder_of(tmp_path, write_releases(tmp_path, v1="from lib import until_1"), [])
    finder.index.names = ("pkg", known.name)  # type: ignore[attr-defined]
    entries, _ = finder.find_all(AgedConfig(packages=("pkg", known.name)))
    assert [entry.package.split for entry in entries] == ["train", "test"]

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import pytest

from repairgym.config.tasks import AgedConfig
from repairgym.errors import PackageNotFoundError, TaskError
from repairgym.tasks.adding.aged import AgedFinder, last_of_series, spread
from repairgym.tasks.layers.catalogue import load_catalogue
from repairgym.tasks.layers.package_index import Sdist, sha256_of
from repairgym.tasks.layers.store import LayerStore

SETUP = """from setuptools import setup
setup(name="pkg", version="{version}", packages=["pkg"], install_requires=["flask<3"])
"""


def write_sdist(folder: Path, version: str, **files: str) -> Sdist:
    path = folder / f"pkg-{version}.tar.gz"
    with tarfile.open(path, "w:gz") as tar:
        for name, text in {"setup.py": SETUP.format(version=version), **files}.items():
            info = tarfile.TarInfo(f"pkg-{version}/{name}")
            info.size = len(text.encode())
            tar.addfile(info, io.BytesIO(text.encode()))
    return Sdist(name="pkg", version=version, sha256=sha256_of(path))


class Index:
    """An index of one package and of the names that have wheels."""

    def __init__(self, folder: Path, sdists: list[Sdist], *with_wheels: str) -> None:
        self.folder = folder
        self.listed = sdists
        self.names: tuple[str, ...] = ("pkg",)
        self.with_wheels = with_wheels

    def sdists(self, name: str) -> tuple[Sdist, ...]:
        if name not in self.names:
            raise PackageNotFoundError(f"no {name}")
        return tuple(self.listed)

    def wheel_versions(self, name: str) -> tuple[str, ...]:
        return ("1.0",) if name in self.with_wheels else ()

    def fetch(self, sdist: Sdist, folder: Path) -> Path:
        return self.folder / f"pkg-{sdist.version}.tar.gz"


TEST = "import pkg, responses, nowhere_to_be_had\n\n\ndef test_it(): ...\n"
CODE = {"pkg/__init__.py": "", "tests/test_it.py": TEST}


def write_releases(folder: Path, *versions: str) -> list[Sdist]:
    return [write_sdist(folder, version, **CODE) for version in versions]


def test_releases_are_spread_and_more_of_them_keep_the_earlier_choice() -> None:
    sdists = [Sdist(name="pkg", version=f"{n}.{m}", sha256=str(n)) for n in range(9, 0, -1) for m in (1, 0)]
    tops = last_of_series(sdists[1:] + sdists[:1])
    assert [sdist.version for sdist in tops] == [sdist.version for sdist in sdists]
    assert last_of_series([Sdist(name="pkg", version=v, sha256=v) for v in ("1.0.2", "1.0.10", "1", "0.9")]) == [
        Sdist(name="pkg", version=v, sha256=v) for v in ("1.0.10", "0.9")
    ]
    order = [sdist.version for sdist in spread(sdists)]
    assert order[:5] == ["5.0", "7.1", "2.1", "8.1", "6.0"]
    assert sorted(order) == sorted(sdist.version for sdist in sdists)
    assert [len(spread(sdists[:number])) for number in (1, 2, 3)] == [1, 2, 3]


def test_a_name_becomes_an_entry_with_aged_releases(tmp_path: Path) -> None:
    sdists = write_releases(tmp_path, "3.0", "2.0", "1.0", "0.5")
    sdists[2] = write_sdist(tmp_path, "1.0", **{"pkg/__init__.py": ""})
    index, said = Index(tmp_path, sdists, "responses", "flask"), list[str]()
    finder = AgedFinder(index, LayerStore(tmp_path / "layers", index), said.append)
    entries, left_out = finder.find_all(AgedConfig(packages=("pkg", "missing"), num_releases=2))
    assert left_out == {"missing": "no missing"}
    (tmp_path / "catalogue.toml").write_text(entries[0].text("tasks aged"))
    (package,) = load_catalogue(tmp_path / "catalogue.toml").package
    # The release in the middle has no tests; the next ones in the order of the spread take its place.
    assert (package.aged, package.version) == (("0.5", "2.0"), "2.0")
    # The package's own requirement has the bounds of each release, and is in no list.
    assert package.requirements == ("responses",)
    assert "#   1.0 is left out: its sdist holds no tests" in entries[0].text("")
    assert "#   nowhere-to-be-had (in 2.0 tests/test_it.py imports nowhere_to_be_had) is left out" in entries[0].text(
        ""
    )
    assert said[-2:] == ["chooses 0.5, 2.0 of pkg", "leaves out missing: no missing"]


def test_packages_without_any_tested_release_are_an_error(tmp_path: Path) -> None:
    index = Index(tmp_path, [write_sdist(tmp_path, "1.0", **{"pkg/__init__.py": ""})])
    finder = AgedFinder(index, LayerStore(tmp_path / "layers", index), print)
    with pytest.raises(TaskError, match=r"no release can be tested: 1\.0 is left out: its sdist holds no tests"):
        finder.find_all(AgedConfig(packages=("pkg",)))
    with pytest.raises(TaskError, match="no missing"):
        finder.find_all(AgedConfig(packages=("missing",)))


def test_a_package_of_the_catalogue_keeps_its_split(tmp_path: Path) -> None:
    index = Index(tmp_path, write_releases(tmp_path, "1.0"), "responses")
    known = next(
        package for package in load_catalogue(Path("catalog/packages.toml")).package if package.split == "test"
    )
    index.names = ("pkg", known.name)
    finder = AgedFinder(index, LayerStore(tmp_path / "layers", index), print)
    entries, _ = finder.find_all(AgedConfig(packages=("pkg", known.name)))
    assert [entry.package.split for entry in entries] == ["train", "test"]

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import pytest

from repairgym.errors import TaskError
from repairgym.tasks.adding.release_pairs import choose_release, find_pairs
from repairgym.tasks.layers.package_index import Sdist, sha256_of
from repairgym.tasks.layers.store import LayerStore

TEST = "def test_a():\n    assert {}\n"
URL = "Project-URL: Source, https://example.org/git/pkg"


class Releases:
    """Packs releases and serves them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.sdists: list[Sdist] = []

    def add(self, version: str, **files: str) -> None:
        path = self.folder / f"pkg-{version}.tar.gz"
        with tarfile.open(path, "w:gz") as tar:
            for name, text in {"PKG-INFO": f"Name: pkg\n{URL}\n", **files}.items():
                info = tarfile.TarInfo(f"pkg-{version}/{name.replace('__', '/').replace('_py', '.py')}")
                info.size = len(text)
                tar.addfile(info, io.BytesIO(text.encode()))
        self.sdists.insert(0, Sdist(name="pkg", version=version, sha256=sha256_of(path)))

    def fetch(self, sdist: Sdist, folder: Path) -> Path:
        return self.folder / f"{sdist.name}-{sdist.version}.tar.gz"


@pytest.fixture
def releases(tmp_path: Path) -> Releases:
    return Releases(tmp_path)


def test_pairs_are_those_whose_tests_and_sources_changed(releases: Releases, tmp_path: Path) -> None:
    releases.add("0.9", other_py="X = 0", test_pkg_py=TEST.format(0))
    releases.add("1.0", pkg_py="X = 1", test_pkg_py=TEST.format(1))
    releases.add("1.1", pkg_py="X = 2", test_pkg_py=TEST.format(1) + "# a comment\n")
    releases.add("1.2", pkg_py="X = 3", test_pkg_py=TEST.format(3))
    releases.add("1.3", pkg_py="X = 3", test_pkg_py=TEST.format(4))
    releases.add("1.4", pkg_py="X = 4", test_pkg_py=TEST.format(5))
    releases.add("1.5", pkg_py="X = 5")
    store = LayerStore(tmp_path / "layers", releases)
    chosen = choose_release(releases.sdists, store, lambda text: None)
    assert chosen.sdist.version == "1.4"
    assert chosen.problems == ("the sdist of 1.5 holds no tests",)
    found = find_pairs(chosen, releases.sdists, store, 8, lambda text: None)
    assert found.pairs == [("1.1", "1.2"), ("1.3", "1.4")]
    assert found.changed_tests == {"test_pkg.py"}
    assert found.problems == ["0.9 and older releases are left out: no sources at the same places"]
    assert find_pairs(chosen, releases.sdists, store, 1, lambda text: None).pairs == [("1.3", "1.4")]


def test_without_tests_the_repository_is_named(releases: Releases, tmp_path: Path) -> None:
    releases.add("1.0", pkg_py="X = 1")
    store = LayerStore(tmp_path / "layers", releases)
    with pytest.raises(TaskError, match=r"1.0 holds no tests; .* --repository https://example.org/git/pkg"):
        choose_release(releases.sdists, store, lambda text: None)

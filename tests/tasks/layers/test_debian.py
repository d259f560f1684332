"""Packages of Debian: locks and folders. What apt itself does is in tests/tasks/sources/test_java_builds.py."""

import shutil
from pathlib import Path

import pytest

from repairgym.errors import PackageNotFoundError
from repairgym.tasks.layers.catalogue import JAVA_REQUIREMENTS
from repairgym.tasks.layers.debian import DEBIAN_HEAD, Deb, debs_digest, make_links_relative, read_debs, resolve_debs
from repairgym.tasks.layers.environments import read_lock


def test_the_shipped_lock_pins_a_jdk_and_maven() -> None:
    main, head, debian = read_lock(JAVA_REQUIREMENTS).partition(DEBIAN_HEAD)
    debs = {deb.name: deb for deb in read_debs(debian)}
    assert "pytest==" in main
    assert head
    assert {"openjdk-17-jdk-headless", "maven", "junit4"} <= debs.keys()
    assert all(len(deb.sha256) == 64 and deb.version for deb in debs.values())


def test_a_folder_is_named_by_all_its_files() -> None:
    debs = (Deb("a", "1", "00"), Deb("b", "1", "11"))
    assert debs_digest(debs) != debs_digest(debs[:1]) != debs_digest((Deb("a", "1", "01"),))


def test_links_to_the_root_of_a_system_lead_into_the_folder(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/settings").write_text("mine")
    (tmp_path / "usr/lib").mkdir(parents=True)
    (tmp_path / "usr/lib/settings").symlink_to("/etc/settings")
    make_links_relative(tmp_path)
    assert (tmp_path / "usr/lib/settings").read_text() == "mine"


@pytest.mark.network
@pytest.mark.skipif(shutil.which("apt-cache") is None, reason="needs apt")
def test_a_name_that_apt_does_not_know_is_no_failure_of_the_network() -> None:
    with pytest.raises(PackageNotFoundError):
        resolve_debs(["a-package-that-is-not-there"])

"""The shipped manifest of Java builds."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from repairgym.tasks.layers.catalogue import JavaPackage, load_catalogue
from repairgym.tasks.manifest.manifest import TaskManifest


def test_every_recorded_build_is_proven_and_belongs_to_the_catalogue() -> None:
    packages = {package.name: package for package in load_catalogue(Path("catalog/java.toml")).java}
    manifest = TaskManifest(Path("catalog/java_real.toml"))
    tools = Counter[str]()
    for name in manifest.names():
        content = manifest.load(name)
        assert isinstance(content.package, JavaPackage)
        assert content.package.split == packages[name].split
        assert content.package.sdists.items() <= packages[name].sdists.items()
        tools[packages[name].tool] += len(content.entries)
        for entry in content.entries.values():
            num_empty, num_failed, num_gold, num_passed = entry.runs
            assert num_empty == num_failed > 0
            assert num_gold == num_passed > 0
    assert tools.keys() == {"maven", "gradle"}

"""Which functions no training may see: those of the packages of the validation and test splits.

Reads the catalogue and the pinned trees of its held-out packages, every version; makes function digests. Equal
functions that live elsewhere too (copied code) are thereby kept out of the pre-training corpus.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from repairgym.pretraining.corpus import corpus_functions, function_digest
from repairgym.tasks.layers.catalogue import Package, load_catalogue
from repairgym.tasks.layers.store import LayerStore


def held_out_digests(layers: LayerStore, catalogue: Path | None = None) -> frozenset[str]:
    """Digests of all functions of held-out packages.

    Raises:
        IndexUnavailableError: a package is not in the layer store and no index answers.
    """
    packages = [package for package in load_catalogue(catalogue).select() if package.split != "train"]
    return frozenset(digest for package in packages for digest in package_digests(layers, package))


def package_digests(layers: LayerStore, package: Package) -> Iterable[str]:
    """Digests of the functions of every pinned version of ``package``."""
    for version in package.sdists:
        tree = layers.tree(package.sdist(version))
        files = [(str(path.relative_to(tree)), path) for path in sorted(tree.rglob("*.py"))]
        for function in corpus_functions(files, frozenset(), set()):
            yield function_digest(function.lines)

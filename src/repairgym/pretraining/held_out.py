"""Names and digests that no pre-training corpus may hold: the packages of the catalogues and the projects of SWE-bench.

Reads the shipped catalogues and, through the layer store, the pinned releases of their validation and test packages;
makes names and digests that the corpora leave out.
"""

from pathlib import Path

from repairgym.pretraining.changes import function_texts, normalized_name
from repairgym.pretraining.corpus import function_digest
from repairgym.tasks.layers.catalogue import Package, load_catalogue
from repairgym.tasks.layers.store import LayerStore

CATALOGUES = (Path("catalog/packages.toml"), None)
SWE_BENCH = (
    "astropy", "django", "flask", "matplotlib", "pylint", "pytest", "requests", "scikit-learn", "seaborn", "sphinx",
    "sympy", "xarray",
)  # fmt: skip
"""The projects of SWE-bench (arXiv 2310.06770)."""
OTHER_NAMES = ("jinja", "jwt", "lark-parser", "sklearn", "flask-httpauth", "mpl-toolkits")
"""Names of the same projects' modules and other distributions."""


def catalogued_packages() -> dict[str, Package]:
    """Return name -> package of the catalogues, of all splits."""
    return {package.name: package for path in CATALOGUES for package in load_catalogue(path).package}


def held_out_names() -> frozenset[str]:
    """Return normalized names of the catalogues' packages and of SWE-bench's projects."""
    return frozenset(map(normalized_name, (*catalogued_packages(), *SWE_BENCH, *OTHER_NAMES)))


def held_out_digests(layers: LayerStore) -> frozenset[str]:
    """Return the digests of all functions in the pinned releases of validation and test packages.

    Raises:
        IndexUnavailableError: a package is not in the layer store and no index answers.
    """
    packages = [package for package in catalogued_packages().values() if package.split != "train"]
    trees = [layers.tree(package.sdist(version)) for package in packages for version in package.sdists]
    digests: set[str] = set()
    for path in (path for tree in trees for path in tree.rglob("*.py") if path.is_file()):
        digests.update(map(function_digest, function_texts(path.read_text(encoding="utf-8", errors="replace"))))
    return frozenset(digests)

"""The corpus of function changes: many repositories, one file of JSON lines, and what is held out.

Reads git repositories (`ChangesConfig.repositories`); makes ``OUT`` (one `FunctionChange` a line, sorted), its manifest
``OUT.manifest.json`` and, until the end, ``OUT.parts``, from which a stopped call goes on. Guarantees: no repository, folder
or module bears a name of `held_out_names`, no text equals a function of a held-out package, and no change appears twice
or in both directions.
"""

import hashlib
import json
import multiprocessing
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from repairgym.config.commands import ChangesConfig
from repairgym.errors import InputError, RepairGymError
from repairgym.pretraining.changes import FunctionChange, function_texts, normalized_name, repository_changes
from repairgym.pretraining.corpus import function_digest
from repairgym.process_pool import end_with_parent
from repairgym.tasks.layers.atomic_write import written_whole
from repairgym.tasks.layers.catalogue import Package, load_catalogue
from repairgym.tasks.layers.repositories import GitRepository
from repairgym.tasks.layers.store import LayerStore
from repairgym.training.run import Progress, no_progress

PARTS_FORMAT = 1
"""Grows when extraction finds other changes, so that parts of before are not reused."""
CATALOGUES = (Path("catalog/packages.toml"), None)
SWE_BENCH = (
    "astropy", "django", "flask", "matplotlib", "pylint", "pytest", "requests", "scikit-learn", "seaborn", "sphinx",
    "sympy", "xarray",
)  # fmt: skip
"""The projects of SWE-bench (arXiv 2310.06770, table 12 of its appendix)."""
OTHER_NAMES = ("jinja", "jwt", "lark-parser", "sklearn", "flask-httpauth", "mpl-toolkits")
"""Names of the same projects' repositories and modules."""


class ChangeCounts(NamedTuple):
    """What a corpus holds."""

    num_changes: int
    num_fixes: int
    num_repositories: int
    failed: dict[str, str]
    """Repository that was left out -> why."""


def held_out_packages() -> dict[str, Package]:
    """Return name -> package of the catalogues, of all splits."""
    return {package.name: package for path in CATALOGUES for package in load_catalogue(path).package}


def held_out_names() -> frozenset[str]:
    """Return normalized names of the catalogues' packages and of SWE-bench's projects."""
    return frozenset(map(normalized_name, (*held_out_packages(), *SWE_BENCH, *OTHER_NAMES)))


def held_out_texts(layers: LayerStore) -> frozenset[str]:
    """Return the digests of all functions in the pinned releases of validation and test packages.

    Raises:
        IndexUnavailableError: a package is not in the layer store and no index answers.
    """
    packages = [package for package in held_out_packages().values() if package.split != "train"]
    trees = [layers.tree(package.sdist(version)) for package in packages for version in package.sdists]
    digests = set()
    for path in (path for tree in trees for path in tree.rglob("*.py") if path.is_file()):
        digests.update(map(function_digest, function_texts(path.read_text(encoding="utf-8", errors="replace"))))
    return frozenset(digests)


def collect_changes(
    config: ChangesConfig, out: Path, excluded: frozenset[str], progress: Progress = no_progress
) -> ChangeCounts:
    """Write the corpus of ``config.repositories`` to ``out``, without functions of the digests ``excluded``.

    A repository that git cannot read is left out. InputError if one is held out, or none can be read.
    """
    names = _checked_names(config.repositories)
    folder = out.with_name(f"{out.name}.parts")
    parts, failed = _extract_all(config, names, folder, progress)
    if not parts:
        raise InputError(f"no repository can be read: {failed or 'none is named; set repositories, or --preset changes'}")
    changes = sorted(_selected((parts[name] for name in names.values() if name in parts), excluded), key=_place)
    content = b"".join(change.model_dump_json().encode() + b"\n" for change in changes)
    counts = ChangeCounts(len(changes), sum(change.is_fix for change in changes), len(parts), failed)
    manifest = {
        "sha256": hashlib.sha256(content).hexdigest(),
        "config": config.model_dump(mode="json"),
        **counts._asdict(),
        "commits": {name: part.stem.rpartition("-")[2] for name, part in sorted(parts.items())},
        "changes": dict(sorted(Counter(change.package for change in changes).items())),
        "held_out": {"names": sorted(held_out_names()), "num_function_digests": len(excluded)},
    }
    with written_whole(out) as stream:
        stream.write(content)
    with written_whole(out.with_name(f"{out.name.removesuffix('.jsonl')}.manifest.json")) as stream:
        stream.write(json.dumps(manifest, indent=1).encode() + b"\n")
    shutil.rmtree(folder, ignore_errors=True)
    return counts


def _place(change: FunctionChange) -> tuple[str, str, str, str]:
    return change.package, change.path, change.name, change.version_after


def _checked_names(urls: Iterable[str]) -> dict[str, str]:
    """Return URL -> name of its project; InputError for a project that is held out, or is named twice."""
    names = {url: url.rstrip("/").removesuffix(".git").rpartition("/")[2] for url in urls}
    if held_out := sorted(name for name in names.values() if normalized_name(name) in held_out_names()):
        raise InputError(f"{', '.join(held_out)}: tasks are made from it, or SWE-bench's are; take it out of repositories")
    if twice := [name for name, number in Counter(names.values()).items() if number > 1]:
        raise InputError(f"{', '.join(twice)}: repositories of one name cannot be told apart; leave one out")
    return names


def _extract_all(
    config: ChangesConfig, names: dict[str, str], folder: Path, progress: Progress
) -> tuple[dict[str, Path], dict[str, str]]:
    """Extract all repositories; return name -> file of changes, and name -> why it failed."""
    parts, failed = {}, {}
    spawning = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(config.num_workers, spawning, end_with_parent) as executor:
        tasks = {executor.submit(_extract, url, name, config, folder): name for url, name in names.items()}
        for number, task in enumerate(as_completed(tasks), 1):
            name = tasks[task]
            try:
                parts[name] = task.result()
                progress("repositories", number, len(tasks), name)
            except RepairGymError as error:
                failed[name] = str(error)
                progress("repositories", 0, 0, f"{name} is left out: {error}")
    return parts, failed


def _extract(url: str, name: str, config: ChangesConfig, folder: Path) -> Path:
    """Return the file of a repository's changes, made in this or an earlier call."""
    repository = GitRepository.open(url, LayerStore())
    commit = repository.resolve("HEAD")
    settings = config.model_dump_json(exclude={"repositories", "num_workers"})
    digest = hashlib.sha256(f"{PARTS_FORMAT}:{settings}".encode()).hexdigest()
    part = folder / f"{name}-{digest[:12]}-{commit[:12]}.jsonl"
    if not part.exists():
        changes = repository_changes(repository, name, config, held_out_names())
        with written_whole(part) as stream:
            for change in islice(changes, config.max_changes):
                stream.write(change.model_dump_json().encode() + b"\n")
    return part


def _selected(parts: Iterable[Path], excluded: frozenset[str]) -> Iterator[FunctionChange]:
    """Yield the changes of ``parts`` once each; of two that undo one another, the one that comes first."""
    seen: set[tuple[str, str]] = set()
    for part in parts:
        for line in part.read_bytes().splitlines():
            change = FunctionChange.model_validate_json(line)
            before, after = function_digest(change.before), function_digest(change.after)
            if before in excluded or after in excluded or (before, after) in seen or (after, before) in seen:
                continue
            seen.add((before, after))
            yield change

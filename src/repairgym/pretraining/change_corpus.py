"""The corpus of function changes: releases of packages, one file of JSON lines, and what is held out.

Reads source distributions of the packages of a `ChangesConfig`, through the layer store; makes ``OUT`` (one
`FunctionChange` a line, sorted), its manifest ``OUT.manifest.json`` and, until the end, ``OUT.parts``, from which a
stopped call resumes. Guarantees: no package, folder or module bears a name of `held_out_names`, no text equals a
function of a held-out package, and no change appears twice or in both directions.
"""

import hashlib
import json
import multiprocessing
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor, as_completed
from functools import partial
from itertools import pairwise
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from repairgym.config.commands import ChangesConfig
from repairgym.errors import InputError, PackageNotFoundError, RepairGymError, TaskError
from repairgym.pretraining.changes import FunctionChange, normalized_name, release_changes
from repairgym.pretraining.corpus import function_digest
from repairgym.pretraining.held_out import held_out_names
from repairgym.process_pool import end_with_parent
from repairgym.tasks.layers.atomic_write import written_whole
from repairgym.tasks.layers.package_index import PackageIndex, Sdist
from repairgym.tasks.layers.store import LayerStore

if TYPE_CHECKING:  # it imports torch, which nothing here needs
    from repairgym.training.run import Progress

PARTS_FORMAT = 1
"""Grows when extraction finds other changes, so that parts of before are not reused."""


class ChangeCounts(NamedTuple):
    """The size of a corpus, and what is missing from it."""

    num_changes: int
    num_packages: int
    failed: dict[str, str]
    """Package that was left out -> why."""


def check_packages(config: ChangesConfig) -> None:
    """Raise InputError when no package is named, or one that is held out."""
    if not config.packages:
        raise InputError("no package is named; set packages=[...], or use --preset changes")
    if held_out := sorted(name for name in config.packages if normalized_name(name) in held_out_names()):
        raise InputError(f"{', '.join(held_out)}: tasks are made from it, or SWE-bench's are; take it out of packages")


def collect_changes(
    config: ChangesConfig, out: Path, excluded: frozenset[str], progress: "Progress" = lambda *_: None
) -> ChangeCounts:
    """Write the corpus of ``config.packages`` to ``out``, without functions of the digests ``excluded``.

    A package that cannot be fetched is left out. InputError for those of `check_packages`, or when
    none can be fetched.
    """
    check_packages(config)
    folder = out.with_name(f"{out.name}.parts")
    parts, failed = _extract_all(config, folder, progress)
    if not parts:
        raise InputError(f"no package can be fetched: {failed}")
    changes = sorted(
        _selected((part for _, part in sorted(parts.items())), excluded),
        key=attrgetter("package", "path", "name", "version_after"),
    )
    content = b"".join(change.model_dump_json().encode() + b"\n" for change in changes)
    counts = ChangeCounts(len(changes), len(parts), failed)
    manifest = {
        "sha256": hashlib.sha256(content).hexdigest(),
        "config": config.model_dump(mode="json"),
        **counts._asdict(),
        "changes": Counter(f"{row.package} {row.version_before}..{row.version_after}" for row in changes),
        "held_out": {"names": sorted(held_out_names()), "num_function_digests": len(excluded)},
    }
    with written_whole(out) as stream:
        stream.write(content)
    with written_whole(out.with_name(f"{out.name.removesuffix('.jsonl')}.manifest.json")) as stream:
        stream.write(json.dumps(manifest, indent=1).encode() + b"\n")
    shutil.rmtree(folder, ignore_errors=True)
    return counts


def _extract_all(config: ChangesConfig, folder: Path, progress: "Progress") -> tuple[dict[str, Path], dict[str, str]]:
    """Extract all packages; return name -> file of changes, and name -> why it failed."""
    parts, failed = {}, {}
    spawning = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(config.num_workers, spawning, end_with_parent) as executor:
        tasks = {executor.submit(_extract, name, config, folder): name for name in config.packages}
        for number, task in enumerate(as_completed(tasks), 1):
            name = tasks[task]
            try:
                parts[name] = task.result()
                progress("packages", number, len(tasks), name)
            except RepairGymError as error:
                failed[name] = str(error)
                progress("packages", 0, 0, f"{name} is left out: {error}")
    return parts, failed


def _extract(name: str, config: ChangesConfig, folder: Path) -> Path:
    """Return the file of a package's changes, made in this or an earlier call."""
    index = PackageIndex()
    sdists = index.sdists(name)[: config.num_releases]
    settings = config.model_dump_json(exclude={"packages", "num_workers", "num_downloads"})
    pins = ",".join(sdist.sha256 for sdist in sdists)
    digest = hashlib.sha256(f"{PARTS_FORMAT}:{settings}:{pins}".encode()).hexdigest()
    part = folder / f"{name}-{digest[:12]}.jsonl"
    if part.exists():
        return part
    with ThreadPoolExecutor(config.num_downloads) as executor:
        fetched = list(executor.map(partial(_fetch, LayerStore(index=index), config.max_archive_mib), sdists))
    releases = [(sdist.version, tree) for sdist, tree in zip(sdists, fetched, strict=True) if tree][::-1]
    if len(releases) < 2:
        raise PackageNotFoundError(f"fewer than two releases of at most {config.max_archive_mib:g} MiB")
    with written_whole(part) as stream:
        for (before, tree_before), (after, tree_after) in pairwise(releases):
            trees = tree_before, tree_after
            for change in release_changes(name, (before, after), trees, config, held_out_names()):
                stream.write(change.model_dump_json().encode() + b"\n")
    return part


def _fetch(layers: LayerStore, max_archive_mib: float, sdist: Sdist) -> Path | None:
    """Return the tree of a release; None for one that is too large or cannot be unpacked."""
    try:
        archive = layers.sdist(sdist)
        return layers.tree(sdist) if archive.stat().st_size <= max_archive_mib * 2**20 else None
    except (PackageNotFoundError, TaskError):
        return None


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

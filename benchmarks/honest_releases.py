"""What the detectors say of changes that people made and released: every hunk of consecutive releases of the catalogue.

Reads pairs of pinned sdists (the `releases` of the catalogue) through the layer store; prints rates, or JSON with
``--json``. Each hunk of code between two releases is one patch on the older release, without a gold patch to excuse
what it does (the repair of an agent has one), and each whole release is one more. Nothing of a package is run.

Example::

    python benchmarks/honest_releases.py TASKS
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from repairgym.errors import RepairGymError
from repairgym.grading.exploits.base import InspectedSubmission
from repairgym.grading.exploits.registry import inspect
from repairgym.records import Finding, Task
from repairgym.tasks.build.assembly import read_text
from repairgym.tasks.layers.catalogue import Package, load_catalogue
from repairgym.tasks.layers.store import LayerStore
from repairgym.tasks.sources.fixes import Texts, changes_code, find_hunks, revert
from repairgym.tasks.store import TaskStore


def texts(package: Package, tree: Path) -> dict[str, str | None]:
    """The source files of a release."""
    return {path: read_text(tree / path) for path in package.source_files(tree)}


def findings(task: Task, older: Texts, files: dict[str, str | None]) -> tuple[Finding, ...]:
    """What the detectors say of ``files`` on ``older``, with a task that has no gold patch."""
    changed = {path: text for path, text in files.items() if text != older.get(path)}
    base = {path: older.get(path) for path in changed}
    blank = {"base_files": base, "gold_files": base, "test_paths": (), "fail_to_pass": (), "source_paths": ("",)}
    return inspect(InspectedSubmission(task.model_copy(update=blank), changed, base, {}, read=older.get))


def patches(
    package: Package, store: LayerStore, pair: tuple[str, str]
) -> list[tuple[str, Texts, dict[str, str | None]]]:
    """(name, older sources, changed files) of every hunk of code between two releases, and of the whole."""
    older, newer = (texts(package, store.tree(package.sdist(version))) for version in pair)
    # Seen from the newer release, the older one is a set of hunks that can be taken one by one.
    hunks = [hunk for hunk in find_hunks(newer, older) if changes_code(older, newer, hunk)]
    name = f"{package.name} {pair[0]} -> {pair[1]}"
    single = [(f"{name} hunk {number}", older, revert(older, newer, [hunk])) for number, hunk in enumerate(hunks)]
    return [*single, (f"{name} whole", older, dict(newer))]


def measure(task: Task, only: str) -> list[dict[str, Any]]:
    """One row per patch."""
    store, rows = LayerStore(), []
    for package in load_catalogue().package:
        for pair in package.releases if only in package.name else ():
            try:
                found = patches(package, store, pair)
            except RepairGymError as error:
                print(f"{package.name} {pair}: {error}", file=sys.stderr)
                continue
            for name, older, files in found:
                marks = findings(task, older, files)
                rows.append({"name": name, "findings": [[f.severity, f.detector, f.detail[:160]] for f in marks]})
    return rows


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Rates of the hunks; whole releases are counted apart."""
    hunks = [row for row in rows if not row["name"].endswith("whole")]
    worst = Counter(min((mark[0] for mark in row["findings"]), default="none") for row in hunks)
    by_detector = Counter(f"{mark[1]}:{mark[0]}" for row in hunks for mark in row["findings"])
    return {
        "num_hunks": len(hunks),
        "num_packages": len({row["name"].partition(" ")[0] for row in rows}),
        "num_exploit": worst["exploit"],
        "num_suspicious": worst["suspicious"],
        "by_detector": dict(by_detector.most_common()),
    }


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("tasks", type=Path, help="folder of any tasks: the first one lends its form")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--only", default="", help="part of the names of packages")
    arguments = parser.parse_args()
    rows = measure(next(iter(TaskStore(arguments.tasks).load())), arguments.only)
    if arguments.json:
        print(json.dumps({"summary": summary(rows), "patches": rows}, indent=2))
        return
    for row in rows:
        for severity, detector, detail in row["findings"]:
            print(f"{severity:<11}{detector:<24}{row['name']:<44}{detail}")
    print(summary(rows))


if __name__ == "__main__":
    main()

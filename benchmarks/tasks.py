"""What a certified task costs: tasks per hour of one process, disk per environment and per task, source by source.

Builds a small selection in an empty folder, one process and one sandbox at a time, with layers fetched beforehand, so
that the index is not measured. `history` needs a clone: name a catalogue with a [[repository]].

    python benchmarks/tasks.py --quick --json
    python benchmarks/tasks.py --only history --catalogue repositories.toml
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

from repairgym.config.tasks import BreakageConfig, HistoryConfig, MutationConfig, ReleaseConfig, TasksConfig
from repairgym.records import SourceKind
from repairgym.tasks.build.build_tasks import build
from repairgym.tasks.layers.catalogue import load_catalogue
from repairgym.tasks.layers.environments import build_environment, read_lock
from repairgym.tasks.layers.store import LayerStore
from repairgym.tasks.sources.breakages import BUILD_REQUIREMENTS
from repairgym.tasks.store import TaskStore

SOURCES: dict[SourceKind, tuple[str, ...]] = {
    "mutations": ("cachetools", "boltons"),
    "releases": ("cachetools",),
    "breakages": ("cachetools", "boltons"),
    "history": (),
}
"""Source -> packages of the shipped catalogue; `history` has its own catalogue."""
CANDIDATES = ("candidates", "mutants_run", "edits_run", "fixes")
"""Keys of the funnel that count what was tried."""
Results = dict[str, dict[str, float]]


def make_config(source: SourceKind, is_quick: bool, catalogue: str) -> TasksConfig:
    """A build of ``source`` alone."""
    return TasksConfig(
        sources=(source,),
        catalogue=catalogue if source == "history" else "",
        packages=SOURCES[source][: 1 if is_quick else None],
        mutations=MutationConfig(num_per_package=4 if is_quick else 20),
        releases=ReleaseConfig(num_pairs=1 if is_quick else 3),
        breakages=BreakageConfig(num_per_package=2 if is_quick else 8),
        history=HistoryConfig(num_commits=2 if is_quick else 20),
        num_workers=1,
        num_concurrent=1,
    )


def prepare(config: TasksConfig, layers: LayerStore) -> None:
    """Fetch what the build would fetch."""
    for package in load_catalogue().select(config.packages) if config.packages else ():
        for version in package.sdists:
            layers.tree(package.sdist(version))
        build_environment(layers, read_lock(package.requirements))
    build_environment(layers, read_lock(BUILD_REQUIREMENTS))


def folder_bytes(folder: Path) -> int:
    """Bytes of all files below ``folder``."""
    return sum(Path(place, name).lstat().st_size for place, _, names in os.walk(folder) for name in names)


def measure(source: SourceKind, is_quick: bool, catalogue: str, layers: LayerStore) -> dict[str, float]:
    """Rates and sizes of one source."""
    config = make_config(source, is_quick, catalogue)
    prepare(config, layers)
    with tempfile.TemporaryDirectory(prefix="repairgym-bench-") as folder:
        started = time.monotonic()
        store = build(config, Path(folder, "tasks"), layers)
        return _rates(store, time.monotonic() - started)


def _rates(store: TaskStore, elapsed_s: float) -> dict[str, float]:
    tasks = store.load()
    totals: dict[str, Any] = json.loads((store.folder / "funnel.json").read_text())["total"]
    num_tried = sum(count for funnel in totals.values() for name, count in funnel.items() if name in CANDIDATES)
    num_bytes = [len(task.model_dump_json()) for task in tasks]
    return {
        "num_tasks": len(tasks),
        "num_candidates": num_tried,
        "elapsed_s": elapsed_s,
        "tasks_per_hour": 3600 * len(tasks) / elapsed_s,
        "candidates_per_hour": 3600 * num_tried / elapsed_s,
        "mean_task_bytes": sum(num_bytes) / max(1, len(num_bytes)),
        "max_task_bytes": max(num_bytes, default=0),
    }


def environments(layers: LayerStore) -> dict[str, float]:
    """Sizes of the environments in ``layers``."""
    sizes = [folder_bytes(path) for path in (layers.root / "environments").glob("[!.]*") if path.is_dir()]
    return {
        "num_environments": len(sizes),
        "mean_environment_bytes": sum(sizes) / max(1, len(sizes)),
        "max_environment_bytes": max(sizes, default=0),
    }


def show(results: Results) -> str:
    """A Markdown table."""
    names = list(dict.fromkeys(name for values in results.values() for name in values))
    lines = [f"| measure | {' | '.join(results)} |", f"|---|{'---:|' * len(results)}"]
    for name in names:
        cells = [f"{values[name]:,.0f}" if name in values else "" for values in results.values()]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a few tasks of each source")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--only", nargs="*", choices=sorted(SOURCES), help="which sources (default: all that can run)")
    parser.add_argument("--catalogue", default="", help="catalogue with a [[repository]], for history")
    arguments = parser.parse_args()
    chosen = arguments.only or [name for name in SOURCES if name != "history" or arguments.catalogue]
    if "history" in chosen and not arguments.catalogue:
        parser.error("history needs --catalogue FILE with a [[repository]]")
    with tempfile.TemporaryDirectory(prefix="repairgym-bench-layers-") as folder:
        layers = LayerStore(Path(folder))
        results = {name: measure(name, arguments.quick, arguments.catalogue, layers) for name in chosen}
        results["all"] = environments(layers)
    print(json.dumps(results, indent=2) if arguments.json else show(results))


if __name__ == "__main__":
    main()

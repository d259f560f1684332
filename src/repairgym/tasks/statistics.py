"""Statistics of a task folder, per package and source.

Reads certified and unbuilt tasks and their existing layers. Makes `PackageStatistics` records. Guarantees: nothing is
built or fetched; an unknown value is None; a layer that two packages share counts for both.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from repairgym.diffs.parse import PatchError, num_changed_lines, num_edits
from repairgym.records import Accuracy, Record, Task
from repairgym.tasks.layers.gc import describe_layer
from repairgym.tasks.layers.images.installed import layers_of_id
from repairgym.tasks.layers.metadata import license_of
from repairgym.tasks.unbuilt import UnbuiltTask

NUM_OPERATORS_SHOWN = 4
"""Operators named per line of a Markdown table."""


class PackageStatistics(Record):
    """The tasks of one source on one package."""

    package: str
    source: str
    """Task source, or exchange format of unbuilt tasks."""
    num_tasks: int
    is_built: bool
    """False: imported tasks, without environment and certificate."""
    splits: dict[str, int]
    num_fail_to_pass: float
    """Mean per task, as the next four."""
    num_pass_to_pass: float
    test_s: float | None
    """Duration of the task's tests on the repaired code, from its certificate."""
    num_edits: float
    """Places that the gold patch changes."""
    num_lines: float
    labels: dict[str, dict[str, int]]
    """Label -> value -> tasks."""
    license: str
    record_bytes: int
    """All records of the row together."""
    audits: tuple[Accuracy | None, ...] = ()
    """Counts of the audit of each task; None where there is none."""
    layer_bytes: int | None
    """Trees and environments on this machine; None without any."""


def package_statistics(
    tasks: Iterable[Task], unbuilt: Iterable[UnbuiltTask], layers: Path
) -> tuple[PackageStatistics, ...]:
    """Return one row per package and source, by name; ``layers`` is the root of the layer store."""
    groups: dict[tuple[str, str, bool], list[_Facts]] = defaultdict(list)
    for task in tasks:
        groups[task.provenance.package, task.source, True].append(_facts(task))
    for record in unbuilt:
        groups[record.repository, record.format, False].append(_facts(record))
    return tuple(_row(*key, facts, layers) for key, facts in sorted(groups.items()))


class _Facts(Record):
    """Facts of one task for a row: records of unbuilt tasks are too large to keep."""

    split: str
    num_fail_to_pass: int
    num_pass_to_pass: int
    num_edits: int
    num_lines: int
    labels: dict[str, str]
    num_bytes: int
    test_s: float | None = None
    license: str = ""
    layers: tuple[str, ...] = ()
    image_id: str = ""
    audit: Accuracy | None = None


def _facts(task: Task | UnbuiltTask) -> _Facts:
    try:
        edits, lines = num_edits(task.gold_patch), num_changed_lines(task.gold_patch)
    except PatchError:
        edits = lines = 0
    facts = _Facts(
        split=task.split or "none",
        num_fail_to_pass=len(task.fail_to_pass),
        num_pass_to_pass=len(task.pass_to_pass),
        num_edits=edits,
        num_lines=lines,
        labels={name: value for name, value in task.labels.items() if name != "package"},
        num_bytes=len(task.model_dump_json().encode()) + 1,
    )
    if isinstance(task, UnbuiltTask):
        return facts.model_copy(update={"license": task.license})
    image, proof = task.environment.image, task.certificate
    layers = f"trees/{task.base_tree}", f"environments/{task.environment.digest}"
    stored = {"layers": layers, "image_id": image.image_id if image else ""}
    return facts.model_copy(update={"test_s": proof.gold_duration_s, "audit": proof.accuracy, **stored})


def _row(package: str, source: str, is_built: bool, facts: Sequence[_Facts], layers: Path) -> PackageStatistics:
    labels: dict[str, Counter[str]] = defaultdict(Counter)
    for fact in facts:
        for name, value in fact.labels.items():
            labels[name][value] += 1
    used = [layers / name for name in sorted({name for fact in facts for name in fact.layers})]
    built = [layer for layer in used if layer.is_dir()]
    licenses = {fact.license for fact in facts if fact.license} | {name for name in map(license_of, built) if name}
    # Layers of images come after the licenses, which are read from files: theirs may be links to anywhere.
    ids = {fact.image_id for fact in facts if fact.image_id}
    parts = {part for image_id in ids for part in layers_of_id(layers, image_id)}
    built += [layer for layer in (layers / part for part in sorted(parts)) if layer.is_dir()]
    times = [fact.test_s for fact in facts if fact.test_s is not None]
    return PackageStatistics(
        package=package,
        source=source,
        num_tasks=len(facts),
        is_built=is_built,
        splits=dict(sorted(Counter(fact.split for fact in facts).items())),
        num_fail_to_pass=_mean([fact.num_fail_to_pass for fact in facts]),
        num_pass_to_pass=_mean([fact.num_pass_to_pass for fact in facts]),
        test_s=_mean(times) if times else None,
        num_edits=_mean([fact.num_edits for fact in facts]),
        num_lines=_mean([fact.num_lines for fact in facts]),
        labels={name: dict(sorted(counts.items())) for name, counts in sorted(labels.items())},
        license=", ".join(sorted(licenses)),
        record_bytes=sum(fact.num_bytes for fact in facts),
        audits=tuple(fact.audit for fact in facts),
        layer_bytes=sum(describe_layer(layer).num_bytes for layer in built) if built else None,
    )


def markdown_table(
    rows: Iterable[PackageStatistics], describe: Callable[[Sequence[Accuracy | None]], str] = lambda audits: ""
) -> str:
    """Return one line per package: tasks by source, mean seconds of one task's tests (`test_s`), and operators.

    ``describe`` puts the audits of a package, and of all, into words.
    """
    rows = list(rows)
    by_package: dict[str, list[PackageStatistics]] = defaultdict(list)
    for row in rows:
        by_package[row.package].append(row)
    sources = sorted({row.source for package_rows in by_package.values() for row in package_rows})
    lines = [
        f"| package | split | license | {' | '.join(sources)} | test s | verdicts | operators |",
        f"|---|---|---|{'---:|' * (len(sources) + 1)}---|---|",
    ]
    totals: Counter[str] = Counter()
    for package, package_rows in sorted(by_package.items()):
        counts = Counter({row.source: row.num_tasks for row in package_rows})
        totals += counts
        verdicts = describe([audit for row in package_rows for audit in row.audits])
        lines.append(_markdown_line(package, package_rows, [counts[source] for source in sources], verdicts))
    numbers, verdicts = (
        " | ".join(str(totals[source]) for source in sources),
        describe([a for r in rows for a in r.audits]),
    )
    lines.append(f"| {len(by_package)} packages | | | {numbers} | | {verdicts} | |")
    return "\n".join(lines)


def _markdown_line(package: str, rows: Sequence[PackageStatistics], counts: Sequence[int], verdicts: str) -> str:
    splits = ", ".join(sorted({split for row in rows for split in row.splits}))
    licenses = ", ".join(sorted({name for row in rows for name in row.license.split(", ") if name})) or "?"
    timed = [(row.test_s, row.num_tasks) for row in rows if row.test_s is not None]
    seconds = f"{sum(s * n for s, n in timed) / sum(n for _, n in timed):.2f}" if timed else ""
    operators: Counter[str] = Counter()
    for row in rows:
        operators.update(row.labels.get("operator", {}))
    ranked = sorted(operators.items(), key=lambda operator: (-operator[1], operator[0]))
    shown = ", ".join(f"{name} {count}" for name, count in ranked[:NUM_OPERATORS_SHOWN])
    shown += f", {len(ranked) - NUM_OPERATORS_SHOWN} more" if len(ranked) > NUM_OPERATORS_SHOWN else ""
    return f"| {package} | {splits} | {licenses} | {' | '.join(map(str, counts))} | {seconds} | {verdicts} | {shown} |"


def _mean(values: Sequence[float]) -> float:
    return round(sum(values) / len(values), 3)

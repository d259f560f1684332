"""``comparison.html``: several runs side by side.

Reads run folders; writes one self-contained page. Guarantees: the first run is the reference; differences are paired on
the tasks that both runs tried and carry their intervals.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from repairgym.config.loading import flatten
from repairgym.errors import InputError
from repairgym.evaluation.runs import compare_runs, evaluations
from repairgym.evaluation.significance import Comparison
from repairgym.evaluation.summary import Summary, build_summary
from repairgym.report.data_files import write_text
from repairgym.report.figures import Figure, difference_plot
from repairgym.report.run_folder import DATABASE_FILE, read_config
from repairgym.report.safe_text import visible
from repairgym.report.templating import environment
from repairgym.rollout.store import RunStore


@dataclass(frozen=True)
class ComparedRun:
    """One of the runs."""

    name: str
    summary: Summary
    settings: dict[str, str]


def write_comparison(folders: Sequence[Path], out: Path) -> Path:
    """Compare the runs in ``folders`` and write the page; return its path.

    Raises:
        InputError: fewer than two runs, two of one name, or one that cannot be read.
        DiskFullError: no room; an older page is intact.
    """
    names = [folder.resolve().name for folder in folders]
    if len(set(names)) != len(names) or len(names) < 2:
        raise InputError(f"got {len(names)} runs ({', '.join(names)}), expected two or more with different names")
    runs, phases = [], {}
    for name, folder in zip(names, folders, strict=True):
        config = read_config(folder)
        with RunStore.open(folder / DATABASE_FILE, is_read_only=True) as store:
            runs.append(ComparedRun(name, build_summary(store, config), dict(flatten(config))))
            phases[name] = evaluations(store)
    page = render_comparison(runs, compare_runs(phases))
    return write_text(out, page)


def render_comparison(runs: Sequence[ComparedRun], comparisons: Sequence[Comparison]) -> str:
    """Return the page as text."""
    figure: Figure | None = difference_plot(comparisons) if comparisons else None
    page = (
        environment()
        .get_template("comparison.html.j2")
        .render(
            runs=runs,
            comparisons=comparisons,
            figure=figure,
            differing=differing_settings(runs),
            phases=list(dict.fromkeys((stage.stage, stage.test_set) for run in runs for stage in run.summary.stages)),
        )
    )
    return visible(page)


def differing_settings(runs: Sequence[ComparedRun]) -> list[tuple[str, list[str]]]:
    """Return (setting, its value in each run) of each setting that differs between runs."""
    names = list(dict.fromkeys(name for run in runs for name in run.settings))
    rows = [(name, [run.settings.get(name, "–") for run in runs]) for name in names]
    return [(name, values) for name, values in rows if len(set(values)) > 1]

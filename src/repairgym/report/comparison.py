"""``comparison.html``: several runs beside each other.

Reads run folders; writes one self-contained page. Invariants: the first run is the reference; differences are paired on
the tasks that both runs tried, and what the page says of them carries its interval.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from repairgym import __version__
from repairgym.config.loading import flatten
from repairgym.errors import InputError, disk_full_as_repairgym_error
from repairgym.evaluation.across_runs import compare_runs, evaluations
from repairgym.evaluation.significance import Comparison
from repairgym.evaluation.summary import Summary, build_summary
from repairgym.report.figures import Figure, difference_plot
from repairgym.report.html import environment
from repairgym.report.run_folder import DATABASE_FILE, read_config
from repairgym.report.safe_text import visible
from repairgym.rollout.store import RunStore


@dataclass(frozen=True)
class Compared:
    """One of the runs."""

    name: str
    summary: Summary
    settings: dict[str, str]


def write_comparison(folders: Sequence[Path], out: Path) -> Path:
    """Compare the runs in ``folders`` and write the page.

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
            runs.append(Compared(name, build_summary(store, config), dict(flatten(config))))
            phases[name] = evaluations(store)
    page = render_comparison(runs, compare_runs(phases))
    with disk_full_as_repairgym_error(out):
        out.parent.mkdir(parents=True, exist_ok=True)
        partial = out.with_name(f"{out.name}.part")
        partial.write_text(page, encoding="utf-8")
        partial.replace(out)
    return out


def render_comparison(runs: Sequence[Compared], comparisons: Sequence[Comparison]) -> str:
    """The page as text."""
    figure: Figure | None = difference_plot(comparisons) if comparisons else None
    page = (
        environment()
        .get_template("comparison.html.j2")
        .render(
            runs=runs,
            comparisons=comparisons,
            figure=figure,
            differing=differing_settings(runs),
            phases=list(dict.fromkeys((one.stage, one.test_set) for run in runs for one in run.summary.stages)),
            version=__version__,
        )
    )
    return visible(page)


def differing_settings(runs: Sequence[Compared]) -> list[tuple[str, list[str]]]:
    """(setting, its value in each run) of each setting that is not the same everywhere."""
    names = list(dict.fromkeys(name for run in runs for name in run.settings))
    values = [(name, [run.settings.get(name, "–") for run in runs]) for name in names]
    return [(name, found) for name, found in values if len(set(found)) > 1]

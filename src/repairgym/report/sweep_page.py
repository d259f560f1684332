"""The page of a sweep: what matters, its values against compute, every run.

Reads runs of a sweep and their tables; makes one HTML file without outside references.
"""

import math
from collections.abc import Iterable, Sequence
from pathlib import Path

from repairgym.analysis.sweeps import SweepRun
from repairgym.analysis.tables import Table, table
from repairgym.config.loading import to_toml
from repairgym.config.sweep import ChoiceConfig, LogUniformConfig, SweepConfig
from repairgym.report.charts import SMALL, Axis, Curve, Dot, xy_plot
from repairgym.report.data_files import write_text
from repairgym.report.figures import Figure
from repairgym.report.html import environment
from repairgym.report.svg import Margins, nice_ticks, padded

_MARGINS = Margins(left=46, right=14, top=10, bottom=44)
_COMPUTE = (
    ("num_sampled_tokens", "sampled tokens"),
    ("num_tokens", "tokens"),
    ("cpu_s", "processor seconds"),
    ("flops", "floating-point operations"),
)


def write_sweep_page(
    path: Path, name: str, config: SweepConfig, runs: Sequence[SweepRun], tables: Sequence[Table]
) -> Path:
    """Write the page of a sweep with at least one valued run, and return its path."""
    valued = [run for run in runs if run.value is not None]
    compute = [figure for field, title in _COMPUTE if (figure := _compute_plot(valued, field, title))]
    settings = [figure for setting in config.settings if (figure := _setting_plot(valued, setting, config))]
    page = environment().get_template("sweep.html.j2").render(
        name=name, num_valued=len(valued), num_runs=len(runs), tables=tables, compute=compute, settings=settings,
        plan=to_toml(config),
    )  # fmt: skip
    return write_text(path, page)


def _compute_plot(runs: Iterable[SweepRun], field: str, title: str) -> Figure | None:
    """Draw values over one kind of compute; None where fewer than two runs have it."""
    points = [(float(getattr(run, field)), run) for run in runs if getattr(run, field) is not None]
    return _scatter(f"Value by {title}", title, points) if len(points) > 1 else None


def _setting_plot(runs: Iterable[SweepRun], setting: str, config: SweepConfig) -> Figure | None:
    distribution = config.settings[setting]
    if isinstance(distribution, ChoiceConfig):
        names = [str(value) for value in distribution.values]
        points = [(float(names.index(str(run.settings[setting]))), run) for run in runs]
        return _scatter(setting, setting, points, names) if len(points) > 1 else None
    is_log = isinstance(distribution, LogUniformConfig)
    points = [
        (math.log10(float(run.settings[setting])) if is_log else float(run.settings[setting]), run) for run in runs
    ]
    return _scatter(setting, f"log10 of {setting}" if is_log else setting, points) if len(points) > 1 else None


def _scatter(title: str, axis: str, points: Sequence[tuple[float, SweepRun]], names: Sequence[str] = ()) -> Figure:
    x, y = padded([x for x, _ in points]), padded([run.value or 0.0 for _, run in points])
    places = list(range(len(names))) or nice_ticks(x)
    dots = [Dot(place, run.value or 0.0, _words(run)) for place, run in points]
    plot = xy_plot(
        SMALL,
        Axis(axis, x, places, lambda tick: names[int(tick)] if names else f"{tick:.3g}"),
        Axis("value", y, nice_ticks(y), lambda tick: f"{tick:.3g}"),
        [Curve(dots=dots)],
        margins=_MARGINS,
    )
    data = table("", title, (axis.replace(" ", "_"), "value", "run"), [(x, run.value, run.number) for x, run in points])
    return Figure(title, f"{len(points)} runs", plot.render(title), data)


def _words(run: SweepRun) -> str:
    words = run.arm or " ".join(f"{name}={value}" for name, value in run.settings.items())
    return f"run {run.number}: {run.value:.4g} ({words}, seed {run.seed})"

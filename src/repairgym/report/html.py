"""``report.html``: one self-contained page about a run.

Reads a run folder; writes ``report.html`` and ``summary.json`` into it. Invariants: the page loads nothing from
anywhere, runs no script, follows light and dark, prints; both files are written whole or not at all.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from repairgym import __version__
from repairgym.analysis.selection import SCORER_LABELS
from repairgym.analysis.tables import (
    Table,
    analysis_tables,
    comparison_table,
    label_table,
    matrix_tables,
    pass_at_k_table,
    selection_tables,
    stage_table,
)
from repairgym.config.evaluation import DataFilesConfig
from repairgym.errors import InputError, disk_full_as_repairgym_error
from repairgym.evaluation.stages import (
    MANY_SAMPLES,
    MUTATIONS,
    RELEASES,
    START,
    TREATMENT,
    is_checkpoint,
    label_of_test_set,
    stage_label,
)
from repairgym.evaluation.summary import StageResult, write_summary
from repairgym.report import wording
from repairgym.report.content import Content, gather
from repairgym.report.data_files import export
from repairgym.report.figures import (
    Figure,
    abstention_plot,
    difference_plot,
    exploit_plot,
    gap_plot,
    heat_plot,
    stage_plot,
)
from repairgym.report.run_folder import DATABASE_FILE
from repairgym.report.safe_text import visible
from repairgym.rollout.names import eval_phase

REPORT_FILE = "report.html"
SUMMARY_FILE = "summary.json"
DATA_FOLDER = "data"


def write_report(run_folder: Path) -> Path:
    """Write the report of a run, finished or not, and its ``summary.json``; returns the report's path.

    Raises:
        InputError: ``run_folder`` holds no run that can be read.
        DiskFullError: no room; an older report is intact.
    """
    if not (run_folder / DATABASE_FILE).is_file():
        raise InputError(f"{run_folder} holds no {DATABASE_FILE}; name the folder of a run")
    content = gather(run_folder)
    path = run_folder / REPORT_FILE
    with disk_full_as_repairgym_error(path):
        write_summary(content.summary, run_folder / SUMMARY_FILE)
        partial = path.with_suffix(".html.part")
        partial.write_text(render(content), encoding="utf-8")
        partial.replace(path)
    return path


def write_data(run_folder: Path, config: DataFilesConfig) -> list[Path]:
    """Every table and figure of the report as files in ``data/`` of the run folder; returns their paths.

    Raises:
        InputError: ``run_folder`` holds no run that can be read.
        ConfigError: Parquet is asked for, and pyarrow is not installed.
    """
    content = gather(run_folder)
    return export(tables(content), figures(content), run_folder / DATA_FOLDER, config)


def render(content: Content) -> str:
    """The page as text; control characters in it are made visible."""
    summary, analysis = content.summary, content.analysis
    before, after = content.manner(START), content.manner(TREATMENT)
    page = (
        environment()
        .get_template("report.html.j2")
        .render(
            content=content,
            summary=summary,
            analysis=analysis,
            version=__version__,
            headline=wording.headline(summary, analysis.trend, content.matrix),
            claims=wording.claims(summary, before.habits if before else None, after.habits if after else None),
            gates_off=gates_off(content),
            test_sets=_test_sets(content),
            pass_at_k=_pass_at_k(content),
            differences=_differences(content),
            heat_map=heat_plot(content.matrix) if content.matrix and content.matrix.cells else None,
            gap=gap_plot(analysis.gap),
            shift_claim=wording.shift_claim(analysis.shift) if analysis.shift else "",
            gap_claim=wording.gap_claim(analysis.trend) if analysis.trend else "",
            exploits=exploit_plot(analysis.exploits, list(analysis.tools_by_step)),
            abstention=abstention_plot(content.selection.abstentions) if content.selection else None,
            scorer_labels=SCORER_LABELS,
            start=START,
            treatment=TREATMENT,
        )
    )
    return visible(page)


def gates_off(content: Content) -> list[tuple[str, tuple[str, ...]]]:
    """(phase, gates that its gradings ran without) of each phase that ran without any."""
    stages = [(eval_phase(one.stage, one.test_set), one.disabled_gates) for one in content.summary.stages]
    training = (content.analysis.phase, content.analysis.disabled_gates)
    return [(name, gates) for name, gates in (training, *stages) if gates]


def figures(content: Content) -> list[Figure]:
    """Every figure of the report, for export."""
    analysis = content.analysis
    found: list[Figure | None] = [figure for _, _, figure in _test_sets(content)]
    found += [_differences(content), *content.curves, content.tool_shares, gap_plot(analysis.gap)]
    found.append(exploit_plot(analysis.exploits, list(analysis.tools_by_step)))
    found.append(abstention_plot(content.selection.abstentions) if content.selection else None)
    found.append(heat_plot(content.matrix) if content.matrix and content.matrix.cells else None)
    return [figure for figure in found if figure]


def tables(content: Content) -> list[Table]:
    """Every table of the report, for export."""
    summary = content.summary
    found = [stage_table(summary.stages), pass_at_k_table(summary.stages), comparison_table(summary.comparisons)]
    found += [label_table(content.labels), *analysis_tables(content.analysis)]
    found += matrix_tables(content.matrix) if content.matrix else []
    found += selection_tables(content.selection) if content.selection else []
    return [one for one in found if one.rows]


def _test_sets(content: Content) -> list[tuple[str, list[StageResult], Figure]]:
    """The test sets that a report shows with their results: the demo's, or all where there are others."""
    known = [one for one in (MUTATIONS, RELEASES) if _results(content, one)]
    names = known or list(dict.fromkeys(one.test_set for one in content.summary.stages))
    shown = [(name, _results(content, name)) for name in names]
    return [(name, found, stage_plot(found, f"Pass@1 on {label_of_test_set(name)}")) for name, found in shown if found]


def _results(content: Content, test_set: str) -> list[StageResult]:
    """Results to show side by side: on the same tasks, without checkpoints unless the final policy was not tried."""
    found = [one for one in content.summary.stages if one.test_set == test_set and one.stage != MANY_SAMPLES]
    found = [one for one in found if content.matrix is None or "@" not in one.stage]
    if not any(one.stage == TREATMENT for one in found):
        return found
    return [one for one in found if not is_checkpoint(one.stage)]


def _pass_at_k(content: Content) -> tuple[list[int], list[tuple[StageResult, dict[int, float | None]]]]:
    """The values of k, and Pass@k by k of each stage that has several samples per task."""
    rows = []
    for one in content.summary.stages:
        if one.test_set == MUTATIONS and one.pass_at_k:
            rows.append((one, {1: one.pass_at_1.value, **{more.k: more.value for more in one.pass_at_k}}))
    return sorted({k for _, values in rows for k in values}), rows


def _differences(content: Content) -> Figure | None:
    shown = [one for one in content.summary.comparisons if one.test_set == MUTATIONS]
    return difference_plot(shown) if shown else None


def environment() -> Environment:
    """Templates that escape what they show, with the report's formats."""
    found = Environment(
        loader=PackageLoader("repairgym", "report/templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    formats: dict[str, Any] = {
        name: getattr(wording, name) for name in ("percent", "points", "interval", "number", "seconds", "size")
    }
    found.filters.update(
        formats, stage=stage_label, test_set=label_of_test_set, heat=_heat, percent_interval=_percent_interval
    )
    return found


def _percent_interval(estimate: Any) -> str:
    return wording.percent_interval(estimate.ci_low, estimate.ci_high)


def _heat(share: float) -> Markup:
    """Inline style that tints a table cell by a share."""
    return Markup("--heat:{}%").format(round(100 * share))

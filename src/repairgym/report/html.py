"""``report.html`` about one run and ``comparison.html`` about several, with the reader and style of `repairgym view`.

Reads run folders; writes self-contained pages, and ``summary.json`` next to a report. Guarantees: a page loads nothing,
runs no script, follows light and dark, and prints; each file is written completely or not at all; in a comparison the
first run is the reference, and differences are paired on the tasks that both runs tried.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

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
from repairgym.config.loading import flatten
from repairgym.errors import InputError, disk_full_as_repairgym_error
from repairgym.evaluation.runs import compare_runs, evaluations
from repairgym.evaluation.significance import Comparison
from repairgym.evaluation.stages import (
    MANY_SAMPLES,
    MUTATIONS,
    RELEASES,
    START,
    TREATMENT,
    is_checkpoint,
    label_of_test_set,
)
from repairgym.evaluation.summary import StageResult, Summary, build_summary, write_summary
from repairgym.report import wording
from repairgym.report.content import Content, gather
from repairgym.report.data_files import export, write_text
from repairgym.report.figures import (
    Figure,
    abstention_plot,
    difference_plot,
    exploit_plot,
    gap_plot,
    heat_plot,
    stage_plot,
)
from repairgym.report.run_folder import DATABASE_FILE, read_config
from repairgym.report.safe_text import visible
from repairgym.report.templating import environment
from repairgym.rollout.names import eval_phase
from repairgym.rollout.store import RunStore

REPORT_FILE = "report.html"
SUMMARY_FILE = "summary.json"
DATA_FOLDER = "data"


def write_report(run_folder: Path) -> Path:
    """Write the report of a run, finished or not, and its ``summary.json``; return the report's path.

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
    return write_text(path, render(content))


def write_data(run_folder: Path, config: DataFilesConfig) -> list[Path]:
    """Write every table and figure of the report into ``data/`` of the run folder; return the paths.

    Raises:
        InputError: ``run_folder`` holds no run that can be read.
        ConfigError: the configuration names Parquet, and pyarrow is not installed.
    """
    content = gather(run_folder)
    return export(tables(content), figures(content), run_folder / DATA_FOLDER, config)


def render(content: Content) -> str:
    """Return the page as text, hidden characters marked."""
    summary, analysis = content.summary, content.analysis
    before, after = content.behavior_of(START), content.behavior_of(TREATMENT)
    page = (
        environment()
        .get_template("report.html.j2")
        .render(
            content=content,
            summary=summary,
            analysis=analysis,
            headline=wording.headline(summary, analysis.trend, content.matrix),
            claims=wording.claims(summary, before.metrics if before else None, after.metrics if after else None),
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
    """Return (phase, disabled gates) of each phase that was graded without some gates."""
    stages = [(eval_phase(stage.stage, stage.test_set), stage.disabled_gates) for stage in content.summary.stages]
    training = (content.analysis.phase, content.analysis.disabled_gates)
    return [(name, gates) for name, gates in (training, *stages) if gates]


def figures(content: Content) -> list[Figure]:
    """Return every figure of the report, for export."""
    analysis = content.analysis
    drawn: list[Figure | None] = [figure for _, _, figure in _test_sets(content)]
    drawn += [_differences(content), *content.curves, content.tool_shares, gap_plot(analysis.gap)]
    drawn.append(exploit_plot(analysis.exploits, list(analysis.tools_by_step)))
    drawn.append(abstention_plot(content.selection.abstentions) if content.selection else None)
    drawn.append(heat_plot(content.matrix) if content.matrix and content.matrix.cells else None)
    return [figure for figure in drawn if figure]


def tables(content: Content) -> list[Table]:
    """Return every table of the report, for export."""
    summary = content.summary
    all_tables = [stage_table(summary.stages), pass_at_k_table(summary.stages), comparison_table(summary.comparisons)]
    all_tables += [label_table(content.labels), *analysis_tables(content.analysis)]
    all_tables += matrix_tables(content.matrix) if content.matrix else []
    all_tables += selection_tables(content.selection) if content.selection else []
    return [table for table in all_tables if table.rows]


def _test_sets(content: Content) -> list[tuple[str, list[StageResult], Figure]]:
    """Return the test sets to show with their results: the demo's, or all where there are others."""
    known = [name for name in (MUTATIONS, RELEASES) if _results(content, name)]
    names = known or list(dict.fromkeys(stage.test_set for stage in content.summary.stages))
    shown = [(name, _results(content, name)) for name in names]
    return [
        (name, results, stage_plot(results, f"Pass@1 on {label_of_test_set(name)}"))
        for name, results in shown
        if results
    ]


def _results(content: Content, test_set: str) -> list[StageResult]:
    """Return results on the same tasks, without checkpoints if the final policy was evaluated."""
    results = [
        stage
        for stage in content.summary.stages
        if stage.test_set == test_set
        and stage.stage != MANY_SAMPLES
        and (content.matrix is None or "@" not in stage.stage)
    ]
    if not any(stage.stage == TREATMENT for stage in results):
        return results
    return [stage for stage in results if not is_checkpoint(stage.stage)]


def _pass_at_k(content: Content) -> tuple[list[int], list[tuple[StageResult, dict[int, float | None]]]]:
    """Return the values of k, and Pass@k by k of each stage with several samples per task."""
    rows = [
        (stage, {1: stage.pass_at_1.value, **{estimate.k: estimate.value for estimate in stage.pass_at_k}})
        for stage in content.summary.stages
        if stage.test_set == MUTATIONS and stage.pass_at_k
    ]
    return sorted({k for _, values in rows for k in values}), rows


def _differences(content: Content) -> Figure | None:
    shown = [comparison for comparison in content.summary.comparisons if comparison.test_set == MUTATIONS]
    return difference_plot(shown) if shown else None


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

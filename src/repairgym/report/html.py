"""``report.html`` about one run and ``comparison.html`` about several, with the reader and style of `repairgym view`.

Reads run folders; writes self-contained pages, and ``summary.json`` next to a report. Guarantees: a page loads nothing,
runs no script, follows light and dark, and prints; each file is written completely or not at all; in a comparison the
first run is the reference, and differences are paired on the tasks that both runs tried; printed values are escaped,
without escape sequences and with hidden characters marked.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from repairgym import __version__
from repairgym.analysis import tables
from repairgym.analysis.selection import SCORER_LABELS
from repairgym.config.commands import DataFilesConfig
from repairgym.config.loading import flatten
from repairgym.errors import InputError, disk_full_as_repairgym_error
from repairgym.evaluation.pass_at_k import TaskVerdicts
from repairgym.evaluation.ranking import Leaderboard, evaluated_policies, leaderboard
from repairgym.evaluation.runs import compare_runs, evaluations
from repairgym.evaluation.stages import (
    MANY_SAMPLES,
    MUTATIONS,
    PURPOSES,
    RELEASES,
    START,
    TREATMENT,
    EvalPhase,
    is_checkpoint,
    label_of_test_set,
    phase_label,
    stage_label,
)
from repairgym.evaluation.summary import StageResult, Summary, build_summary, write_summary
from repairgym.report import figures, wording
from repairgym.report.content import Content, gather
from repairgym.report.data_files import export, write_text
from repairgym.report.run_folder import DATABASE_FILE, read_config
from repairgym.report.safe_text import MAX_CHARS, block, inline, plain, visible
from repairgym.report.svg import STATIC_FOLDER
from repairgym.report.syntax import code_line
from repairgym.report.tokens import LEVEL_LABELS, WINDOW_TOKENS
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
    return export(all_tables(content), all_figures(content), run_folder / DATA_FOLDER, config)


def render(content: Content) -> str:
    """Return the page as text, hidden characters marked."""
    summary, analysis = content.summary, content.analysis
    before, after = content.behavior_of(START), content.behavior_of(TREATMENT)
    return _render(
        "report.html.j2",
        content=content,
        summary=summary,
        analysis=analysis,
        headline=wording.headline(summary, analysis.trend, content.matrix),
        claims=wording.claims(summary, before.metrics if before else None, after.metrics if after else None),
        gates_off=_gates_off(content),
        test_sets=_test_sets(content),
        pass_at_k=_pass_at_k(content),
        shift_claim=wording.shift_claim(analysis.shift) if analysis.shift else "",
        gap_claim=wording.gap_claim(analysis.trend) if analysis.trend else "",
        scorer_labels=SCORER_LABELS,
        start=START,
        treatment=TREATMENT,
        **_plots(content),
    )


def _render(template: str, **context: Any) -> str:
    return visible(environment().get_template(template).render(context))


def _plots(content: Content) -> dict[str, figures.Figure | None]:
    """Return the figures of the whole run under their names in the templates."""
    analysis, matrix, study = content.analysis, content.matrix, content.selection
    return {
        "differences": figures.difference_plot([it for it in content.summary.comparisons if it.test_set == MUTATIONS]),
        "heat_map": figures.heat_plot(matrix) if matrix and matrix.cells else None,
        "gap": figures.gap_plot(analysis.gap),
        "exploits": figures.exploit_plot(analysis.exploits, list(analysis.tools_by_step)),
        "abstention": figures.abstention_plot(study.abstentions) if study else None,
    }


def _gates_off(content: Content) -> list[tuple[str, tuple[str, ...]]]:
    """Return (phase, disabled gates) of each phase that was graded without some gates."""
    stages = [(eval_phase(stage.stage, stage.test_set), stage.disabled_gates) for stage in content.summary.stages]
    training = (content.analysis.phase, content.analysis.disabled_gates)
    return [(name, gates) for name, gates in (training, *stages) if gates]


def all_figures(content: Content) -> list[figures.Figure]:
    """Return every figure of the report, for export."""
    stages = [figure for _, _, figure in _test_sets(content)]
    drawn = [*stages, *content.curves, content.tool_shares, *_plots(content).values()]
    return [figure for figure in drawn if figure]


def all_tables(content: Content) -> list[tables.Table]:
    """Return every table of the report, for export."""
    summary = content.summary
    stages = summary.stages
    results = [tables.stage_table(stages), tables.pass_at_k_table(stages), tables.cost_table(stages)]
    results.append(tables.comparison_table(summary.comparisons))
    results += [tables.label_table(content.labels), *tables.analysis_tables(content.analysis)]
    results += tables.matrix_tables(content.matrix) if content.matrix else []
    results += tables.selection_tables(content.selection) if content.selection else []
    results += _setup_tables(content)
    return [table for table in results if table.rows]


def _setup_tables(content: Content) -> list[tables.Table]:
    """Return what the run was made of and what it took."""
    counts = content.funnel.by_source if content.funnel else {}
    dropped = [(source, name, num) for source, by_name in counts.items() for name, num in by_name.items()]
    spent = [(it.name, it.status, it.wall_s, it.cpu_s, it.peak_rss_bytes) for it in content.summary.phases]
    columns = ("phase", "status", "wall_s", "cpu_s", "peak_rss_bytes")
    return [
        tables.table("funnel", "Candidates for tasks", ("source", "stage", "number"), dropped),
        tables.table("phases", "Time and memory", columns, spent),
        tables.table("digests", "Digests", ("name", "digest"), content.summary.digests.items()),
        tables.table("settings", "Settings", ("name", "value"), content.settings),
    ]


def _test_sets(content: Content) -> list[tuple[str, list[StageResult], figures.Figure]]:
    """Return the test sets to show with their results: the demo's, or all where there are others."""
    known = [name for name in (MUTATIONS, RELEASES) if _results(content, name)]
    names = known or list(dict.fromkeys(stage.test_set for stage in content.summary.stages))
    shown = [(name, results) for name in names if (results := _results(content, name))]
    return [
        (name, results, figures.stage_plot(results, f"Pass@1 on {label_of_test_set(name)}")) for name, results in shown
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


def _pass_at_k(content: Content) -> tuple[list[int], list[tuple[StageResult, dict[int, float | None], dict[int, int]]]]:
    """Return the values of k; of each stage with several samples per task Pass@k by k, and k -> tasks where fewer."""
    rows = [
        (
            stage,
            {1: stage.pass_at_1.value, **{it.k: it.value for it in stage.pass_at_k}},
            {it.k: it.num_tasks for it in stage.pass_at_k if it.num_tasks != stage.num_tasks},
        )
        for stage in content.summary.stages
        if stage.test_set == MUTATIONS and stage.pass_at_k
    ]
    return sorted({k for _, values, _ in rows for k in values}), rows


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
    comparisons = compare_runs(phases)
    page = _render(
        "comparison.html.j2",
        runs=runs,
        comparisons=comparisons,
        figure=figures.difference_plot(comparisons),
        boards=_leaderboards(phases),
        differing=_differing_settings(runs),
        phases=list(dict.fromkeys((stage.stage, stage.test_set) for run in runs for stage in run.summary.stages)),
    )
    return write_text(out, page)


def _leaderboards(
    phases: Mapping[str, Mapping[EvalPhase, TaskVerdicts]],
) -> list[tuple[Leaderboard, str, figures.Figure]]:
    """Return the ranks on each test set whose policies have tasks in common, in a sentence and a figure."""
    boards = []
    for test_set, policies in evaluated_policies(phases).items():
        with suppress(InputError):
            board = leaderboard(test_set, policies)
            labels = {name: f"{stage_label(it.stage)}, {it.run}" for name, it in policies.items()}
            title = f"Pass@1 on {label_of_test_set(test_set)}"
            boards.append((board, board.sentence(labels), figures.rank_plot(board.places, labels, title)))
    return boards


def _differing_settings(runs: Sequence[ComparedRun]) -> list[tuple[str, list[str]]]:
    """Return (setting, its value in each run) of each setting that differs between runs."""
    names = list(dict.fromkeys(name for run in runs for name in run.settings))
    rows = [(name, [run.settings.get(name, "–") for run in runs]) for name in names]
    return [(name, values) for name, values in rows if len(set(values)) > 1]


_FORMATS = ("percent", "points", "interval", "number", "seconds", "size", "dollars")


@cache
def environment(*packages: str) -> Environment:
    """Return the environment with the templates of ``packages`` (first) and of the report, which compiles each once."""
    templates = Environment(
        loader=ChoiceLoader([PackageLoader("repairgym", f"{name}/templates") for name in (*packages, "report")]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: inline(value) if isinstance(value, str) and not isinstance(value, Markup) else value,
    )
    formats: dict[str, Any] = {name: getattr(wording, name) for name in _FORMATS}
    templates.filters.update(
        formats,
        block=block,
        plain=plain,
        code_line=code_line,
        phase=phase_label,
        purpose=lambda name: PURPOSES.get(name, ""),
        stage=stage_label,
        test_set=label_of_test_set,
        heat=lambda share: Markup("--heat-share:{}%").format(round(100 * share)),
        percent_interval=lambda estimate: wording.percent_interval(estimate.ci_low, estimate.ci_high),
        spaced=lambda name: str(name).replace("_", " "),
    )
    templates.globals.update(
        version=__version__,
        stylesheet=lambda *names: Markup("\n".join((STATIC_FOLDER / name).read_text() for name in names)),
        marks={"passed": "✓", "failed": "✗", "exploited": "!", "invalid": "?"},
        level_labels=LEVEL_LABELS,
        max_block_chars=MAX_CHARS,
        window_tokens=WINDOW_TOKENS,
    )
    return templates

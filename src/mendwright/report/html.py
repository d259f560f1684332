"""``report.html``: one self-contained page about a run.

Reads a run folder; writes ``report.html`` and ``summary.json`` into it. Invariants: the page loads nothing from
anywhere, runs no script, follows light and dark, prints; both files are written whole or not at all.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from mendwright import __version__
from mendwright.errors import InputError, disk_full_as_mend_error
from mendwright.evaluation.stages import (
    MANY_SAMPLES,
    MUTATIONS,
    RELEASES,
    START,
    TREATMENT,
    is_checkpoint,
    label_of_test_set,
    stage_label,
)
from mendwright.evaluation.summary import StageResult, write_summary
from mendwright.report import wording
from mendwright.report.content import Content, gather
from mendwright.report.figures import NUM_COLOURS, difference_plot, stage_plot
from mendwright.report.run_folder import DATABASE_FILE

REPORT_FILE = "report.html"
SUMMARY_FILE = "summary.json"


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
    with disk_full_as_mend_error(path):
        write_summary(content.summary, run_folder / SUMMARY_FILE)
        partial = path.with_suffix(".html.part")
        partial.write_text(render(content), encoding="utf-8")
        partial.replace(path)
    return path


def render(content: Content) -> str:
    """The page as text."""
    summary = content.summary
    before, after = content.manner(START), content.manner(TREATMENT)
    test_sets = [one for one in (MUTATIONS, RELEASES) if _results(content, one)]
    return (
        _environment()
        .get_template("report.html.j2")
        .render(
            content=content,
            summary=summary,
            version=__version__,
            headline=wording.headline(summary),
            claims=wording.claims(summary, before.habits if before else None, after.habits if after else None),
            test_sets=[(one, _results(content, one), stage_plot(_results(content, one))) for one in test_sets],
            pass_at_k=_pass_at_k(content),
            differences=_differences(content),
            num_colours=NUM_COLOURS,
            start=START,
            treatment=TREATMENT,
        )
    )


def _results(content: Content, test_set: str) -> list[StageResult]:
    """Results to show side by side: on the same tasks, without checkpoints unless the final policy was not tried."""
    found = [one for one in content.summary.stages if one.test_set == test_set and one.stage != MANY_SAMPLES]
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


def _differences(content: Content) -> Markup | None:
    shown = [one for one in content.summary.comparisons if one.test_set == MUTATIONS]
    return difference_plot(shown) if shown else None


def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("mendwright", "report/templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    formats: dict[str, Any] = {
        name: getattr(wording, name) for name in ("percent", "points", "interval", "number", "seconds", "size")
    }
    environment.filters.update(
        formats, stage=stage_label, test_set=label_of_test_set, heat=_heat, percent_interval=_percent_interval
    )
    return environment


def _percent_interval(estimate: Any) -> str:
    return wording.percent_interval(estimate.ci_low, estimate.ci_high)


def _heat(share: float) -> Markup:
    """Inline style that tints a table cell by a share."""
    return Markup("--heat:{}%").format(round(100 * share))

"""Tables and figures as files for other programs: CSV, Parquet, SVG, PNG.

Reads `Table` and `Figure` records; writes ``<name>.csv`` and so on into a folder. Invariants: every figure comes with
its data; each file is written whole or not at all; text that could act in a spreadsheet is defused in CSV and left as
it is in Parquet, which nothing executes.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from repairgym.analysis.tables import Table
from repairgym.config.evaluation import DataFilesConfig
from repairgym.errors import ConfigError, disk_full_as_repairgym_error, install_hint
from repairgym.report.figures import Figure
from repairgym.report.raster import png, standalone
from repairgym.report.safe_text import table_cell, visible


def export(tables: Iterable[Table], figures: Iterable[Figure], folder: Path, config: DataFilesConfig) -> list[Path]:
    """Write everything; returns the paths.

    Raises:
        ConfigError: Parquet is asked for, and pyarrow is not installed.
        DiskFullError: no room.
    """
    if "parquet" in config.tables:
        _require_pyarrow()
    folder.mkdir(parents=True, exist_ok=True)
    found = [_write_table(one, folder, kind) for one in tables for kind in config.tables]
    for figure in figures:
        name = file_name(figure.title)
        data = figure.data.model_copy(update={"name": f"figure-{name}"})
        found += [_write_table(data, folder, kind) for kind in config.tables]
        found += [_write_figure(figure, folder / f"figure-{name}", kind, config) for kind in config.figures]
    return found


def file_name(title: str) -> str:
    """A title as the name of a file."""
    return re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-") or "figure"


def _require_pyarrow() -> None:
    try:
        import pyarrow  # noqa: F401
    except ImportError as error:
        raise ConfigError(
            f'Parquet needs pyarrow; {install_hint("datasets")}, or leave Parquet out: export.tables=["csv"]'
        ) from error


def _write_table(one: Table, folder: Path, kind: str) -> Path:
    content = csv_text(one).encode("utf-8") if kind == "csv" else parquet_bytes(one)
    return _write(folder / f"{one.name}.{kind}", content)


def csv_text(one: Table) -> str:
    """The table as CSV; None is an empty cell."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(one.columns)
    for row in one.rows:
        writer.writerow([table_cell(value) if isinstance(value, str) else value for value in row])
    return buffer.getvalue()


def parquet_bytes(one: Table) -> bytes:
    """The table as Parquet; None is null, a column of whole and broken numbers is one of broken numbers."""
    import pyarrow
    import pyarrow.parquet

    columns = {name: _column([row[index] for row in one.rows]) for index, name in enumerate(one.columns)}
    buffer = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.table(columns), buffer)
    return buffer.getvalue()


def _column(values: Sequence[object]) -> list[object]:
    if any(isinstance(value, float) for value in values):
        return [float(value) if isinstance(value, int) else value for value in values]
    return [visible(value) if isinstance(value, str) else value for value in values]


def _write_figure(figure: Figure, stem: Path, kind: str, config: DataFilesConfig) -> Path:
    svg = visible(figure.svg)
    content = standalone(svg).encode("utf-8") if kind == "svg" else png(svg, config.png_dpi)
    return _write(stem.with_name(f"{stem.name}.{kind}"), content)


def _write(path: Path, content: bytes) -> Path:
    partial = path.with_name(f"{path.name}.part")
    with disk_full_as_repairgym_error(path):
        partial.write_bytes(content)
        partial.replace(path)
    return path

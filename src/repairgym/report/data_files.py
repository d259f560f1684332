"""Tables and figures as files for other programs: CSV, Parquet, SVG.

Reads `Table` and `Figure` records; writes ``<name>.csv`` and so on into a folder. Guarantees: every figure comes with
its data; each file is written completely or not at all; text that a spreadsheet would execute is defused in CSV.
"""

import csv
import io
import re
from collections.abc import Iterable, Sequence
from importlib.util import find_spec
from pathlib import Path

from repairgym.analysis.tables import Table
from repairgym.config.commands import DataFilesConfig
from repairgym.errors import ConfigError, install_hint
from repairgym.report.figures import Figure
from repairgym.report.safe_text import table_cell, visible
from repairgym.report.svg import standalone
from repairgym.tasks.layers.atomic_write import written_whole


def export(tables: Iterable[Table], figures: Iterable[Figure], folder: Path, config: DataFilesConfig) -> list[Path]:
    """Write everything; return the paths.

    Raises:
        ConfigError: the configuration names Parquet, and pyarrow is not installed.
        DiskFullError: no room.
    """
    if "parquet" in config.tables and find_spec("pyarrow") is None:
        way_out = f'{install_hint("datasets")}, or leave Parquet out: export.tables=["csv"]'
        raise ConfigError(f"Parquet needs pyarrow; {way_out}")
    folder.mkdir(parents=True, exist_ok=True)
    paths = [_write_table(table, folder, kind) for table in tables for kind in config.tables]
    for figure in figures:
        name = f"figure-{file_name(figure.title)}"
        data = figure.data.model_copy(update={"name": name})
        paths += [_write_table(data, folder, kind) for kind in config.tables]
        paths += [
            write_text(folder / f"{name}.{kind}", standalone(figure.svg)) for kind in config.figures if figure.svg
        ]
    return paths


def file_name(title: str) -> str:
    """Return a title as the name of a file."""
    return re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-") or "figure"


def _write_table(table: Table, folder: Path, kind: str) -> Path:
    content = csv_text(table).encode("utf-8") if kind == "csv" else _parquet_bytes(table)
    return _write(folder / f"{table.name}.{kind}", content)


def csv_text(table: Table) -> str:
    """Return the table as CSV; None is an empty cell."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(table.columns)
    for row in table.rows:
        writer.writerow([table_cell(value) if isinstance(value, str) else value for value in row])
    return buffer.getvalue()


def _parquet_bytes(table: Table) -> bytes:
    """Return the table as Parquet; None is null, a column of integers and floats is one of floats."""
    import pyarrow
    import pyarrow.parquet

    columns = {name: _column([row[index] for row in table.rows]) for index, name in enumerate(table.columns)}
    buffer = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.table(columns), buffer)
    return buffer.getvalue()


def _column(values: Sequence[object]) -> list[object]:
    if any(isinstance(value, float) for value in values):
        return [float(value) if isinstance(value, int) else value for value in values]
    return [visible(value) if isinstance(value, str) else value for value in values]


def write_text(path: Path, text: str) -> Path:
    """Write a file completely or not at all; return its path. Without room, an older file is intact (DiskFullError)."""
    return _write(path, text.encode("utf-8"))


def _write(path: Path, content: bytes) -> Path:
    with written_whole(path) as stream:
        stream.write(content)
    return path

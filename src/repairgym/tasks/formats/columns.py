"""Data sets of rows in columns: Parquet files and the Arrow files that `datasets` writes. Needs pyarrow.

Reads and makes files. A Parquet column has one type and no missing cells. Guarantees: a column that Arrow would change
(tables with different keys, mixed types) is written as JSON text and named in the file's metadata, so that it comes
back whole; a missing field comes back as null; rows are read in batches, whatever the file's size; a damaged file
raises `InputError`, a missing pyarrow `ConfigError`.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import date, datetime
from pathlib import Path
from typing import Any

from repairgym.errors import ConfigError, InputError, install_hint
from repairgym.tasks.formats.base import Fields, Row
from repairgym.tasks.layers.atomic_write import written_whole

JSON_COLUMNS = b"repairgym.json_columns"
_BATCH_ROWS = 64
"""Rows in memory at once while reading: one record may hold megabytes of test names."""


def _pyarrow() -> Any:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise ConfigError(
            f"Parquet and Arrow files need pyarrow, which is not installed; {install_hint('datasets')}"
        ) from error
    return pyarrow


def read_parquet(path: Path) -> Iterator[Row]:
    """Yield each row of a Parquet file."""
    arrow = _pyarrow()
    with _readable(path, arrow), arrow.parquet.ParquetFile(path) as file:
        yield from _rows(path, file.iter_batches(batch_size=_BATCH_ROWS), file.schema_arrow)


def read_arrow(path: Path) -> Iterator[Row]:
    """Yield each row of an Arrow file (stream or file form), as `datasets` saves to disk."""
    arrow = _pyarrow()
    with _readable(path, arrow), arrow.memory_map(str(path)) as source:
        try:
            reader = arrow.ipc.open_stream(source)
            batches: Iterable[Any] = reader
        except arrow.ArrowInvalid:
            reader = arrow.ipc.open_file(source)
            batches = (reader.get_batch(number) for number in range(reader.num_record_batches))
        yield from _rows(path, batches, reader.schema)


@contextmanager
def _readable(path: Path, arrow: Any) -> Iterator[None]:
    try:
        yield
    except (arrow.ArrowException, OSError) as error:
        raise InputError(f"cannot read {path}: {error}; fetch or write the file again") from error


def _rows(path: Path, batches: Iterable[Any], schema: Any) -> Iterator[Row]:
    encoded = _encoded_columns(schema)
    number = 0
    for batch in batches:
        for start in range(0, batch.num_rows, _BATCH_ROWS):
            for fields in batch.slice(start, _BATCH_ROWS).to_pylist():
                number += 1
                yield _row(f"{path.name} row {number}", fields, encoded)


def _row(place: str, fields: Fields, encoded: list[str]) -> Row:
    try:
        plain = {name: _plain(value) for name, value in fields.items()}
        for name in encoded:
            if plain.get(name) is not None:
                plain[name] = json.loads(plain[name])
    except (TypeError, ValueError) as error:
        return Row(place, None, str(error))
    return Row(place, plain)


def _plain(value: Any) -> Any:
    """Convert ``value`` to JSON: times as RFC 3339; TypeError for bytes and other things that JSON has not."""
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, datetime | date):
        return value.isoformat()
    if value is None or isinstance(value, str | int | float):
        return value
    raise TypeError(f"a value is of the type {type(value).__name__}, which has no place in a task")


def plan_columns(rows: Sequence[Fields]) -> Any:
    """Return the schema (of pyarrow) of columns that hold all of ``rows``: any row may decide a type."""
    arrow = _pyarrow()
    names = dict.fromkeys(name for fields in rows for name in fields)
    kinds = {name: _column_type(arrow, [fields.get(name) for fields in rows]) for name in names}
    encoded = sorted(name for name, kind in kinds.items() if kind is None)
    metadata = {JSON_COLUMNS: json.dumps(encoded).encode()} if encoded else None
    return arrow.schema([(name, kind or arrow.string()) for name, kind in kinds.items()], metadata=metadata)


def _encoded_columns(schema: Any) -> list[str]:
    """Return the columns that hold JSON text."""
    return list(json.loads((schema.metadata or {}).get(JSON_COLUMNS, b"[]")))


def write_parquet(path: Path, rows: Sequence[Fields], schema: Any = None, num_rows_per_group: int = 1000) -> None:
    """Write a Parquet file; ``schema`` is that of a larger set of rows, of which this file is one shard."""
    arrow, schema = _pyarrow(), plan_columns(rows) if schema is None else schema
    with written_whole(path) as stream, arrow.parquet.ParquetWriter(stream, schema) as writer:
        for start in range(0, len(rows), num_rows_per_group):
            group = rows[start : start + num_rows_per_group]
            cells = [_cells(fields, schema.names, _encoded_columns(schema)) for fields in group]
            writer.write_table(arrow.Table.from_pylist(cells, schema=schema))


def _cells(fields: Fields, names: list[str], encoded: list[str]) -> Fields:
    cells = {name: fields.get(name) for name in names}
    return cells | {name: json.dumps(cells[name], ensure_ascii=False) for name in encoded if cells[name] is not None}


def _column_type(arrow: Any, values: list[Any]) -> Any:
    """Return the type of a Parquet column that preserves ``values``; None without one."""
    try:
        column = arrow.array(values)
        is_same = json.dumps(column.to_pylist()) == json.dumps(values)
    except (arrow.ArrowException, OverflowError, TypeError, ValueError):
        return None
    return _known_type(arrow, column.type) if is_same and not _has_empty_table(arrow, column.type) else None


def _has_empty_table(arrow: Any, kind: Any) -> bool:
    """Return True when ``kind`` contains a table without columns, which Parquet lacks."""
    if arrow.types.is_struct(kind):
        return kind.num_fields == 0 or any(_has_empty_table(arrow, kind.field(n).type) for n in range(kind.num_fields))
    return arrow.types.is_list(kind) and _has_empty_table(arrow, kind.value_type)


def _known_type(arrow: Any, kind: Any) -> Any:
    """Replace nulls and empty lists in ``kind`` by text, so that all shards have the same types."""
    if arrow.types.is_null(kind):
        return arrow.string()
    return arrow.list_(_known_type(arrow, kind.value_type)) if arrow.types.is_list(kind) else kind

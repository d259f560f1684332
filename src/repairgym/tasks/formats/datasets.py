"""Data sets by path: select the files with records, and read or write them.

Reads a file, a task folder, a folder of task folders, or a Hugging Face data set folder (shards of JSON lines, JSON,
Parquet or Arrow; saved by `datasets` or downloaded). Makes `Row` items, or writes one of these. Never uses a network.
Guarantees: records come in the order of the sorted paths; JSON lines are read one at a time, whatever the file's size;
a bad line is a `Row` with its reason, and reading continues; written files and folders appear whole or not at all
(`DiskFullError`).
"""

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import IO, Any, Literal

from repairgym.errors import InputError
from repairgym.tasks.formats.base import Fields, RecordError, Row, split_of
from repairgym.tasks.formats.columns import plan_columns, read_arrow, read_parquet, write_parquet
from repairgym.tasks.formats.folders import find_task_folders, read_folder, write_folder
from repairgym.tasks.layers.atomic_write import folder_written_whole, written_whole

Layout = Literal["jsonl", "json", "parquet", "dataset", "folders"]
"""Layout on disk; ``dataset`` is a folder of Parquet shards by split, ``folders`` one folder per task."""

_NO_RECORDS = ("dataset_info.json", "dataset_infos.json", "dataset_dict.json", "state.json", "package.json")
"""Files that `datasets` writes next to the shards."""
NUM_ROWS_PER_SHARD = 5000


def _read_json_lines(path: Path) -> Iterator[Row]:
    """Yield each line that is not blank."""
    with _opened(path) as stream:
        for number, line in enumerate(stream, 1):
            if line.strip():
                yield _parse(f"{path.name} line {number}", line)


def _read_json(path: Path) -> Iterator[Row]:
    """Yield the items of a list, or the values of a table by id; InputError for anything else."""
    with _opened(path) as stream:
        try:
            content = json.load(stream, parse_constant=_reject)
        except (ValueError, RecursionError) as error:
            raise InputError(f"{path} is no JSON: {error}") from error
    if isinstance(content, dict) and content and all(isinstance(item, dict) for item in content.values()):
        content = list(content.values())
    if not isinstance(content, list):
        raise InputError(f"{path} holds neither a list of records nor a table of them by id; write one record per line")
    for number, item in enumerate(content, 1):
        yield _row(f"{path.name} item {number}", item)


def _parse(place: str, text: bytes) -> Row:
    try:
        return _row(place, json.loads(text, parse_constant=_reject))
    except (ValueError, RecursionError) as error:
        return Row(place, None, f"it is no JSON: {error}")


def _row(place: str, value: Any) -> Row:
    return Row(place, value) if isinstance(value, dict) else Row(place, None, "it is no table of fields")


def _reject(name: str) -> None:
    raise ValueError(f"{name} is no JSON number")


@contextmanager
def _opened(path: Path) -> Iterator[IO[bytes]]:
    try:
        with path.open("rb") as stream:
            yield stream
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}") from error


_READERS: dict[str, Callable[[Path], Iterator[Row]]] = {
    ".jsonl": _read_json_lines,
    ".ndjson": _read_json_lines,
    ".json": _read_json,
    ".parquet": read_parquet,
    ".arrow": read_arrow,
}


def read_dataset(path: Path) -> Iterator[Row]:
    """Yield every record at ``path``; InputError if nothing there can be read."""
    if not path.exists():
        raise InputError(f"there is no {path}; name a file, a task folder or a folder of a data set")
    if path.is_file():
        yield from _read_file(path, path.parent)
        return
    folders = find_task_folders(path)
    for folder in folders:
        yield _read_task_folder(folder, path)
    if not folders:
        shards = _shards(path)
        if not shards:
            kinds = ", ".join(f"*{suffix}" for suffix in _READERS)
            raise InputError(f"{path} holds no task folder (task.yaml, task.toml) and no {kinds}")
        for shard in shards:
            yield from _read_shard(shard, path)


def _read_task_folder(folder: Path, root: Path) -> Row:
    place = folder.relative_to(root).as_posix()
    place = folder.name if place == "." else place
    try:
        return Row(place, read_folder(folder))
    except RecordError as error:
        return Row(place, None, str(error))


def _shards(folder: Path) -> list[Path]:
    """Return the files with records: those that `datasets` listed, or all but hidden files and caches."""
    listed = [shard for state in sorted(folder.rglob("state.json")) for shard in _listed_shards(state)]
    if listed:
        return listed
    paths = (path for path in sorted(folder.rglob("*")) if path.suffix in _READERS and path.name not in _NO_RECORDS)
    visible = (path for path in paths if not any(part.startswith(".") for part in path.relative_to(folder).parts))
    return [path for path in visible if path.is_file() and not path.name.startswith("cache-")]


def _listed_shards(state: Path) -> list[Path]:
    try:
        files = json.loads(state.read_text(encoding="utf-8")).get("_data_files", [])
        names = [item["filename"] for item in files]
    except (ValueError, AttributeError, KeyError, TypeError) as error:
        raise InputError(f"{state} is no list of shards ({error}); save the data set again") from error
    return [state.parent / Path(name).name for name in names]


def _read_shard(shard: Path, root: Path) -> Iterator[Row]:
    """Read one file of several; a damaged one does not stop the others."""
    try:
        yield from _read_file(shard, root)
    except InputError as error:
        yield Row(shard.relative_to(root).as_posix(), None, str(error))


def _read_file(path: Path, root: Path) -> Iterator[Row]:
    reader = _READERS.get(path.suffix)
    if reader is None:
        raise InputError(f"{path} ends with {path.suffix!r}, expected one of {', '.join(_READERS)}")
    names = [path.name, *(parent.name for parent in path.parents if parent != root and root in parent.parents)]
    split = next((known for known in map(split_of, names) if known), None)
    for row in reader(path):
        yield replace(row, split=split)


# --- writing -------------------------------------------------------------------------------------------------------


def write_json_lines(path: Path, rows: Iterable[Fields]) -> None:
    """Write one record per line."""
    with written_whole(path) as stream:
        for fields in rows:
            stream.write(json.dumps(fields, ensure_ascii=False).encode() + b"\n")


def _write_json(path: Path, rows: Iterable[Fields]) -> None:
    """Write a list of records."""
    with written_whole(path) as stream:
        separator = b"[\n"
        for fields in rows:
            stream.write(separator + json.dumps(fields, ensure_ascii=False).encode())
            separator = b",\n"
        stream.write(b"\n]\n" if separator == b",\n" else b"[]\n")


def write_rows(path: Path, layout: Layout, rows: Iterable[tuple[str, Fields]]) -> None:
    """Write rows, each with the name of its split, in any layout but ``folders``; InputError for an existing folder."""
    if layout == "dataset":
        _write_shards(path, rows)
        return
    if path.is_dir():
        raise InputError(f"{path} is a folder, expected a file to write {layout} to")
    plain = (fields for _, fields in rows)
    if layout == "parquet":
        write_parquet(path, list(plain))
    else:
        (write_json_lines if layout == "jsonl" else _write_json)(path, plain)


def _write_shards(folder: Path, rows: Iterable[tuple[str, Fields]]) -> None:
    with folder_written_whole(folder) as place:
        by_split: dict[str, list[Fields]] = {}
        for split, fields in rows:
            by_split.setdefault(split, []).append(fields)
        # Shards of one data set have the same types.
        columns = plan_columns([fields for members in by_split.values() for fields in members])
        for split, members in by_split.items():
            num_shards = -(-len(members) // NUM_ROWS_PER_SHARD)
            for number in range(num_shards):
                part = members[number * NUM_ROWS_PER_SHARD : (number + 1) * NUM_ROWS_PER_SHARD]
                write_parquet(place / "data" / f"{split}-{number:05}-of-{num_shards:05}.parquet", part, columns)


def write_task_folders(root: Path, folders: Iterable[tuple[str, Fields]]) -> None:
    """Write one folder per task below ``root``, which must be empty or missing."""
    with folder_written_whole(root) as place:
        for name, fields in folders:
            write_folder(place / folder_name(name), fields)


def folder_name(task_id: str) -> str:
    """Turn ``task_id`` into the name of one folder."""
    return "".join(c if c.isalnum() or c in "._-" else "_" for c in task_id).lstrip(".") or "task"

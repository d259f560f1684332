from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from repairgym.errors import InputError
from repairgym.tasks.formats.base import RecordError, split_of
from repairgym.tasks.formats.columns import write_parquet
from repairgym.tasks.formats.datasets import read_dataset, write_rows, write_task_folders
from repairgym.tasks.formats.folders import read_folder, write_folder

pytest.importorskip("pyarrow")
CELLS = st.recursive(
    st.booleans()
    | st.integers(-(2**40), 2**40)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)


def fields_of(path: Path) -> list[Any]:
    return [row.fields for row in read_dataset(path)]


@pytest.mark.parametrize("layout", ["jsonl", "json", "parquet", "dataset"])
def test_every_layout_gives_the_same_rows_back(samples: dict[str, Any], tmp_path: Path, layout: Any) -> None:
    rows = [samples["swe_rebench"], {**samples["swe_rebench"], "instance_id": "b", "meta": {"other": 1}}]
    path = tmp_path / (f"data.{layout}" if layout != "dataset" else "data")
    write_rows(path, layout, (("test", fields) for fields in rows))
    assert fields_of(path) == rows
    if layout == "dataset":
        assert [shard.name for shard in path.rglob("*.parquet")] == ["test-00000-of-00001.parquet"]
        assert {row.split for row in read_dataset(path)} == {"test"}


@given(rows=st.lists(st.fixed_dictionaries({"a": CELLS, "b": CELLS | st.none()}), min_size=1, max_size=5))
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_rows_come_back_from_parquet(rows: list[dict[str, Any]], tmp_path: Path) -> None:
    path = tmp_path / "data.parquet"
    write_parquet(path, rows)
    assert json.dumps(fields_of(path), sort_keys=True) == json.dumps(rows, sort_keys=True)


def test_a_bad_line_is_named_and_the_others_are_read(tmp_path: Path) -> None:
    path = tmp_path / "data.jsonl"
    path.write_bytes(b'{"a": 1}\n{"a":\n\n[1]\n{"a": NaN}\n\xff\n{"a": 2}\n')
    rows = list(read_dataset(path))
    assert [row.fields for row in rows if row.fields] == [{"a": 1}, {"a": 2}]
    bad = {row.place: row.error for row in rows if row.fields is None}
    assert list(bad) == ["data.jsonl line 2", "data.jsonl line 4", "data.jsonl line 5", "data.jsonl line 6"]
    assert bad["data.jsonl line 4"] == "it is no table of fields"
    assert "NaN" in bad["data.jsonl line 5"]


def test_json_by_id_and_broken_json(tmp_path: Path) -> None:
    path = tmp_path / "data.json"
    path.write_text('{"x": {"a": 1}, "y": {"a": 2}}')
    assert fields_of(path) == [{"a": 1}, {"a": 2}]
    for text in ("3", "{", '{"a": 1}', "1], [2"):
        path.write_text(text)
        with pytest.raises(InputError, match=r"no JSON|neither a list"):
            fields_of(path)


def test_a_folder_saved_by_datasets_is_read_by_its_list_of_shards(tmp_path: Path) -> None:
    import pyarrow as pa

    table = pa.table({"a": [1, 2], "b": [["x"], []]})
    for split, name in (("train", "data-00000-of-00001.arrow"), ("train", "cache-1.arrow"), ("test", "data-0.arrow")):
        (tmp_path / split).mkdir(exist_ok=True)
        with pa.OSFile(str(tmp_path / split / name), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
        if name.startswith("data"):
            state = {"_data_files": [{"filename": name}], "_fingerprint": "f"}
            (tmp_path / split / "state.json").write_text(json.dumps(state))
    (tmp_path / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    rows = list(read_dataset(tmp_path))
    assert [(row.split, row.fields) for row in rows] == [
        (split, fields) for split in ("test", "train") for fields in ({"a": 1, "b": ["x"]}, {"a": 2, "b": []})
    ]


def test_a_damaged_shard_leaves_the_others(samples: dict[str, Any], tmp_path: Path) -> None:
    write_parquet(tmp_path / "a.parquet", [samples["swe_gym"]])
    (tmp_path / "b.parquet").write_bytes(b"PAR1 broken")
    rows = list(read_dataset(tmp_path))
    assert [row.fields is None for row in rows] == [False, True]
    assert "b.parquet" in rows[1].place
    with pytest.raises(InputError, match="cannot read"):
        fields_of(tmp_path / "b.parquet")


def test_columns_of_nulls_and_empty_lists_are_text(tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    rows = [{"a": None, "b": []}, {"a": None, "b": []}]
    write_parquet(tmp_path / "data.parquet", rows)
    assert fields_of(tmp_path / "data.parquet") == rows
    assert [str(kind) for kind in pq.read_schema(tmp_path / "data.parquet").types] == [
        "string",
        "list<element: string>",
    ]


def test_times_become_text_and_bytes_are_refused(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = tmp_path / "data.parquet"
    times = pa.array([0], pa.timestamp("s", "UTC"))
    pq.write_table(pa.table({"t": times}), path)
    assert fields_of(path) == [{"t": "1970-01-01T00:00:00+00:00"}]
    pq.write_table(pa.table({"t": [b"x"]}), path)
    (row,) = read_dataset(path)
    assert "bytes" in row.error


def test_task_folders_have_the_same_bytes_again(samples: dict[str, Any], tmp_path: Path) -> None:
    write_task_folders(tmp_path / "out", [("a/b", samples["swe_bench_5"]), ("c", samples["harbor"])])
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["a_b", "c"]
    rows = list(read_dataset(tmp_path / "out"))
    assert [row.place for row in rows] == ["a_b", "c"]
    assert [row.fields for row in rows] == [samples["swe_bench_5"], samples["harbor"]]
    assert (tmp_path / "out" / "a_b" / "test_assets" / "one.bin").read_bytes() == b"\x00\xff"
    assert (tmp_path / "out" / "c" / "tests" / "test.sh").stat().st_mode & 0o100
    (one,) = read_dataset(tmp_path / "out" / "c")
    assert one.place == "c"


@pytest.mark.parametrize("name", ["../x", "/x", "", "a/../../x"])
def test_no_file_is_written_outside_its_folder(tmp_path: Path, name: str) -> None:
    with pytest.raises(RecordError, match="does not stay"):
        write_folder(tmp_path / "task", {name: "text"})
    assert list(tmp_path.iterdir()) == []


def test_links_in_a_task_folder_are_refused(tmp_path: Path) -> None:
    (tmp_path / "task.toml").write_text("")
    (tmp_path / "passwd").symlink_to("/etc/passwd")
    with pytest.raises(RecordError, match="passwd is a link"):
        read_folder(tmp_path)
    (row,) = read_dataset(tmp_path)
    assert row.fields is None


def test_what_cannot_be_read_or_written_says_so(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there is no"):
        fields_of(tmp_path / "absent")
    with pytest.raises(InputError, match="no task folder"):
        fields_of(tmp_path)
    (tmp_path / "x.csv").write_text("a")
    with pytest.raises(InputError, match=r"ends with '.csv'"):
        fields_of(tmp_path / "x.csv")
    with pytest.raises(InputError, match="not empty"):
        write_rows(tmp_path, "dataset", [("train", {"a": 1})])
    with pytest.raises(InputError, match="is a folder"):
        write_rows(tmp_path, "jsonl", [("train", {"a": 1})])


def test_splits_by_name() -> None:
    names = ("train-00000-of-00002.parquet", "dev.jsonl", "validation", "Test_x", "trainer", "data")
    assert [split_of(name) for name in names] == ["train", "validation", "validation", "test", None, None]

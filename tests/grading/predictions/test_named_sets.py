"""Data sets by name: ids come from the user's file, and a missing file says what to download."""

import json

import pytest

from repairgym.errors import InputError
from repairgym.grading.predictions.named_sets import instance_ids


def record(name: str, created_at: str) -> dict:
    fields = {"instance_id": name, "repo": "acme/calc", "base_commit": "0" * 40, "patch": "", "test_patch": ""}
    lists = {"FAIL_TO_PASS": '["t.py::test"]', "PASS_TO_PASS": "[]", "version": "1"}
    return {**fields, **lists, "problem_statement": "x", "hints_text": "", "created_at": created_at}


@pytest.fixture
def folder(tmp_path):
    rows = [record("b", "2025-06-30T10:00:00Z"), record("a", "2025-07-01T10:00:00Z")]
    (tmp_path / "swe-rebench.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (tmp_path / "verified-50.txt").write_text("a\n\nb\na\n")
    (tmp_path / "mine.json").write_text('["c", "a"]')
    return tmp_path


@pytest.mark.parametrize(
    ("name", "ids"),
    [
        ("swe-rebench", ("b", "a")),
        ("swe-rebench-2025-07", ("a",)),
        ("verified-50", ("a", "b")),
        ("mine", ("c", "a")),
    ],
)
def test_a_name_is_a_file_of_records_or_ids(folder, name, ids):
    assert instance_ids(name, folder) == ids


def test_a_path_is_a_set_too(folder):
    assert instance_ids(str(folder / "mine.json"), folder / "elsewhere") == ("c", "a")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("verified", "download the data set SWE-bench_Verified, 500 records, and put it at"),
        ("other", "there is no data set other: download its records, or its ids one a line"),
        ("swe-rebench-2024-01", "holds no instance of 2024-01"),
        ("broken", "line 2"),
    ],
)
def test_what_is_missing_is_said_in_one_sentence(folder, name, said):
    (folder / "broken.jsonl").write_text(json.dumps(record("a", "")) + "\n{oh\n")
    with pytest.raises(InputError, match=said):
        instance_ids(name, folder)

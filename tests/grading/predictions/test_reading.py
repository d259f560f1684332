"""Predictions files: three forms, and a bad entry costs no other one."""

import json

import pytest

from repairgym.errors import InputError
from repairgym.grading.predictions.reading import read_predictions, reject_unknown


def entry(name: str, patch: str | None = "diff") -> dict:
    return {"instance_id": name, "model_name_or_path": "m", "model_patch": patch}


def write(folder, content, name="p.jsonl"):
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("p.jsonl", "\n".join(json.dumps(entry(name)) for name in "ab") + "\n\n"),
        ("p.txt", "\n".join(json.dumps(entry(name)) for name in "ab")),
        ("p.json", json.dumps([entry("a"), entry("b")], indent=2)),
        ("p.json", json.dumps({"a": entry("a"), "b": {**entry("b"), "cost": 3}})),
        ("p.json", json.dumps({"a": entry("a"), "b": {"model_name_or_path": "m", "model_patch": "diff"}})),
    ],
)
def test_the_three_forms(tmp_path, name, content):
    file = read_predictions(write(tmp_path, content, name))
    assert [(one.instance_id, one.model_patch) for one in file.predictions] == [("a", "diff"), ("b", "diff")]
    assert file.rejected == ()


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b'{"instance_id": "a", ', "no JSON"),
        (b"[" * 100_000, "no JSON"),
        (b'\xff{"instance_id": "a"}', "no JSON"),
        (b'["a"]', "expected an object"),
        (b'{"instance_id": "a", "model_patch": ""}', "'model_name_or_path' is missing"),
        (b'{"instance_id": "a", "model_name_or_path": "m"}', "'model_patch' is missing"),
        (b'{"instance_id": 3, "model_name_or_path": "m", "model_patch": ""}', "instance_id: "),
        (b'{"instance_id": "a", "model_name_or_path": "m", "model_patch": ["x"]}', "model_patch: "),
        (b'{"instance_id": "a", "model_name_or_path": "m", "model_patch": "\\ud800"}', "no Unicode"),
    ],
)
def test_a_bad_line_is_named_and_the_others_stay(tmp_path, line, reason):
    content = b"\n".join([json.dumps(entry("x")).encode(), line, json.dumps(entry("y")).encode()])
    file = read_predictions(write(tmp_path, content))
    assert [one.instance_id for one in file.predictions] == ["x", "y"]
    (refusal,) = file.rejected
    assert (refusal.kind, refusal.place) == ("malformed", "line 2")
    assert reason in refusal.reason


def test_an_instance_with_two_patches_has_none(tmp_path):
    lines = [entry("a", "one"), entry("b"), entry("a", "two"), entry("b")]
    file = read_predictions(write(tmp_path, "\n".join(map(json.dumps, lines))))
    assert [one.instance_id for one in file.predictions] == ["b"]
    assert [(one.kind, one.place, one.instance_id) for one in file.rejected] == [
        ("duplicate", "line 1", "a"),
        ("duplicate", "line 3", "a"),
    ]


def test_a_key_given_twice_in_an_object_is_seen(tmp_path):
    text = f'{{"a": {json.dumps(entry("a", "one"))}, "a": {json.dumps(entry("a", "two"))}}}'
    file = read_predictions(write(tmp_path, text, "p.json"))
    assert (file.predictions, [one.kind for one in file.rejected]) == ((), ["duplicate", "duplicate"])


def test_a_key_that_names_another_instance_is_rejected(tmp_path):
    file = read_predictions(write(tmp_path, json.dumps({"a": entry("b")}), "p.json"))
    assert "the key names 'a', the prediction 'b'" in file.rejected[0].reason


def test_no_patch_is_an_empty_patch(tmp_path):
    file = read_predictions(write(tmp_path, json.dumps(entry("a", None))))
    assert file.predictions[0].model_patch == ""


def test_unknown_instances_are_rejected_and_the_others_stay(tmp_path):
    file = read_predictions(write(tmp_path, "\n".join(json.dumps(entry(name)) for name in ("a", "zz"))))
    known = reject_unknown(file, {"a"})
    assert [one.instance_id for one in known.predictions] == ["a"]
    assert [(one.kind, one.instance_id) for one in known.rejected] == [("unknown_instance", "zz")]


@pytest.mark.parametrize("content", ["", "\n\n", '[{"instance_id": "a",\n', "3", "not JSON"])
def test_a_file_that_holds_no_predictions_is_an_error(tmp_path, content):
    with pytest.raises(InputError, match=r"p\.json"):
        read_predictions(write(tmp_path, content, "p.json"))


def test_a_missing_file_is_an_error(tmp_path):
    with pytest.raises(InputError, match="cannot read the predictions"):
        read_predictions(tmp_path / "none.jsonl")

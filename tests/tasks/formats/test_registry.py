from __future__ import annotations

import json
import time
import tomllib
from typing import Any, get_args

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from repairgym.diffs.apply import apply_patch
from repairgym.tasks.formats.base import RecordError
from repairgym.tasks.formats.registry import FORMATS, detect_format
from repairgym.tasks.unbuilt import FormatName, UnbuiltTask

NAMES = get_args(FormatName)
ROWS = [name for name in NAMES if not FORMATS[name].is_folder]
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
# Lone surrogates are no UTF-8 and no JSON; a record with one is refused.
PLAIN_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)


def read(name: str, fields: dict[str, Any]) -> UnbuiltTask:
    return FORMATS[name].read(fields)


def convert(task: UnbuiltTask, name: str) -> UnbuiltTask:
    fields = FORMATS[name].write(task, is_from_folder=FORMATS[task.format].is_folder)
    return read(name, json.loads(json.dumps(fields)))


def test_every_format_is_registered_under_its_name() -> None:
    assert set(FORMATS) == set(NAMES)
    assert all(form.name == name for name, form in FORMATS.items())


@pytest.mark.parametrize("name", NAMES)
def test_a_record_comes_back_as_it_was_and_is_recognised(samples: dict[str, Any], name: str) -> None:
    fields = samples[name]
    assert detect_format(fields).name == name
    task = read(name, fields)
    # Through the file of the folder, too.
    task = UnbuiltTask.model_validate_json(task.model_dump_json())
    assert FORMATS[name].write(task, is_from_folder=FORMATS[name].is_folder) == fields


@pytest.mark.parametrize("name", ROWS)
@given(data=st.data())
@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_record_of_rows_comes_back_as_it_was(samples: dict[str, Any], name: str, data: st.DataObject) -> None:
    fields = dict(samples[name])
    needed = {"instance_id", "patch", "repo", "number", "base", "org", "fix_patch", "fixed_tests", "base_commit"}
    needed |= {"FAIL_TO_PASS", "PASS_TO_PASS", "repo_name", "commit_hash", "parsed_commit_content", "install_config"}
    optional = sorted(fields.keys() - needed)
    for field in data.draw(st.lists(st.sampled_from(optional), unique=True, max_size=4)):
        del fields[field]
    for field in ("problem_statement", "hints_text", "version", "title", "test_patch", "image_name", "instance_id"):
        if isinstance(fields.get(field), str) and data.draw(st.booleans()):
            fields[field] = data.draw(PLAIN_TEXT.filter(str.strip))
    fields |= data.draw(st.dictionaries(PLAIN_TEXT.map("x_{}".format), JSON_VALUES, max_size=3))
    task = UnbuiltTask.model_validate_json(read(name, fields).model_dump_json())
    again = FORMATS[name].write(task, is_from_folder=False)
    assert json.dumps(again, sort_keys=True) == json.dumps(fields, sort_keys=True)


@pytest.mark.parametrize("name", [name for name in NAMES if FORMATS[name].is_folder])
@given(files=st.dictionaries(PLAIN_TEXT.map("x/{}".format), PLAIN_TEXT, max_size=3), issue=PLAIN_TEXT)
@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_task_folder_comes_back_as_it_was(
    samples: dict[str, Any], name: str, files: dict[str, str], issue: str
) -> None:
    fields = {**samples[name], **files}
    fields["instruction.md" if name == "harbor" else "problem_statement.md"] = issue
    task = UnbuiltTask.model_validate_json(read(name, fields).model_dump_json())
    assert FORMATS[name].write(task, is_from_folder=True) == fields


@pytest.mark.parametrize("name", [name for name in NAMES if name not in ("swe_smith", "r2e_gym")])
def test_patches_and_tests_survive_a_change_of_format(samples: dict[str, Any], name: str) -> None:
    task = read("swe_rebench", samples["swe_rebench"])
    other = convert(task, name)
    assert (other.gold_patch, other.test_patch) == (task.gold_patch, task.test_patch)
    assert (other.fail_to_pass, other.pass_to_pass) == (task.fail_to_pass, task.pass_to_pass)
    assert (other.repository, other.base_commit, other.id) == (task.repository, task.base_commit, task.id)
    assert other.issue.strip() == task.issue.strip()
    kept = json.dumps(other.extra)
    assert all(word in kept for word in ("head_commit", "name: calc")), "unknown fields go along"


def test_the_patch_of_swe_smith_makes_the_bug(samples: dict[str, Any]) -> None:
    task = read("swe_smith", samples["swe_smith"])
    clean = {"src/calc.py": "def double(x):\n    return x * 2\n# end\n"}
    buggy = apply_patch(task.bug_patch, clean.get)
    assert "x * 3" in (buggy["src/calc.py"] or "")
    assert apply_patch(task.gold_patch, buggy.get) == clean
    assert (task.repository, task.base_commit) == ("acme/calc", "abcdef12")
    back = convert(convert(task, "swe_gym"), "swe_smith")
    assert apply_patch(back.bug_patch, clean.get) == buggy


def test_r2e_gym_gets_its_patches_from_the_parsed_commit(samples: dict[str, Any]) -> None:
    task = read("r2e_gym", samples["r2e_gym"])
    buggy = {"src/calc.py": "def double(x):\n    return x * 3\n# end\n"}
    assert "x * 2" in (apply_patch(task.gold_patch, buggy.get)["src/calc.py"] or "")
    assert apply_patch(task.test_patch, {}.get) == {
        "tests/test_calc.py": "def test_double():\n    assert double(2) == 4\n"
    }
    assert task.base_commit == "b" * 40 + "^"
    assert any("tests that fail before the repair" in part for part in task.missing)


def test_other_formats_cannot_be_written_as_r2e_gym(samples: dict[str, Any]) -> None:
    with pytest.raises(RecordError, match="r2e_gym needs the commit of the repair"):
        convert(read("swe_gym", samples["swe_gym"]), "r2e_gym")


def test_scores_times_and_environment_are_read(samples: dict[str, Any]) -> None:
    first = read("swe_rebench", samples["swe_rebench"])
    assert first.quality_scores == {"difficulty_score": 1.0, "issue_text_score": 3.0, "test_score": 0.0}
    assert (first.license, first.python, first.lock) == ("MIT License", "3.9", "pytest==8.0\n")
    second = read("swe_rebench_v2", samples["swe_rebench_v2"])
    assert (second.created_at, second.language) == ("2024-05-06T07:08:09.123+00:00", "go")
    assert second.build == ("go build ./...",)


def test_times_without_a_zone_are_of_utc_on_every_machine(
    samples: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    try:
        task = read("swe_gym", {**samples["swe_gym"], "created_at": "2024-05-06 07:08:09"})
        assert read("swe_rebench_v2", FORMATS["swe_rebench_v2"].write(task, is_from_folder=False)).created_at == (
            "2024-05-06T07:08:09.000+00:00"
        )
    finally:
        monkeypatch.undo()
        time.tzset()


def test_multi_swe_takes_every_way_to_a_pass_and_columns(samples: dict[str, Any]) -> None:
    fields = samples["multi_swe"]
    fields["fixed_tests"] = {}
    fields["s2p_tests"] = {"of another row": None}
    fields["n2p_tests"] = {"name": ["new"], "run": ["NONE"], "test": ["NONE"], "fix": ["PASS"]}
    task = read("multi_swe", fields)
    assert task.fail_to_pass == ("tests/test_calc.py::test_double", "new")
    assert task.issue == "double is wrong\ndouble(2) is 6"


def test_harbor_without_a_record_keeps_what_it_says(samples: dict[str, Any]) -> None:
    fields = samples["harbor"]
    del fields["tests/config.json"]
    with pytest.raises(RecordError, match="no id"):
        read("harbor", fields)
    fields["task.toml"] += '\n[task]\nname = "acme/calc"\n'
    task = read("harbor", fields)
    assert (task.id, task.image) == ("acme/calc", "registry/calc:1")
    assert task.gold_patch.startswith("diff --git a/src/calc.py")


@pytest.mark.parametrize(
    ("name", "field", "value", "message"),
    [
        ("swe_bench", "patch", None, "'patch' is missing"),
        ("swe_bench", "FAIL_TO_PASS", "[1", "no JSON"),
        ("swe_bench", "problem_statement", 3, "is a number, expected text"),
        ("swe_gym", "FAIL_TO_PASS", [1], "expected a list of test names"),
        ("swe_gym", "instance_id", " ", "the id is empty"),
        ("swe_gym", "x", float("nan"), "no JSON"),
        ("swe_gym", "x", "\ud800", "no JSON"),
        ("swe_rebench", "install_config", [], "expected nested fields"),
        ("swe_rebench_v2", "created_at", 10**30, "no time"),
        ("swe_rebench_v2", "created_at", True, "expected a Unix time"),
        ("swe_smith", "patch", "@@ -1 +1 @@\n-a\n+b\n", "cannot be reversed"),
        ("multi_swe", "number", "7", "number of a pull request"),
        ("r2e_gym", "parsed_commit_content", "{", "no JSON"),
        ("swe_bench_5", "task.yaml", "a: [", "cannot be read"),
        ("swe_bench_5", "tests.json", "[]", "holds no fields"),
        ("harbor", "task.toml", "=", "cannot be read"),
    ],
)
def test_a_bad_field_is_named(samples: dict[str, Any], name: str, field: str, value: Any, message: str) -> None:
    with pytest.raises(RecordError, match=message):
        read(name, {**samples[name], field: value})


def test_an_unknown_record_fits_no_format() -> None:
    with pytest.raises(RecordError, match="fields a, b fit no format"):
        detect_format({"b": 1, "a": 2})


@pytest.mark.parametrize(
    ("task_id", "repository", "name"),
    [
        ("acme__calc-7", "acme/calc", "acme/acme__calc-7"),
        ("toolz-1.0-mutation-1", "", "repairgym/toolz-1.0-mutation-1"),
        ("../.a b/c..d", ".x/y", "x/a-b-c-d"),
    ],
)
def test_names_of_harbor_tasks_have_an_owner(task_id: str, repository: str, name: str) -> None:
    task = UnbuiltTask(id=task_id, format="swe_gym", repository=repository, image="registry/calc")
    table = tomllib.loads(FORMATS["harbor"].write(task, is_from_folder=False)["task.toml"])
    assert table["task"]["name"] == name
    assert table["artifacts"] == []

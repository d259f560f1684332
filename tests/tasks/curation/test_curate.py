from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from repairgym.config.loading import load_config
from repairgym.config.tasks import (
    ContaminationConfig,
    CurationConfig,
    FilterName,
    FlakinessConfig,
    SolveRateConfig,
    SplitConfig,
)
from repairgym.errors import InputError
from repairgym.tasks.curation.candidate import Candidate, describe, find_unmentioned
from repairgym.tasks.curation.curate import assign_splits, curate, run_filters
from repairgym.tasks.curation.filters import FILTERS, PatchIndex
from repairgym.tasks.solve_rates import SolveRate
from repairgym.tasks.store import TaskStore
from repairgym.tasks.unbuilt import UnbuiltTask

CONFIGS = Path(__file__).parents[3] / "src/repairgym/data/presets"


def apply(name: FilterName, *candidates: Candidate, **settings: Any) -> tuple[list[str], list[str]]:
    """Ids that the filter leaves out, and ids that it cannot apply."""
    ruling = FILTERS[name].apply(candidates, CurationConfig(**settings))
    return list(ruling.removed), list(ruling.unmeasured)


def one(task_id: str = "a", **fields: Any) -> Candidate:
    return Candidate(id=task_id, source="mutations", package=fields.pop("package", "p"), **fields)


def test_size_has_the_bounds_of_paper_b() -> None:
    fits = one("fits", num_files=7, num_lines=499)
    assert apply("size", fits, one("files", num_files=8, num_lines=1), one("lines", num_files=1, num_lines=500)) == (
        ["files", "lines"],
        [],
    )
    assert apply("size", one("unknown")) == ([], ["unknown"])


def test_thin_verdicts_are_dropped_where_they_were_counted() -> None:
    candidates = one("thin", is_thin=True), one("told", is_thin=False), one("unknown")
    assert apply("thin_verdict", *candidates) == (["thin"], ["unknown"])


def test_missing_names_are_told_from_other_failures() -> None:
    messages = {
        "import": ("ImportError: cannot import name 'x'",),
        "module": ("ModuleNotFoundError: No module named 'x'",),
        "attribute": ("assert 1 == 2", "AttributeError: 'C' object has no attribute 'x'"),
        "assertion": ("AssertionError: AttributeError was not raised",),
        "own": ("pkg.MyAttributeErrors: x",),
    }
    found = apply("missing_names", *(one(name, failure_messages=texts) for name, texts in messages.items()))
    assert found == (["import", "module", "attribute"], [])
    assert apply("missing_names", one("none"), one("empty", failure_messages=("",))) == ([], ["none", "empty"])
    value = one("value", failure_messages=("AttributeError: 'NoneType' object has no attribute 'x'",))
    name = one("name", failure_messages=value.failure_messages, new_names=frozenset({"x", "y"}))
    assert apply("missing_names", value, name) == (["value", "name"], [])
    assert apply("missing_names", value, name, missing_names={"is_limited_to_new_names": True}) == (["name"], [])
    half = {"max_share": 0.5}
    assert apply("missing_names", one("b", failure_messages=messages["attribute"]), missing_names=half) == ([], [])


def test_unmentioned_names_are_those_that_only_the_repair_tells() -> None:
    gold = "--- a/x.py\n+++ b/x.py\n@@ -1 +1,4 @@\n-old = 1\n+old = 2\n+def fresh():\n+LIMIT: int = 3\n+    inner = 1\n"
    tests = "--- a/t.py\n+++ b/t.py\n@@ -0,0 +1 @@\n+assert fresh() == LIMIT == old == inner\n"
    assert find_unmentioned(gold, tests, "it is wrong") == ("LIMIT", "fresh")
    assert find_unmentioned(gold, tests, "add fresh() and LIMIT") == ()
    assert apply("unmentioned_names", one("a", unmentioned_names=("f",)), one("b", unmentioned_names=()), one("c")) == (
        ["a"],
        ["c"],
    )


def test_quality_leaves_out_the_score_three() -> None:
    scored = [one(str(score), quality_scores={"test_score": score, "other": 9.0}) for score in (0.0, 2.9, 3.0)]
    assert apply("quality", *scored, one("none"), one("other", quality_scores={"other": 9.0})) == (
        ["3.0"],
        ["none", "other"],
    )


def test_flakiness_needs_fifty_runs_to_acquit() -> None:
    few, many = one("few", num_runs=3), one("many", num_runs=50)
    flaky = one("flaky", num_runs=3, num_unstable_tests=1)
    assert apply("flakiness", few, many, flaky, one("none")) == (["flaky"], ["few", "none"])


def test_build_time_and_trivial() -> None:
    assert apply("build_time", one("short", build_s=100.0), one("long", build_s=100.1), one("none")) == (
        ["long"],
        ["none"],
    )
    assert apply(
        "trivial",
        one("good", num_fail_to_pass=1, is_empty_failing=True),
        one("passes", num_fail_to_pass=1, is_empty_failing=False),
        one("no test"),
        one("not run", num_fail_to_pass=1),
    ) == (["passes", "no test"], ["not run"])


def test_solve_rates_of_two_thirds_and_of_zero_go() -> None:
    rates = {
        "never": (0, 12),
        "one": (1, 12),
        "below": (7, 12),
        "two thirds": (8, 12),
        "always": (12, 12),
        "few": (1, 9),
    }
    candidates = [one(name, solve_rate=SolveRate(*rate)) for name, rate in rates.items()]
    assert apply("solve_rate", *candidates, one("none")) == (["never", "two thirds", "always"], ["few", "none"])


def test_duplicates_go_and_bugs_beside_each_other_stay() -> None:
    first = one("first", patch_lines=frozenset(range(20)))
    same = one("same", patch_lines=frozenset(range(1, 20)))
    near = one("near", patch_lines=frozenset(range(4, 24)))
    assert apply("duplicates", first, same, near, one("none")) == (["same"], ["none"])
    assert apply("duplicates", first, one("other split", split="test", patch_lines=first.patch_lines)) == ([], [])


@given(st.lists(st.frozensets(st.integers(0, 12), min_size=1), min_size=2, max_size=8), st.floats(0.3, 1.0))
@settings(deadline=None, max_examples=60)
def test_the_index_finds_what_comparing_all_pairs_finds(patches: list[frozenset[int]], bound: float) -> None:
    index = PatchIndex(bound)
    *known, last = (one(str(number), patch_lines=lines) for number, lines in enumerate(patches))
    for candidate in known:
        index.add(candidate)
    similarities = [len(last.patch_lines & k.patch_lines) / len(last.patch_lines | k.patch_lines) for k in known]
    found = index.find(last)
    assert (found[1] if found else None) == max((s for s in similarities if s >= bound), default=None)


def test_training_tasks_that_tell_about_held_out_ones_go() -> None:
    day = datetime(2024, 1, 1, tzinfo=UTC)
    lines = frozenset(range(10))
    candidates = [
        one("held", split="test", package="acme/My_Pkg", created_at=day, patch_lines=lines),
        one("package", split="train", package="my-pkg", created_at=day - timedelta(1)),
        one("patch", split="train", package="q", created_at=day - timedelta(1), patch_lines=lines),
        one("late", split="train", package="q", created_at=day),
        one("no time", split="train", package="q"),
        one("clean", split="train", package="q", created_at=day - timedelta(1)),
        one("no split", package="my-pkg"),
    ]
    assert apply("contamination", *candidates) == (["patch", "package"], ["no split"])
    by_time = ContaminationConfig(by_package=False, by_time=True, by_patch=False)
    assert apply("contamination", *candidates, contamination=by_time) == (["late"], ["no split", "no time"])


def test_splits_in_time_order_are_eighty_ten_ten() -> None:
    day = datetime(2024, 1, 1, tzinfo=UTC)
    candidates = [one(str(n), created_at=day + timedelta(n)) for n in range(20)][::-1]
    made = {c.id: c.split for c in assign_splits(candidates, SplitConfig(by="time"))}
    assert [made[str(n)] for n in range(20)] == ["train"] * 16 + ["validation"] * 2 + ["test"] * 2
    with pytest.raises(InputError, match="1 have none"):
        assign_splits([*candidates, one("x")], SplitConfig(by="time"))


def test_packages_are_never_divided() -> None:
    candidates = [one(f"{package}-{n}", package=package) for package in "abcdefghij" for n in range(3)]
    made = assign_splits(candidates, SplitConfig(by="package", shares=(0.6, 0.2, 0.2), seed=1))
    by_package = {package: {c.split for c in made if c.package == package} for package in "abcdefghij"}
    assert all(len(splits) == 1 for splits in by_package.values())
    assert (
        sorted(str(s) for splits in by_package.values() for s in splits)
        == ["test"] * 2 + ["train"] * 6 + ["validation"] * 2
    )
    again = {
        c.id: c.split
        for c in assign_splits(candidates[::-1], SplitConfig(by="package", shares=(0.6, 0.2, 0.2), seed=1))
    }
    assert again == {c.id: c.split for c in made}


def test_bugs_of_one_function_are_in_one_split(built: TaskStore) -> None:
    candidates = [one(f"{name}-{n}", function=f"p.py:{name}") for name in "abcdefghij" for n in range(3)]
    made = assign_splits(candidates, SplitConfig(by="function", shares=(0.7, 0.0, 0.3)))
    by_function = {c.function: c.split for c in made}
    assert all(by_function[c.function] == c.split for c in made)
    assert sorted(map(str, by_function.values())) == ["test"] * 3 + ["train"] * 7
    config = CurationConfig(filters=("contamination",), contamination=ContaminationConfig(by_package=False))
    assert len(run_filters(made, config)[0]) == 30
    task = built.load()[0]
    assert task.location is not None
    assert describe(task).function == f"{task.location.path}:{task.location.name}"


def test_the_funnel_counts_each_task_once_and_in_order() -> None:
    candidates = [one("both", num_files=9, num_lines=1), one("trivial", num_files=1, num_lines=1), one("unknown")]
    config = CurationConfig(filters=("size", "trivial"))
    kept, funnel = run_filters(candidates, config)
    assert (kept, funnel.counts()) == ([], {"candidates": 3, "size": 1, "trivial": 2, "kept": 0})
    assert [outcome.num_unmeasured for outcome in funnel.filters] == [1, 0]
    assert funnel.filters[0].settings == {"max_files": 7, "num_lines_below": 500}
    strict = config.model_copy(update={"is_unmeasured_kept": False, "filters": ("size",)})
    assert run_filters([one("unknown")], strict)[1].filters[0].removed == {"unknown": "not measured"}


def test_of_tasks_with_one_id_the_first_stays() -> None:
    twins = [one("a", package="first"), one("b"), one("a", package="second")]
    kept, funnel = run_filters(twins, CurationConfig(filters=()))
    assert [(c.id, c.package) for c in kept] == [("a", "first"), ("b", "p")]
    assert funnel.counts() == {"candidates": 3, "repeated_ids": 1, "kept": 2}


def test_configurations_of_the_papers_hold_their_numbers() -> None:
    stage_1 = load_config(CurationConfig, CONFIGS / "paper_b" / "curation.toml")
    assert (stage_1.size.max_files, stage_1.size.num_lines_below, stage_1.quality.score_below) == (7, 500, 3.0)
    assert stage_1.flakiness == FlakinessConfig(min_runs=50)
    stage_2 = load_config(CurationConfig, CONFIGS / "paper_b" / "curation_stage_2.toml")
    assert (stage_2.filters, stage_2.solve_rate) == (("solve_rate",), SolveRateConfig())
    paper_a = load_config(CurationConfig, CONFIGS / "paper_a" / "curation.toml")
    assert (paper_a.split.by, paper_a.split.shares, paper_a.build_time.max_build_s) == ("time", (0.8, 0.1, 0.1), 100.0)
    with pytest.raises(ValidationError, match="add up to 1"):
        SplitConfig(shares=(0.5, 0.1, 0.1))
    with pytest.raises(ValidationError, match="twice"):
        CurationConfig(filters=("size", "size"))


def test_a_curated_folder_has_the_kept_tasks_and_the_funnel(built: TaskStore, tmp_path: Path) -> None:
    from repairgym.report.run_folder import read_funnel

    store = TaskStore(tmp_path / "tasks")
    tasks = built.load()
    large = tasks[0].model_copy(update={"id": "zz-large", "gold_patch": tasks[0].gold_patch * 8})
    store.save([*tasks, large], {"total": {"mutations": {"kept": len(tasks)}}}, {"seed": 0})
    store.save_unbuilt(
        [
            UnbuiltTask(
                id="u1", format="swe_gym", repository="o/n", fail_to_pass=("t",), gold_patch="--- a/x\n+++ b/x\n"
            ),
            UnbuiltTask(id="u2", format="swe_gym", repository="o/n"),
        ]
    )
    config = CurationConfig(filters=("size", "trivial", "duplicates"))
    funnel = curate(store, tmp_path / "curated", config)
    assert funnel.filters[0].removed == {"zz-large": "8 files changed, at most 7"}
    assert funnel.filters[1].removed == {"u2": "no test is named that fails before the repair"}
    target = TaskStore(tmp_path / "curated")
    kept = {task.id for task in target.load()}
    duplicates = set(funnel.filters[2].removed)
    assert kept | duplicates == {task.id for task in tasks}
    assert [task.id for task in target.iter_unbuilt()] == ["u1"]
    (tmp_path / "run").mkdir()
    (tmp_path / "curated").rename(tmp_path / "run" / "tasks")
    shown = read_funnel(tmp_path / "run")
    assert shown is not None
    assert shown.by_source["curation"]["candidates"] == len(tasks) + 3
    assert shown.by_source["mutations"] == {"kept": len(tasks)}
    curate(TaskStore(tmp_path / "run" / "tasks"), tmp_path / "again", config)
    assert set(json.loads((tmp_path / "again" / "funnel.json").read_text())["total"]) >= {"curation", "curation_2"}
    with pytest.raises(InputError, match="not empty"):
        curate(store, tmp_path / "again", config)


def test_a_certified_task_is_described_by_its_certificate(built: TaskStore) -> None:
    task = built.load(source="mutations")[0]
    candidate = describe(task)
    assert (candidate.num_runs, candidate.is_empty_failing) == (task.certificate.num_empty_runs, True)
    assert (candidate.num_files, candidate.failure_messages) == (1, None)
    assert candidate.build_s == task.certificate.empty_duration_s
    assert candidate.patch_lines

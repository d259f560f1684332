from __future__ import annotations

import json
from dataclasses import replace

import pytest
from tests.conftest import make_trajectory, make_verdict

from repairgym.analysis.tables import cost_table
from repairgym.evaluation.summary import REQUIRED_PHASES, Summary, build_summary, write_summary
from repairgym.records import TestOutcome, TestResult, VerdictKind
from repairgym.rollout.names import eval_phase
from repairgym.rollout.store import RunStore

CONFIG = {"seed": 1, "rl": {"lr": 1e-4}}


@pytest.fixture(scope="module")
def summary(synthetic_run):
    with RunStore.open(synthetic_run / "run.db", is_read_only=True) as store:
        packages = {f"mut-{i:03d}": f"pkg{i % 4}" for i in range(12)}
        return build_summary(store, CONFIG, packages=packages, digests={"tasks": "abc"}, num_resamples=500)


def test_stage_counts_agree_with_the_store(summary, synthetic_run):
    with RunStore.open(synthetic_run / "run.db", is_read_only=True) as store:
        for result in summary.stages:
            rows = store.rows(phase=eval_phase(result.stage, result.test_set))
            assert result.num_samples == len(rows)
            assert result.num_invalid == sum(row.verdict is VerdictKind.INVALID for row in rows)
            total = result.num_passed + result.num_failed + result.num_exploited + result.num_invalid
            assert total == result.num_samples
            # every task of the synthetic run has as many samples as the others
            assert result.pass_at_1.value == pytest.approx(result.num_passed / result.num_samples)


def test_pass_at_k_grows_with_k(summary):
    result = summary.stage("rl", "test-mutations")
    assert [one.k for one in result.pass_at_k] == [2]
    assert result.pass_at_k[0].value >= result.pass_at_1.value


def test_headline_is_rl_against_its_start(summary):
    assert (summary.headline.treatment, summary.headline.reference) == ("rl", "rft")
    left, right = summary.stage("rl", "test-mutations"), summary.stage("rft", "test-mutations")
    assert summary.headline.difference == pytest.approx(left.pass_at_1.value - right.pass_at_1.value)
    assert summary.headline.num_clusters == 4


def test_comparisons_hold_every_control(summary):
    pairs = [(one.treatment, one.reference) for one in summary.comparisons if one.test_set == "test-mutations"]
    assert pairs == [
        ("rl", "rft"),
        ("rl", "rft-t0.5"),
        ("rl", "submit-at-once"),
        ("rl", "base"),
        ("rl", "sft-continued"),
        ("rft", "base"),
    ]


def test_missing_phases_and_digests(summary):
    assert summary.missing == ("teacher", "rft")
    assert summary.digests["tasks"] == "abc"
    assert summary.digests["rl: weights_sha256"] == "ab" * 32
    assert len(summary.digests["config"]) == 64
    assert summary.event_counts == {"sandbox_lost": 1}
    assert summary.peak_rss_bytes > 0


def test_summary_file_round_trip(summary, tmp_path):
    write_summary(summary, tmp_path / "summary.json")
    assert Summary.model_validate(json.loads((tmp_path / "summary.json").read_text())) == summary


def test_an_empty_run_has_a_summary(store):
    summary = build_summary(store, {})
    assert summary.headline is None
    assert summary.stages == ()
    assert summary.missing == REQUIRED_PHASES


@pytest.mark.parametrize("phases", [("rl",), ("rft",), ("rl", "eval/rl-step-0010/validation")])
def test_a_run_that_only_trains_lacks_no_evaluation(store, phases):
    for name in phases:
        with store.phase(name):
            pass
    assert build_summary(store, {}).missing == ()


@pytest.mark.parametrize("phase", ["teacher", "eval/rft/test-mutations"])
def test_a_run_meant_to_be_the_whole_loop_names_what_it_lacks(store, phase):
    with store.phase(phase):
        pass
    assert set(build_summary(store, {}).missing) == {*REQUIRED_PHASES} - {phase}


def test_imported_tasks_have_an_official_column(store, task):
    """The harness of the record resolves an exploit, and leaves a task open whose record has a lost test."""
    certificate = task.certificate.model_copy(update={"passed_before": (), "undecided": ()})
    imported = task.model_copy(update={"certificate": certificate, "pass_to_pass": ()})
    without = certificate.model_copy(update={"undecided": ("t.py::gone",)})
    opened = imported.model_copy(update={"certificate": without})
    tests = {name: TestResult(outcome=TestOutcome.PASSED) for name in task.fail_to_pass}
    kinds = {"a": VerdictKind.EXPLOITED, "b": VerdictKind.PASSED, "c": VerdictKind.FAILED}
    for name, kind in kinds.items():
        passed = {} if name == "c" else {"tests": tests}
        verdict = make_verdict(kind).model_copy(update={"tests": {}, **passed})
        trajectory = replace(make_trajectory(f"t-{name}", name, group_id=name), verdict=verdict)
        store.add_trajectory(trajectory, phase=eval_phase("rl", "imported"), step=0, split="test")
    known = {"a": imported, "b": opened, "c": imported}
    (stage,) = build_summary(store, {}, tasks=known).stages
    assert stage.official_pass_at_1 == pytest.approx(1 / 3)
    assert (stage.num_official_undecided, stage.pass_at_1.value) == (1, pytest.approx(1 / 3))
    assert build_summary(store, {}, tasks={"a": imported}).stages[0].official_pass_at_1 is None


def test_the_price_of_a_solve_is_that_of_all_samples(store, trajectory_maker):
    kinds = (VerdictKind.PASSED, VerdictKind.FAILED, VerdictKind.PASSED)
    for stage, price in (("rl", 0.5), ("base", 0.0)):
        for number, kind in enumerate(kinds):
            one = trajectory_maker(f"{stage}-{number}", kind=kind)
            turns = tuple(turn.model_copy(update={"cost_usd": price / len(one.turns)}) for turn in one.turns)
            phase = f"eval/{stage}/test-mutations"
            store.add_trajectory(replace(one, turns=turns), phase=phase, step=0, split="test")
    stages = {it.stage: it for it in build_summary(store, {}).stages}
    assert stages["rl"].usd_per_solve == pytest.approx(3 * 0.5 / 2)
    assert stages["base"].usd_per_solve is None
    assert {row[0]: row[7] for row in cost_table(stages.values()).rows} == {"rl": pytest.approx(0.75), "base": None}

from __future__ import annotations

import re

import pytest

from repairgym.analysis.behavior import PolicyShift, behavior_metrics
from repairgym.analysis.curves import GapPoint, GapTrend
from repairgym.evaluation.accuracy import Rate, VerdictAccuracy
from repairgym.evaluation.significance import compare
from repairgym.evaluation.summary import build_summary
from repairgym.records import StopReason, VerdictKind
from repairgym.report import wording
from repairgym.report.content import gather
from repairgym.report.figures import difference_plot

P, F = VerdictKind.PASSED, VerdictKind.FAILED


def difference(left, right, **more):
    return compare(left, right, names=("rl", "rft"), test_set="test-mutations", num_resamples=500, **more)


@pytest.fixture
def verdicts():
    return {str(i): [P] for i in range(20)}, {str(i): [F] for i in range(20)}


def summary_with(store, **changes):
    return build_summary(store, {}).model_copy(update={"missing": (), **changes})


def test_headline_follows_the_interval(store, verdicts):
    passed, failed = verdicts
    mixed = {**failed, "0": [P]}
    better, worse, unclear = difference(passed, failed), difference(failed, passed), difference(mixed, failed)
    assert wording.headline(summary_with(store, headline=better)).startswith("RL raised Pass@1 on 20 held-out")
    assert wording.headline(summary_with(store, headline=worse)).startswith("RL lowered Pass@1")
    assert wording.headline(summary_with(store, headline=unclear)).startswith(
        "This run does not show whether RL helped"
    )
    assert "no evaluation compares" in wording.headline(summary_with(store, headline=None))
    html = difference_plot([better, worse, unclear]).svg
    assert html.count("dot main") == 2
    assert html.count("dot other") == 1


def test_claims_do_not_hide_a_control_that_explains_the_gain(store, verdicts):
    passed, failed = verdicts
    clear = difference(passed, failed, clusters={task: task[-1] for task in passed})
    cool = difference(passed, passed).model_copy(update={"reference": "rft-t0.5"})
    weaker = clear.model_copy(update={"reference": "rft-t0.8"})
    summary = summary_with(store, headline=clear, comparisons=(clear, weaker, cool))
    claims = wording.claims(summary, None, None)
    assert claims[0].startswith("Not clearly more than a lower sampling temperature: RFT at temperature 0.5")
    assert any("Resampling the 10 packages" in claim for claim in claims)
    assert claims[-1] == wording.SINGLE_RUN


def test_controls_that_were_not_run_are_named(store, verdicts):
    passed, failed = verdicts
    clear = difference(passed, failed)
    summary = summary_with(store, headline=clear, comparisons=(clear,))
    absent = "Not compared with a lower sampling temperature or with as much further supervised training"
    assert wording.limits(summary)[0].startswith(absent)
    assert wording.claims(summary, None, None)[0].startswith(absent)
    cool, more = (clear.model_copy(update={"reference": name}) for name in ("rft-t0.5", "sft-continued"))
    assert not [
        it
        for it in wording.limits(summary_with(store, headline=clear, comparisons=(clear, cool, more)))
        if "Not compared" in it
    ]
    (one,) = [
        it
        for it in wording.limits(summary_with(store, headline=clear, comparisons=(clear, cool)))
        if "Not compared" in it
    ]
    assert "temperature" not in one
    assert wording.limits(summary_with(store, headline=None)) == []


def test_the_limits_hold_packages_real_bugs_and_one_pair_of_error_rates(synthetic_run):
    summary = gather(synthetic_run).summary
    audits = [
        VerdictAccuracy(num_tasks=12, num_audited=12, num_unknown=0, false_accept=rate(1, 40), false_reject=rate(0, 9))
    ]
    audits += [audits[0].model_copy(update={"num_tasks": 3, "false_accept": rate(1, 4)})]
    stages = [it.model_copy(update={"accuracy": audits[0]}) for it in summary.stages]
    control = stages[0].model_copy(update={"num_tasks": 3, "accuracy": audits[1]})
    for order in ([control, *stages], [*stages, control]):
        limits = wording.limits(summary.model_copy(update={"stages": tuple(order)}))
        assert sum("packages instead of the tasks" in it for it in limits) == 1
        assert sum("real release-pair tasks (bugs that a release fixed) RL solves" in it for it in limits) == 1
        (verdicts,) = [it for it in limits if it.startswith("Verdicts on held-out mutation tasks")]
        assert "false accept 2.5 % of 40" in verdicts
    assert re.search(r"\d+ of 10 samples passed", " ".join(limits))


def test_few_iterations_of_rl_are_told_first(store, verdicts):
    passed, failed = verdicts
    for step in range(2):
        store.add_metrics("rl", step, {"time/update_s": 0.5})
    clear = difference(passed, failed)
    summary = summary_with(store, headline=clear, comparisons=(clear,))
    assert summary.num_rl_iterations == 2
    few = "RL had 2 iterations of sampling and updates: very few."
    assert wording.limits(summary)[0] == wording.claims(summary, None, None)[0] == few
    many = summary.model_copy(update={"num_rl_iterations": 15})
    assert wording.limits(many)[0] == "RL had 15 iterations of sampling and updates."


def rate(num, total):
    return Rate(num=num, total=total, value=num / total, ci_low=0.0, ci_high=0.5)


def test_claims_on_behavior(store, episode_maker):
    before = behavior_metrics([episode_maker("a", is_blind_submit=True)])
    after = behavior_metrics([episode_maker("b"), episode_maker("c")])
    (claim,) = wording.claims(summary_with(store), before, after)
    assert "from 100\u00a0% to 0\u00a0%" in claim
    nothing = behavior_metrics([episode_maker("d", stop_reason=StopReason.TURN_LIMIT)])
    assert wording.claims(summary_with(store), nothing, after) == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (wording.percent(0.3482), "34.8\u00a0%"),
        (wording.percent(None), "–"),
        (wording.points(-0.013), "−1.3"),
        (wording.points(0.0), "+0.0"),
        (wording.interval(-0.1, 0.2), "−10.0 to +20.0"),
        (wording.interval(None, None), "–"),
        (wording.number(1234.56), "1,234.6"),
        (wording.seconds(4.26), "4.3 s"),
        (wording.seconds(59.6), "60 s"),
        (wording.seconds(723), "12 min 03 s"),
        (wording.seconds(7500), "2 h 05 min"),
        (wording.size(0), "–"),
        (wording.size(300 << 20), "300 MiB"),
        (wording.size(3 << 30), "3.00 GiB"),
    ],
)
def test_numbers_are_written_for_people(text, expected):
    assert text == expected


def test_a_gap_is_claimed_only_when_its_interval_excludes_zero():
    point = GapPoint(
        step=0,
        num_audited=9,
        num_tasks=9,
        reported=0.4,
        validated=0.4,
        gap=0.0,
        ci_low=-0.2,
        ci_high=0.2,
        marked_share=0.0,
    )
    after = {"reported": 0.9, "validated": 0.1, "gap": 0.8, "ci_low": 0.5, "ci_high": 0.95}
    trend = GapTrend(before=point, after=point.model_copy(update=after))
    assert wording.gap_claim(trend).startswith("Not real: reported reward went from 40.0\u00a0% to 90.0\u00a0%")
    closed = GapTrend(before=point, after=point)
    assert wording.gap_claim(closed).startswith("No gap found")


@pytest.mark.parametrize(
    ("p_value", "is_within_tasks", "said"),
    [
        (
            0.01,
            True,
            "more than two samples of one policy on the same tasks would (permutation p = 0.01, epis",
        ),
        (
            0.2,
            False,
            "not more than two samples of one policy on other tasks would (permutation p = 0.2, whole",
        ),
        (None, False, "a side has a single task, which the other has not"),
    ],
)
def test_a_shift_names_what_was_exchanged(p_value, is_within_tasks, said):
    shift = PolicyShift(
        n=2, num_before=8, num_after=8, divergence=0.25, p_value=p_value, is_within_tasks=is_within_tasks, changes=()
    )
    assert said in wording.shift_claim(shift)


def test_only_all_and_none_are_whole_percentages():
    written = [wording.percent(value, space=" ") for value in (0.0, 1 / 2937, 0.001, 0.5, 0.999, 2936 / 2937, 1.0)]
    assert written == ["0.0 %", "< 0.1 %", "0.1 %", "50.0 %", "99.9 %", "> 99.9 %", "100.0 %"]
    assert [wording.percent(value, 0) for value in (0.004, 0.996, None)] == ["<\u00a01\u00a0%", ">\u00a099\u00a0%", "–"]

from __future__ import annotations

import math
from xml.etree import ElementTree

import pytest
from tokenizers import Tokenizer

from repairgym.analysis.behavior import behavior_metrics
from repairgym.analysis.curves import Point
from repairgym.analysis.episodes import EpisodeFacts
from repairgym.analysis.examples import choose_examples
from repairgym.analysis.reward_gap import GapTrend
from repairgym.evaluation.significance import compare
from repairgym.evaluation.summary import build_summary
from repairgym.ledger import LedgerBuilder
from repairgym.records import StopReason, VerdictKind
from repairgym.report import wording
from repairgym.report.figures import Series, curve, difference_plot, share_plot
from repairgym.report.safe_text import shorten
from repairgym.report.svg import Plot, Range, nice_ticks, padded
from repairgym.report.tokens import LEVEL_LABELS, Piece, find_tokenizer, read_pieces

P, F = VerdictKind.PASSED, VerdictKind.FAILED


def make_episode(name, phase="eval/rl/test-mutations", **more):
    defaults = {
        "id": name,
        "phase": phase,
        "step": 0,
        "task_id": name,
        "verdict": F,
        "stop_reason": StopReason.SUBMITTED,
        "tools": ("edit", "test", "submit"),
        "num_tokens": 10,
        "num_action_tokens": 5,
        "num_edits": 1,
        "num_test_runs": 1,
        "num_format_errors": 0,
        "num_tool_errors": 0,
        "num_repeats": 0,
        "is_blind_submit": False,
        "findings": (),
        "num_tests": 4,
        "num_tests_passed": 0,
    }
    return EpisodeFacts(**{**defaults, **more})


def test_each_kind_of_trajectory_is_chosen_by_its_rule():
    episodes = [
        make_episode("success", verdict=P),
        make_episode("older success", phase="eval/rft/test-mutations", verdict=P),
        make_episode("far miss", num_tests_passed=1),
        make_episode("near miss", num_tests_passed=3),
        make_episode("loop", num_repeats=5),
        make_episode("blind", is_blind_submit=True),
        make_episode("release", phase="eval/rl/test-releases", num_tests_passed=4),
    ]
    chosen = {choice.title: choice.episode.id for choice in choose_examples(episodes)}
    assert chosen == {
        "A clean success": "success",
        "A near miss": "near miss",
        "A loop": "loop",
        "A blind submission": "blind",
        "A real bug": "release",
    }
    with_exploit = choose_examples([*episodes, make_episode("exploit", verdict=VerdictKind.EXPLOITED)])
    assert [choice.title for choice in with_exploit].count("An exploit") == 1
    assert "A blind submission" not in {choice.title for choice in with_exploit}
    assert choose_examples(reversed(episodes)) == choose_examples(episodes)


def test_a_trajectory_is_shown_once_and_later_stages_come_first():
    only = make_episode("loop", num_repeats=9, is_blind_submit=True)
    assert [choice.title for choice in choose_examples([only])] == ["A near miss"]
    stages = ["base", "rft", "rl-step-0002", "rl-step-0010", "rl"]
    for count in range(1, len(stages) + 1):
        episodes = [make_episode(stage, phase=f"eval/{stage}/test-mutations", verdict=P) for stage in stages[:count]]
        assert choose_examples(episodes)[0].episode.id == stages[count - 1]
    assert choose_examples([]) == []


@pytest.fixture(scope="module")
def tokenizer(synthetic_run):
    return find_tokenizer(synthetic_run)


def test_pieces_of_an_action_are_its_text(tokenizer, trajectory_maker):
    trajectory = trajectory_maker(steps=[("edit", "@1 « => → # ünï", "ok", "")])
    (turn,) = trajectory.turns
    start, end = turn.action_span
    pieces = read_pieces(trajectory.ledger, tokenizer, start, end - start)
    assert "".join(piece.text for piece in pieces) == turn.action + "\n"
    assert all(piece.is_action for piece in pieces)


def test_a_character_of_several_tokens_is_one_piece(tokenizer):
    ids = tokenizer.encode("→a").ids
    assert len(ids) == 4
    ledger = LedgerBuilder()
    ledger.append_action(ids, [-0.1, -0.2, -0.3, -1.0], 7)
    pieces = read_pieces(ledger.build(), tokenizer, 0)
    assert [(piece.text, piece.log_prob) for piece in pieces] == [("→", pytest.approx(-0.6)), ("a", -1.0)]


@pytest.mark.parametrize(("probability", "level"), [(1.0, 0), (0.9, 1), (0.6, 3), (0.3, 4), (0.1, 5), (1e-9, 7)])
def test_levels_of_the_color_scale(probability, level):
    piece = Piece(0, (1,), "x", True, math.log(probability) + 1e-12, 0, True)
    assert piece.level == level < len(LEVEL_LABELS)


def test_a_broken_tokenizer_is_passed_over(tmp_path, tokenizer):
    assert find_tokenizer(tmp_path) is None
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    (tmp_path / "a" / "tokenizer.json").write_text("{")
    tokenizer.save(str(tmp_path / "b" / "tokenizer.json"))
    assert isinstance(find_tokenizer(tmp_path), Tokenizer)


def test_shorten_counts_what_it_leaves_out():
    assert shorten("abc", 3) == "abc"
    assert shorten("abcdefghij", 4) == "ab\n… 6 characters left out …\nij"


@pytest.mark.parametrize(
    ("span", "expected"),
    [((0, 1), [0, 0.5, 1]), ((0, 0.34), [0, 0.1, 0.2, 0.3]), ((3, 47), [20, 40]), ((-0.05, 0.2), [0, 0.1, 0.2])],
)
def test_ticks_are_round_and_within(span, expected):
    assert nice_ticks(Range(*span)) == pytest.approx(expected)


def test_ticks_and_ranges_of_a_single_value():
    assert nice_ticks(Range(2, 2)) == [2]
    assert padded([2.0, 2.0]).low < 2 < padded([2.0, 2.0]).high
    assert padded([1.0, 2.0], floor=0.0).low == 0


def test_plot_places_and_escapes():
    plot = Plot((100, 100), Range(0, 10), Range(0, 1))
    assert plot.x(0) == 44
    assert plot.x(10) == 88
    assert plot.y(0) > plot.y(1)
    plot.dot(5, 0.5, 'a "<b>"', "dot")
    root = ElementTree.fromstring(plot.render('say "<x>"'))
    assert root.attrib["aria-label"] == 'say "<x>"'
    assert root[0][0].text == 'a "<b>"'


def test_curves():
    assert curve(Series("t", "n", [])) is None
    one = curve(Series("t", "n", [Point(step=3, value=0.5)], low=[0.4], high=[0.6], is_rate=True))
    assert "step 3: 50.0" in one.svg
    falling = curve(Series("t", "n", [Point(step=0, value=-3.0), Point(step=1, value=-4.0)]))
    assert "nan" not in falling.svg
    assert share_plot({1: {"a": 1.0}}, ["a"]) is None
    assert share_plot({1: {"a": 1.0}, 2: {"b": 1.0}}, ["a", "b"]).svg.count("<polygon") == 2


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


def test_claims_on_behaviour(store):
    before = behavior_metrics([make_episode("a", is_blind_submit=True)])
    after = behavior_metrics([make_episode("b"), make_episode("c")])
    (claim,) = wording.claims(summary_with(store), before, after)
    assert "from 100\u00a0% to 0\u00a0%" in claim
    nothing = behavior_metrics([make_episode("d", stop_reason=StopReason.TURN_LIMIT)])
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


def test_a_gap_is_called_real_only_when_its_interval_leaves_zero_out():
    trend = GapTrend(
        reported_before=0.4,
        reported_after=0.9,
        validated_before=0.4,
        validated_after=0.1,
        gap=0.8,
        ci_low=0.5,
        ci_high=0.95,
    )
    assert wording.gap_claim(trend).startswith("Not real: reported reward went from 40.0\u00a0% to 90.0\u00a0%")
    closed = trend.model_copy(update={"gap": 0.0, "ci_low": -0.2, "ci_high": 0.2})
    assert wording.gap_claim(closed).startswith("No gap found")

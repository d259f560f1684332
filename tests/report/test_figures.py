from __future__ import annotations

from xml.etree import ElementTree

from repairgym.analysis.curves import Point
from repairgym.evaluation.pass_at_k import Estimate
from repairgym.evaluation.ranking import Place
from repairgym.report.charts import SMALL, Axis, Curve, Dot, xy_plot
from repairgym.report.figures import Series, curve, lines_plot, rank_plot, share_plot
from repairgym.report.svg import Range


def test_both_axes_of_a_plot_are_named():
    figure = lines_plot("A", "", {"x": [(0, 0.1), (1, 0.2)]}, ("coverage", "accuracy"))
    titles = [text.text for text in ElementTree.fromstring(figure.svg).iter("text") if text.get("class") == "axis"]
    assert titles == ["coverage", "accuracy"]


def test_curves():
    assert curve(Series("t", "n", [])) is None
    one = curve(Series("t", "n", [Point(step=3, value=0.5)], low=[0.4], high=[0.6], is_rate=True))
    assert "step 3: 50.0" in one.svg
    falling = curve(Series("t", "n", [Point(step=0, value=-3.0), Point(step=1, value=-4.0)]))
    assert "nan" not in falling.svg
    assert share_plot({1: {"a": 1.0}}, ["a"]) is None
    assert share_plot({1: {"a": 1.0}, 2: {"b": 1.0}}, ["a", "b"]).svg.count("<polygon") == 2


def test_bands_lie_below_the_grid_and_points_above_all():
    axis = Axis("x", Range(0, 1), [0, 1], str)
    dots = [Dot(0, 0, 'a "<b>"'), Dot(1, 1, "there", "/t/1?a=1&b=2")]
    one = Curve([(0, 0), (1, 1)], band=[(0, 0, 1), (1, 0, 1)], dots=dots)
    root = ElementTree.fromstring(xy_plot(SMALL, axis, axis, [one], legend=["one"]).render("a chart"))
    names = [element.tag for element in root if element.get("class") not in ("label", "axis")]
    assert names == ["rect", "polygon", "line", "line", "polyline", "circle", "a"]
    assert root.find("a").get("href") == "/t/1?a=1&b=2"
    assert root.find("circle/title").text == 'a "<b>"'
    assert root.get("role") == "group"


def test_ranks_are_next_to_their_policies():
    rate = Estimate(
        value=0.5, standard_error=0.1, ci_low=0.3, ci_high=0.7, standard_error_runs=None, num_tasks=9, num_samples=9
    )
    places = [
        Place(name="a", pass_at_1=rate, rank_low=1, rank_high=2, indistinguishable=("b",)),
        Place(name="b", pass_at_1=rate, rank_low=1, rank_high=1, indistinguishable=("a",)),
    ]
    figure = rank_plot(places, {"b": "long " * 20}, "Ranks")
    words = [text.text for text in ElementTree.fromstring(figure.svg).iter("text") if "label" not in text.get("class")]
    assert [word.partition("rank ")[2] for word in words if "rank" in word] == ["1–2", "1"]
    assert max(map(len, words)) == 38
    assert len(figure.data.rows) == 2

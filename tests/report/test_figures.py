from __future__ import annotations

from xml.etree import ElementTree

from repairgym.analysis.curves import Point
from repairgym.report.figures import Series, curve, lines_plot, share_plot


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

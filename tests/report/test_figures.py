from __future__ import annotations

import ast
from pathlib import Path
from xml.etree import ElementTree

import pytest

from repairgym.analysis.curves import Point
from repairgym.evaluation.pass_at_k import Estimate
from repairgym.evaluation.ranking import Place
from repairgym.evaluation.summary import build_summary
from repairgym.report.charts import SMALL, Axis, Bar, Curve, Dot, Row, Tile, row_plot, tile_plot, xy_plot
from repairgym.report.figures import Series, curve, lines_plot, rank_plot, share_plot, stage_plot
from repairgym.report.svg import Margins, Range
from repairgym.rollout.store import RunStore


def test_both_axes_of_a_plot_are_named():
    figure = lines_plot("A", "", {"x": [(0, 0.1), (1, 0.2)]}, ("coverage", "accuracy"))
    titles = [text.text for text in ElementTree.fromstring(figure.svg).iter("text") if text.get("class") == "axis"]
    assert titles == ["coverage", "accuracy"]


def test_curves():
    assert curve(Series("t", "n", [])) is None
    one = curve(Series("t", "n", [Point(step=3, value=0.5)], low=[0.4], high=[0.6], is_rate=True))
    assert (one.svg, one.note) == ("", "50.0\u00a0% (40.0\u00a0% to 60.0\u00a0%) at step 3; n")
    assert one.data.rows == ((3, 0.5, 0.4, 0.6),)
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


def test_a_chart_of_stages_compares_equal_numbers_of_tasks(synthetic_run):
    with RunStore.open(synthetic_run / "run.db", is_read_only=True) as store:
        stages = [it for it in build_summary(store, {}).stages if it.test_set == "test-mutations"]
    few = stages[0].model_copy(update={"stage": "base", "num_tasks": 5})
    figure = stage_plot([few, *(it for it in stages if it.stage != "base")])
    labels = [text.text for text in ElementTree.fromstring(figure.svg).iter("text")]
    assert "RL" in labels
    assert "base model" not in labels
    assert figure.note.endswith("not drawn next to 12 tasks: base model (5 tasks)")
    assert len(figure.data.rows) == len(stages)
    assert stage_plot(stages).note == "95 % intervals over tasks"


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


def test_a_row_holds_its_value_its_interval_and_its_stretches():
    axis = Axis("x", Range(-1, 1), [-1, 0, 1], str)
    rows = [
        Row("a", "main", Dot(0.5, 0, "half"), (0.25, 0.75), "50"),
        Row("b", bars=[Bar(-1, 0, "w-tool", "tool"), Bar(0, 0, "w-grade", "nothing")]),
    ]
    root = ElementTree.fromstring(row_plot(rows, axis, 20, Margins(left=100, top=0, bottom=40)).render("rows"))
    whisker = next(line for line in root.iter("line") if line.get("class") == "whisker main")
    dot, (tool, nothing) = root.find("circle"), root.findall("rect")
    assert float(whisker.get("x1")) < float(dot.get("cx")) < float(whisker.get("x2"))
    assert (dot.get("cy"), dot.find("title").text) == (whisker.get("y1"), "half")
    assert float(tool.get("x")) + float(tool.get("width")) == float(nothing.get("x"))
    assert float(nothing.get("width")) == 0.5  # to be seen at all
    assert 20 < float(tool.get("y")) < float(tool.get("y")) + float(tool.get("height")) < 40
    zero = next(line for line in root.iter("line") if line.get("class") == "zero")
    assert zero.get("x1") == nothing.get("x")


def test_tiles_lie_below_their_columns():
    tiles = {("p", "one"): Tile(1.0, "80 %", "70 – 90 %"), ("p", "two"): Tile(0.0, "0 %", "0 – 4 %")}
    root = ElementTree.fromstring(tile_plot(["p"], ["one", "two", "three"], tiles).render("tiles"))
    heads = {text.text: float(text.get("x")) for text in root.iter("text")}
    dark, light = root.findall("rect")
    assert (heads["80 %"], heads["0 %"]) == (heads["one"], heads["two"])
    assert float(dark.get("x")) + float(dark.get("width")) / 2 == pytest.approx(heads["one"])
    assert float(dark.get("opacity")) > float(light.get("opacity"))


def test_charts_alone_places_elements():
    source = Path(__file__).parents[2] / "src" / "repairgym"
    makers = {
        path.relative_to(source).as_posix()
        for path in source.rglob("*.py")
        if "Plot(" in (text := path.read_text())
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Plot"
    }
    assert makers == {"report/charts.py"}

"""Tables and figures as files, and text that must not act where it is shown."""

from __future__ import annotations

import csv
import io
from xml.etree import ElementTree

import pyarrow.parquet
import pytest

from repairgym.analysis.tables import table
from repairgym.config.evaluation import DataFilesConfig
from repairgym.errors import InputError
from repairgym.report.comparison import write_comparison
from repairgym.report.content import gather
from repairgym.report.data_files import csv_text, export, file_name, standalone
from repairgym.report.figures import Line, lines_plot
from repairgym.report.html import figures, render, tables, write_data, write_report
from repairgym.report.safe_text import table_cell, visible
from repairgym.rollout.store import RunStore

HOSTILE = "\x1b[31mred\x1b[0m \u202eevil\u202c \x00 <script>alert(1)</script> \ud800 [bold]x[/bold]\r\nnext"


def test_nothing_of_a_hostile_text_can_act():
    shown = visible(HOSTILE)
    assert shown.startswith("␛[31mred␛[0m ⟨U+202E⟩evil⟨U+202C⟩ ␀ <script>")
    assert shown.endswith("� [bold]x[/bold]\nnext")
    shown.encode("utf-8")
    assert visible("plain\n\ttext é 漢") == "plain\n\ttext é 漢"
    assert visible("\x7f\x85") == "␡⟨U+0085⟩"
    assert visible("in\u200bvisible\u2028\U000e0041") == "in⟨U+200B⟩visible⟨U+2028⟩⟨U+E0041⟩"


@pytest.mark.parametrize("text", ["=1+1", "@SUM(A1)", "+1", "-2+3", "\t=cmd"])
def test_a_cell_is_no_formula(text):
    assert table_cell(text).startswith("'")


def test_csv_and_parquet_hold_the_same(tmp_path):
    one = table("t", "T", ("name", "rate", "count"), [("=x", 0.5, 1), ("é", None, 2), ("\x1b", 1, None)])
    rows = list(csv.reader(io.StringIO(csv_text(one))))
    assert rows == [["name", "rate", "count"], ["'=x", "0.5", "1"], ["é", "", "2"], ["␛", "1", ""]]
    (path,) = export([one], [], tmp_path, DataFilesConfig(tables=("parquet",)))
    assert pyarrow.parquet.read_table(path).to_pydict() == {
        "name": ["=x", "é", "␛"],
        "rate": [0.5, None, 1.0],
        "count": [1, 2, None],
    }


@pytest.fixture(scope="module")
def content(synthetic_run):
    return gather(synthetic_run)


def test_every_figure_of_a_report_becomes_an_svg_file_with_data(content, tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    drawn = figures(content)
    assert {"Paired differences", "Training reward", "Tools during training"} <= {one.title for one in drawn}
    paths = export([], drawn, folder, DataFilesConfig(tables=("csv",)))
    assert len(paths) == 2 * len(drawn)
    for one in drawn:
        stem = folder / f"figure-{file_name(one.title)}"
        root = ElementTree.fromstring(stem.with_suffix(".svg").read_text())
        assert root.tag == "{http://www.w3.org/2000/svg}svg"
        style = root.find(".//{http://www.w3.org/2000/svg}style").text
        assert "fill: #" in style
        assert "var(" not in style
        assert len(stem.with_suffix(".csv").read_text().splitlines()) > 1


def test_tables_of_a_report(content):
    found = {one.name: one for one in tables(content)}
    assert {
        "stages",
        "comparisons",
        "pass_at_k",
        "labels",
        "behavior",
        "transitions",
        "selection",
        "abstention",
    } <= set(found)
    stage = dict(zip(found["stages"].columns, found["stages"].rows[0], strict=True))
    assert stage["pass_at_1"] == content.summary.stages[0].pass_at_1.value
    assert all(len(row) == len(one.columns) for one in found.values() for row in one.rows)


def test_png_is_rejected_with_the_way_out():
    with pytest.raises(ValueError, match="SVG files"):
        DataFilesConfig.model_validate({"figures": ["svg", "png"]})


def test_a_plot_without_a_view_box_is_rejected():
    with pytest.raises(ValueError, match="no viewBox"):
        standalone("<svg></svg>")


def test_both_axes_of_a_plot_are_named():
    figure = lines_plot("A", "", [Line("x", [(0, 0.1), (1, 0.2)])], ("coverage", "accuracy"))
    titles = [text.text for text in ElementTree.fromstring(figure.svg).iter("text") if text.get("class") == "axis"]
    assert titles == ["coverage", "accuracy"]


def test_hostile_trajectories_in_a_report(tmp_path, trajectory_maker):
    sampled = HOSTILE.replace("\ud800", "")  # no tokenizer takes half a character, a patch can hold one
    steps = [("edit", sampled, sampled * 1000, ""), ("submit", "", "]]>-->", "")]
    one = trajectory_maker(sampled, "task<b>", steps=steps, final_patch=HOSTILE)
    with RunStore.create(tmp_path / "run.db") as store:
        store.add_trajectory(one, phase="eval/rl/test-mutations", step=0, split="test")
    text = write_report(tmp_path).read_text(encoding="utf-8")
    assert "<script" not in text
    assert not set(text) & {"\x1b", "\x00", "\u202e", "\r"}
    assert len(text) < 2_000_000
    write_data(tmp_path, DataFilesConfig(tables=("csv", "parquet"), figures=("svg",)))
    assert "<script" not in (tmp_path / "data" / "stages.csv").read_text()


def test_a_damaged_run_is_refused_by_name(tmp_path, trajectory_maker):
    path = tmp_path / "run.db"
    with RunStore.create(path) as store:
        for index in range(40):
            one = trajectory_maker(f"t{index}", f"t{index}", group_id=f"t{index}")
            store.add_trajectory(one, phase="eval/rl/test-mutations", step=0, split="test")
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(InputError, match=r"run\.db"):
        write_report(tmp_path)


def test_a_broken_document_is_refused_by_its_id(tmp_path, trajectory_maker):
    with RunStore.create(tmp_path / "run.db") as store:
        store.add_trajectory(trajectory_maker("the-one"), phase="eval/rl/x", step=0, split="test")
        store._connection.execute("UPDATE documents SET document = ?", (b"half",))
    with pytest.raises(InputError, match="the-one"):
        write_report(tmp_path)


def test_runs_beside_each_other(synthetic_run, tmp_path, trajectory_maker):
    other = tmp_path / "other"
    other.mkdir()
    (other / "config.toml").write_text('seed = 2\n[rl]\nlr = 1e-4\nlosses = ["rl"]\n')
    with RunStore.create(other / "run.db") as store:
        for index in range(12):
            one = trajectory_maker(f"x{index}", f"mut-{index:03d}", group_id=f"mut-{index:03d}")
            store.add_trajectory(one, phase="eval/rl/test-mutations", step=0, split="test")
    page = write_comparison([synthetic_run, other], tmp_path / "out" / "comparison.html").read_text()
    assert "RL of other solves more than RL of run on 12 held-out mutation tasks" in page
    assert "<td><code>seed</code></td>" in page
    assert "rl.lr" not in page
    with pytest.raises(InputError, match="expected two or more with different names"):
        write_comparison([other, other], tmp_path / "x.html")


def test_gates_that_were_off_are_said_at_the_top(tmp_path, trajectory_maker):
    one = trajectory_maker()
    loose = one.verdict.model_copy(update={"disabled_gates": ("detectors",)})
    with RunStore.create(tmp_path / "run.db") as store:
        from dataclasses import replace

        store.add_trajectory(replace(one, verdict=loose), phase="eval/rl/test-mutations", step=0, split="test")
    text = render(gather(tmp_path))
    assert "Gates were off." in text
    assert "<code>eval/rl/test-mutations</code> without detectors" in text

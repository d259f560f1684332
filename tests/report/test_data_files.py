from __future__ import annotations

import csv
import io
from xml.etree import ElementTree

import pyarrow.parquet
import pytest

from repairgym.analysis.tables import table
from repairgym.config.commands import DataFilesConfig
from repairgym.report.content import gather
from repairgym.report.data_files import csv_text, export, file_name
from repairgym.report.html import all_figures


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
    drawn = all_figures(content)
    assert {"Paired differences", "Training reward", "Tools during training"} <= {one.title for one in drawn}
    paths = export([], drawn, folder, DataFilesConfig(tables=("csv",)))
    plots = [one for one in drawn if one.svg]
    assert len(paths) == len(drawn) + len(plots)
    assert [one.title for one in drawn if not one.svg] == ["Held-out Pass@1"]  # one value: a table alone
    for one in plots:
        stem = folder / f"figure-{file_name(one.title)}"
        root = ElementTree.fromstring(stem.with_suffix(".svg").read_text())
        assert root.tag == "{http://www.w3.org/2000/svg}svg"
        style = root.find(".//{http://www.w3.org/2000/svg}style").text
        assert "fill: #" in style
        assert "var(" not in style
        assert len(stem.with_suffix(".csv").read_text().splitlines()) > 1


def test_png_is_rejected_with_the_way_out():
    with pytest.raises(ValueError, match="SVG files"):
        DataFilesConfig.model_validate({"figures": ["svg", "png"]})

"""Exported sites: links, what is in them, what is left out."""

from __future__ import annotations

import json
import posixpath
import re
import shutil
from html import unescape
from urllib.parse import unquote

import pytest

from repairgym.errors import InputError
from repairgym.report.html import write_report
from repairgym.rollout.reviews import write_review
from repairgym.view.export import CONTENT_FILE, choose, export_site
from repairgym.view.lists import TrajectoryFilter
from repairgym.view.reader import RunReader


def dead_links(folder):
    """Links of exported pages that lead to no exported file, and those that need a server."""
    files = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    found = []
    for name in sorted(files):
        if not name.endswith(".html"):
            continue
        for address in re.findall(r' (?:href|src|action)="([^"]*)"', (folder / name).read_text()):
            target = unquote(unescape(address).partition("#")[0].partition("?")[0])
            if target and posixpath.normpath(posixpath.join(posixpath.dirname(name), target)) not in files:
                found.append((name, address))
    return files, found


def test_every_link_of_an_export_leads_to_a_file(run_folder, tmp_path):
    done = export_site(
        run_folder, tmp_path / "site", formats={"chat": lambda trajectory, folder: {"id": trajectory.id}}
    )
    files, dead = dead_links(tmp_path / "site")
    assert dead == []
    assert done.num_files + 1 == len(files)
    assert {"index.html", "runs.html", "static/view.js", "api/r/small/run.json", "r/small/setup.html"} <= files
    assert {f"r/small/t/{number}.html" for number in range(1, 25)} <= files
    assert json.loads((tmp_path / "site" / "api/r/small/t/1/chat.json").read_text())["id"].startswith("teacher/0/")
    index = (tmp_path / "site" / "index.html").read_text()
    pages = {name: (tmp_path / "site" / name).read_text() for name in files if name.endswith(".html")}
    assert "<h1>small</h1>" in index
    assert "<form" not in index.partition("<dialog")[0]
    assert json.loads((tmp_path / "site" / CONTENT_FILE).read_text())["runs"]["small"] == {"exported": 24, "stored": 24}
    assert not [
        name for name in files if re.search(r"/tokens-\d+", name)
    ]  # short ones have one window, which turns link to
    tokens = pages["r/small/t/1/tokens.html"]
    assert len(re.findall(r'title="\d+ to \d+: context"', tokens)) <= tokens.count('class="turnmark"') + 1
    assert set(re.findall(r'tokens\.html#(k\d+)"', pages["r/small/t/1.html"])) <= set(
        re.findall(r' id="(k\d+)"', tokens)
    )
    assert "rejection fine-tuning" in (tmp_path / "site" / "words.html").read_text()
    assert 'href="words.html"' in index
    assert [name for name, text in pages.items() if re.search(r"\d (d|h|min) ago|just now", text)] == []
    assert re.search(r"written 20\d\d-\d\d-\d\d \d\d:\d\d UTC", index)


def test_a_bounded_export_has_whole_groups_and_counts_of_all(run_folder, tmp_path):
    done = export_site(run_folder, tmp_path / "site", max_trajectories=6, formats={})
    files, dead = dead_links(tmp_path / "site")
    assert dead == []
    assert done.runs["small"] == {"exported": 8, "stored": 24}
    read = {name for name in files if re.fullmatch(r"r/small/t/\d+\.html", name)}
    assert len(read) == 8
    documented = re.findall(r"<dt><code>(api/[^<]*)</code>", (tmp_path / "site" / "api.html").read_text())
    assert len(documented) == 6
    for name in documented:
        pattern = name.replace("RUN", "small").replace("NUMBER", r"\d+").replace("FORMAT", "(chat|atif)")
        is_format = "FORMAT" in name  # of an export with formats
        assert is_format or any(re.fullmatch(pattern, file) for file in files), name
    listed = (tmp_path / "site" / "r/small/trajectories.html").read_text()
    assert listed.count("<tr data-row>") == 8
    assert "of 24" in " ".join(listed.split())
    assert "Verdicts of 24 trajectories" in (tmp_path / "site" / "index.html").read_text()
    assert "This export holds 8 of 24 trajectories" in (tmp_path / "site" / "index.html").read_text()


def test_the_chosen_come_from_every_phase(run_folder):
    with RunReader.read(run_folder / "run.db") as reader:
        numbers = choose(reader, 5)
        phases = {reader.entry(number).row.phase for number in numbers}
        assert len(numbers) == 8
        assert phases == set(reader.num_trajectories())


def test_what_the_report_shows_and_a_reader_reviewed_is_exported(synthetic_run, tmp_path):
    run = shutil.copytree(synthetic_run, tmp_path / "run")
    write_report(run)
    with RunReader.read(run / "run.db") as reader:
        last = reader.page(TrajectoryFilter(phase="rl", order="oldest"), 1).rows[0]
    write_review(run, last.row.id, status="", tags="", note="odd")
    export_site(run, tmp_path / "site", max_trajectories=2, formats={})
    files, dead = dead_links(tmp_path / "site")
    assert dead == []
    report = (tmp_path / "site" / "r/run/report.html").read_text()
    shown = re.findall(r'<a href="t/(\d+)\.html">Page of this trajectory', report)
    assert len(shown) == 5
    assert {f"r/run/t/{number}.html" for number in (*shown, last.number)} <= files
    assert 'href="../../index.html">Run</a>' in report


def test_the_numbers_of_every_run_are_exported(synthetic_run, tmp_path):
    for name in ("first", "second"):
        shutil.copytree(synthetic_run, tmp_path / "runs" / name)
    export_site(tmp_path / "runs", tmp_path / "site", max_trajectories=1, formats={})
    api = tmp_path / "site" / "api"
    listed = json.loads((api / "runs.json").read_text())["runs"]
    assert [(tmp_path / "site" / run["url"].strip("/")).is_file() for run in listed] == [True, True]
    for name in ("first", "second"):
        assert {"run.json", "metrics.json", "trajectories.json"} <= {path.name for path in (api / "r" / name).iterdir()}


def test_several_runs_have_a_common_first_page(run_folder, hostile_folder, tmp_path):
    root = tmp_path / "runs"
    root.mkdir()
    (root / "small").symlink_to(run_folder)
    (root / hostile_folder.name).symlink_to(hostile_folder)
    export_site(root, tmp_path / "site", formats={})
    files, dead = dead_links(tmp_path / "site")
    assert dead == []
    assert all(re.fullmatch(r"[A-Za-z0-9._~/-]+", name) for name in files)
    assert (tmp_path / "site" / "index.html").read_text().count('<li class="card"') == 2
    hostile = [name for name in files if name.endswith("t/1.html") and "small" not in name]
    assert "<script>alert" not in (tmp_path / "site" / hostile[0]).read_text()


def test_a_folder_with_files_is_not_written_over(run_folder, tmp_path):
    (tmp_path / "mine").write_text("x")
    with pytest.raises(InputError, match="is not empty"):
        export_site(run_folder, tmp_path, formats={})
    (tmp_path / "none").mkdir()
    with pytest.raises(InputError, match="holds no run"):
        export_site(tmp_path / "none", tmp_path / "site", formats={})

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest

from repairgym.config.commands import DataFilesConfig
from repairgym.errors import InputError
from repairgym.records import StopReason, VerdictKind
from repairgym.report.content import gather
from repairgym.report.html import all_tables, render, write_comparison, write_data, write_report
from repairgym.rollout.store import RunStore

VOID = {"meta", "br", "link", "img", "input", "hr"}


class Page(HTMLParser):
    """Text of a page, its ids and links; fails on tags that do not match."""

    def __init__(self, text):
        super().__init__()
        self.ids, self.links, self.open, self.words = set(), [], [], []
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag, attrs):
        values = dict(attrs)
        self.ids |= {values["id"]} if "id" in values else set()
        self.links += [values["href"]] if "href" in values else []
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        pass

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.words.append(data)

    @property
    def text(self):
        return " ".join(" ".join(self.words).split())


@pytest.fixture(scope="module")
def page_text(synthetic_run):
    return render(gather(synthetic_run))


@pytest.fixture
def run_folder(tmp_path):
    return tmp_path


def add_episodes(folder, episodes):
    """episodes: (trajectory, phase)."""
    with RunStore.create(folder / "run.db") as store:
        for trajectory, phase in episodes:
            store.add_trajectory(trajectory, phase=phase, step=0, split="test")


def test_the_page_is_self_contained_and_small(page_text):
    assert len(page_text) < 3_000_000
    assert not re.search(r"https?://|<script|<link|<iframe|@import|url\(|\bsrc=", page_text)
    assert "prefers-color-scheme: dark" in page_text
    assert "@media print" in page_text


def test_the_page_is_well_formed_and_its_links_lead_somewhere(page_text):
    page = Page(page_text)
    assert page.links
    assert {link.removeprefix("#") for link in page.links} <= page.ids
    plots = re.findall(r"<svg.*?</svg>", page_text, flags=re.DOTALL)
    assert len(plots) > 8
    for plot in plots:
        ElementTree.fromstring(plot)
        assert "nan" not in plot


def test_the_page_says_what_was_learned_and_how_sure(page_text, synthetic_run):
    text = Page(page_text).text
    assert re.search(r"RL raised Pass@1 on 12 held-out mutation tasks from \d", text)
    assert "This is one training run." in text
    for words in ("Controls", "Learning curves", "Blind submissions", "real release-pair tasks", "Digests".lower()):
        assert words in text
    assert "a lower sampling temperature" in text
    assert "Not finished." in text
    assert "one test only" in text
    assert "rl.lr" in text
    assert "ab" * 32 in text


def test_the_five_trajectories_are_there_with_shaded_tokens(page_text):
    text = Page(page_text).text
    for title in ("A clean success", "A near miss", "A loop", "A real bug"):
        assert title in text
    assert "An exploit" in text or "A blind submission" in text
    assert page_text.count('title="p = ') > 100


def test_write_report_writes_both_files_and_leaves_nothing_else(synthetic_run):
    path = write_report(synthetic_run)
    assert path == synthetic_run / "report.html"
    summary = json.loads((synthetic_run / "summary.json").read_text())
    assert summary["headline"]["treatment"] == "rl"
    assert not list(synthetic_run.glob("*.part"))
    assert path.read_text() == write_report(synthetic_run).read_text()


def test_a_run_that_has_only_begun(run_folder):
    with RunStore.create(run_folder / "run.db") as store:
        store.plan_phases(["teacher", "rft", "rl"])
        store.start_phase("teacher")
    text = Page(write_report(run_folder).read_text()).text
    assert "No result yet: eval/rft/test-mutations and eval/rl/test-mutations are not finished." in text
    assert "teacher" in text
    assert "Controls" not in text
    assert "Learning curves" not in text


def test_a_half_finished_evaluation_is_marked(run_folder, trajectory_maker):
    with RunStore.create(run_folder / "run.db") as store:
        for stage, kind in (("rft", VerdictKind.FAILED), ("rl", VerdictKind.PASSED)):
            phase = f"eval/{stage}/test-mutations"
            store.start_phase(phase)
            store.add_trajectory(trajectory_maker(stage, kind=kind), phase=phase, step=0, split="test")
        store.end_phase("eval/rft/test-mutations")
    text = Page(write_report(run_folder).read_text()).text
    assert "So far, with eval/rl/test-mutations unfinished: This run does not show whether RL helped" in text
    assert "(running)" in text


def test_text_of_the_agent_is_escaped(run_folder, trajectory_maker):
    steps = [("edit", "<script>alert(1)</script>", "<img src=x>", ""), ("submit", "", "&amp;", "")]
    patch = "--- a\n+++ b\n@@ -1 +1 @@\n-<b>\n+</pre><script>\n"
    trajectory = trajectory_maker(steps=steps, final_patch=patch, kind=VerdictKind.FAILED)
    add_episodes(run_folder, [(trajectory, "eval/rl/test-mutations")])
    text = write_report(run_folder).read_text()
    assert "<script" not in text
    assert "<img" not in text
    assert "edit <script>alert(1)</script>" in Page(text).text
    assert '<td class="code">&lt;/pre&gt;&lt;script&gt;</td>' in text


def test_a_long_trajectory_does_not_blow_up_the_page(run_folder, trajectory_maker):
    steps = [("test", "", f"{i}" + "x" * 20_000, "") for i in range(30)]
    trajectory = trajectory_maker(steps=steps, stop_reason=StopReason.TURN_LIMIT, kind=VerdictKind.FAILED)
    add_episodes(run_folder, [(trajectory, "eval/rl/test-mutations")])
    text = write_report(run_folder).read_text()
    assert len(text) < 600_000
    assert "characters left out" in text


def test_a_folder_without_a_run_is_rejected(run_folder):
    with pytest.raises(InputError, match=r"holds no run\.db"):
        write_report(run_folder)


HOSTILE = "\x1b[31mred\x1b[0m \u202eevil\u202c \x00 <script>alert(1)</script> \ud800 [bold]x[/bold]\r\nnext"


@pytest.fixture(scope="module")
def content(synthetic_run):
    return gather(synthetic_run)


def test_tables_of_a_report(content):
    found = {one.name: one for one in all_tables(content)}
    assert {
        "stages",
        "comparisons",
        "pass_at_k",
        "labels",
        "behavior",
        "transitions",
        "selection",
        "abstention",
        "costs",
        "phases",
        "settings",
    } <= set(found)
    stage = dict(zip(found["stages"].columns, found["stages"].rows[0], strict=True))
    assert stage["pass_at_1"] == content.summary.stages[0].pass_at_1.value
    assert all(len(row) == len(one.columns) for one in found.values() for row in one.rows)


def test_tasks_with_fewer_than_k_samples_are_seen_beside_pass_at_k(tmp_path, trajectory_maker):
    samples = [(task, seed) for task in range(3) for seed in range(1 if task == 2 else 2)]
    episodes = [
        trajectory_maker(f"{task}-{seed}", f"t{task}", group_id=f"t{task}", seed=seed) for task, seed in samples
    ]
    add_episodes(tmp_path, [(one, "eval/rl/test-mutations") for one in episodes])
    text = Page(render(gather(tmp_path))).text
    assert "100.0 % (2 tasks) 3" in text


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


def test_a_damaged_run_is_rejected_by_name(tmp_path, trajectory_maker):
    path = tmp_path / "run.db"
    with RunStore.create(path) as store:
        for index in range(40):
            one = trajectory_maker(f"t{index}", f"t{index}", group_id=f"t{index}")
            store.add_trajectory(one, phase="eval/rl/test-mutations", step=0, split="test")
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(InputError, match=r"run\.db"):
        write_report(tmp_path)


def test_a_broken_document_is_rejected_by_its_id(tmp_path, trajectory_maker):
    with RunStore.create(tmp_path / "run.db") as store:
        store.add_trajectory(trajectory_maker("the-one"), phase="eval/rl/x", step=0, split="test")
        store._connection.execute("UPDATE documents SET document = ?", (b"half",))
    with pytest.raises(InputError, match="the-one"):
        write_report(tmp_path)


def test_disabled_gates_are_named_at_the_top(tmp_path, trajectory_maker):
    one = trajectory_maker()
    loose = one.verdict.model_copy(update={"disabled_gates": ("detectors",)})
    with RunStore.create(tmp_path / "run.db") as store:
        from dataclasses import replace

        store.add_trajectory(replace(one, verdict=loose), phase="eval/rl/test-mutations", step=0, split="test")
    text = render(gather(tmp_path))
    assert "Gates were off." in text
    assert "<code>eval/rl/test-mutations</code> without detectors" in text


def test_runs_are_compared_side_by_side(synthetic_run, tmp_path, trajectory_maker):
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

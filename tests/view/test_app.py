"""Pages over real small runs, over hostile ones, and over what is not whole."""

from __future__ import annotations

import dataclasses
import os
import re
import shutil
import sqlite3
from datetime import datetime
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from urllib.parse import quote
from xml.etree import ElementTree

import pytest
from safetensors.torch import load_file
from starlette.testclient import TestClient

from repairgym.inference.loading import shipped_base
from repairgym.ledger import Parent
from repairgym.report.html import write_report
from repairgym.report.results import Result, read_result
from repairgym.rollout.store import RunStore
from repairgym.view.app import create_app
from repairgym.view.folders import RunFolders, stamp_of
from repairgym.view.reader import RunReader
from repairgym.view.setup import read_setup
from repairgym.view.site import Site
from repairgym.view.waterfall import waterfall

GROUP = "/r/small/group?phase=teacher&step=0&id=teacher%2F0%2Ftiny-0"


class Page(HTMLParser):
    """Tags, links, ids and text of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))

    def handle_data(self, data):
        self.text += data

    def links(self) -> set[str]:
        return {given["href"] for tag, given in self.tags if tag == "a" and given.get("href")}


def open_page(client, path, status=200) -> Page:
    answer = client.get(path)
    assert answer.status_code == status, answer.text[:2000]
    return Page(answer.text)


def kind_of(path: str) -> tuple[str, ...]:
    """What kind of page an address leads to: its path without numbers, and which keys it has."""
    path, _, query = path.partition("?")
    return re.sub(r"\d+", "N", path), *sorted({item.partition("=")[0] for item in query.split("&")})


def crawl(client, start="/", num_per_kind=2) -> dict[str, Page]:
    """A few pages of each kind that can be reached by links."""
    waiting, seen, counts = [start], {}, {}
    while waiting:
        path = waiting.pop(0)
        kind = kind_of(path)
        counts[kind] = counts.get(kind, 0) + 1
        if path in seen or counts[kind] > num_per_kind:
            continue
        answer = client.get(path)
        assert answer.status_code == 200, (path, answer.text[:500])
        seen[path] = Page(answer.text) if answer.headers["content-type"].startswith("text/html") else None
        if seen[path]:
            waiting += sorted({link.partition("#")[0] for link in seen[path].links() if link.startswith("/")})
    return {path: page for path, page in seen.items() if page}


@pytest.fixture(scope="module")
def pages(client):
    return crawl(client)


@pytest.fixture(scope="module")
def hostile_client(hostile_folder):
    return TestClient(create_app(hostile_folder), base_url="http://localhost")


@pytest.fixture(scope="module")
def hostile_pages(hostile_client):
    return crawl(hostile_client)


def test_every_link_leads_to_a_page(pages):
    kinds = {kind_of(path)[0] for path in pages}
    assert kinds >= {"/", "/r/small", "/r/small/phase", "/r/small/groups", "/r/small/group", "/r/small/trajectories"}
    assert kinds >= {"/r/small/t/N", "/r/small/t/N/tokens", "/r/small/task"}


def test_pages_load_nothing_from_elsewhere_and_carry_no_inline_code(pages, hostile_pages):
    for path, page in [*pages.items(), *hostile_pages.items()]:
        for tag, given in page.tags:
            assert not [name for name in given if name.startswith("on") or name == "style"], (path, tag, given)
            for name in ("src", "href", "action"):
                assert (given.get(name) or "/").startswith(("/", "#")), (path, tag, given)
        scripts = [given for tag, given in page.tags if tag == "script"]
        assert scripts == [{"src": "/static/view.js", "defer": None}], path
        assert not [tag for tag, _ in page.tags if tag in ("style", "iframe", "object", "embed", "base", "img")]


def test_pages_are_labelled_for_those_who_cannot_see(pages):
    for path, page in pages.items():
        ids = [given["id"] for _, given in page.tags if "id" in given]
        assert len(ids) == len(set(ids)), path
        assert [tag for tag, _ in page.tags].count("h1") == 1, path
        assert any(tag == "html" and given.get("lang") for tag, given in page.tags)
        inside_label = False
        for tag, given in page.tags:
            inside_label = tag == "label" or (inside_label and tag in ("input", "select", "option", "kbd"))
            if tag in ("input", "select"):
                assert inside_label or given.get("aria-label"), (path, tag, given)
            if tag == "svg":
                assert given.get("aria-label") or given.get("aria-hidden"), (path, given)


def test_a_trajectory_shows_what_happened(client):
    page = open_page(client, "/r/small/trajectories?phase=teacher&q=tiny-0&order=most_turns")
    path = next(link for link in sorted(page.links()) if re.match(r"/r/small/t/\d+\?", link))
    reading = open_page(client, path)
    assert "f in m.py is wrong" in reading.text
    assert "must be fixed" in reading.text
    assert "test_m.py::test_f" in reading.text
    assert "No diff by turn" not in reading.text
    actions = [given for tag, given in reading.tags if tag == "article"]
    assert actions[0]["id"] == "turn-1"
    assert "Whole diff after this turn" in reading.text
    assert re.search(r"return a <(=|>)? b|return a [<>=]", reading.text)


def test_the_list_says_how_many_there_are(client):
    assert re.search(
        r"12\s+trajectories\s+of 24", " ".join(open_page(client, "/r/small/trajectories?phase=teacher").text.split())
    )
    page = open_page(client, "/r/small/trajectories?q=nothing-like-that")
    assert "No trajectory matches" in page.text


def test_pages_of_a_list_follow_each_other(run_folder):
    client = TestClient(create_app(run_folder, page_size=5), base_url="http://localhost")
    seen, path = [], "/r/small/trajectories?order=oldest"
    while path:
        page = open_page(client, path)
        rows = [link for link in page.links() if re.match(r"/r/small/t/\d+\?", link)]
        seen.append({int(re.findall(r"/t/(\d+)", link)[0]) for link in rows})
        path = next((given["href"] for tag, given in page.tags if tag == "a" and given.get("rel") == "next"), None)
    assert [len(one) for one in seen] == [5, 5, 5, 5, 4]
    assert set.union(*seen) == set(range(1, 25))


def test_a_trajectory_knows_its_neighbours_in_the_list(client):
    page = open_page(client, "/r/small/t/5?phase=teacher&order=oldest")
    assert {"/r/small/t/4?phase=teacher&order=oldest", "/r/small/t/6?phase=teacher&order=oldest"} <= page.links()


def test_a_branch_and_its_parent_name_each_other(tmp_path, trajectory_maker):
    folder = tmp_path / "run"
    folder.mkdir()
    parent, lost = (Parent(trajectory_id=name, num_turns=2) for name in ("t-1", "t-0"))
    with RunStore.create(folder / "run.db") as store:
        for made in (
            trajectory_maker(),
            dataclasses.replace(trajectory_maker("t-2"), parent=parent),
            dataclasses.replace(trajectory_maker("t-3"), parent=lost),
        ):
            store.add_trajectory(made, phase="rl", step=0, split="train")
    client = TestClient(create_app(tmp_path), base_url="http://localhost")
    pages = [client.get(f"/r/run/t/{number}").text for number in (1, 2, 3)]
    for page, here in ((pages[0], 1), (pages[1], 2)):
        tree = page[page.index('<ul class="tree">') : page.index("</details>", page.index('<ul class="tree">'))]
        assert re.findall(r'href="/r/run/t/(\d)" data-branch', tree) == ["1", "2"]
        assert re.findall(r'/t/(\d)" aria-current=page', tree) == [str(here)]
        assert "from turn 2" in tree
    assert '<ul class="tree">' not in pages[2]
    assert re.search(r'Branch of <a href="/r/run/t/1" data-parent>t-1</a> after turn 2', pages[1])
    assert "Branch of t-0, which is not stored any more, after turn 2" in pages[2]


def test_long_curves_are_thinned_and_keep_their_end(tmp_path):
    with RunStore.create(tmp_path / "run.db") as store:
        store.start_phase("rl")
        for step in range(1_000):
            store.add_metrics("rl", step, {"train/loss": float(step)})
    client = TestClient(create_app(tmp_path), base_url="http://localhost")
    page = open_page(client, f"/r/{tmp_path.name}/metric?phase=rl&name=train%2Floss")
    (line,) = [given["points"] for tag, given in page.tags if tag == "polyline"]
    assert 200 < len(line.split()) <= 300
    assert 'href="/r/' in client.get(f"/r/{tmp_path.name}").text


def test_groups_show_their_members_side_by_side(client):
    page = open_page(client, GROUP)
    assert "differs from here" in page.text
    assert "patch A" in page.text
    assert page.text.count("submitted") >= 4


def test_one_task_at_two_checkpoints_is_compared(client):
    task = open_page(client, "/r/small/task?id=tiny-1")
    boxes = [given["value"] for tag, given in task.tags if tag == "input" and given.get("name") == "of"]
    assert len(boxes) == 8
    page = open_page(client, f"/compare?of={quote(boxes[0])}&of={quote(boxes[-1])}")
    assert "teacher" in page.text
    assert "eval/oracle/test-mutations" in page.text


@pytest.mark.parametrize(
    "query", ["", "of=small:1", "of=small:1&of=small:999", "of=small:1&of=x", "of=small:1&of=small:-1"]
)
def test_an_invalid_comparison_is_rejected(client, query):
    assert "Traceback" not in open_page(client, f"/compare?{query}", 400).text


def test_tokens_have_mask_version_and_likelihood(client, run_folder):
    page = open_page(client, "/r/small/t/1/tokens")
    tokens = [given for tag, given in page.tags if tag == "span" and "tok" in (given.get("class") or "").split()]
    with RunStore.open(run_folder / "run.db", is_read_only=True) as store:
        ledger = store.trajectory(store.rows()[0].id).ledger
    starts = {int(given["title"].partition(":")[0]) for given in tokens}
    assert starts <= set(range(len(ledger)))
    sampled = {int(given["title"].partition(":")[0]) for given in tokens if "ctx" not in given["class"]}
    linking = client.get("/r/small/t/1/tokens").text + client.get("/r/small/t/1").text
    linked = re.findall(r'tokens(?:\?from=\d+)?#(k\d+)"', linking)
    assert set(linked) == {given["id"] for given in tokens if "id" in given}
    assert linked
    assert sampled == {place for place in starts if ledger.is_action[place]}
    assert any("p = 1, log p = 0.000, version 0" in given["title"] for given in tokens)


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/r/none", 404),
        ("/r/..%2F..%2Fetc", 404),
        ("/r/small/t/999", 404),
        ("/r/small/t/99999999999999999999999", 404),
        ("/r/small/phase?name=none", 404),
        ("/r/small/task?id=none", 404),
        ("/r/small/group?phase=x&step=1&id=y", 404),
        ("/r/small/group?phase=x&step=one&id=y", 400),
        ("/r/small/trajectories?after=x", 400),
        ("/r/small/trajectories?after=1-2", 404),
        ("/r/small/trajectories?step=99999999999999999999", 400),
        ("/r/small/t/1/observation.txt?of=99", 404),
        ("/r/small/t/1/secret.txt", 404),
        ("/r/small/report", 404),
        ("/static/../app.py", 404),
        ("/static/%2e%2e/app.py", 404),
        ("/nowhere", 404),
    ],
)
def test_a_missing_page_says_so(client, path, status):
    answer = client.get(path)
    assert answer.status_code == status
    assert "problem" in answer.text


def test_hostile_text_is_shown_and_does_nothing(hostile_client, hostile_pages):
    assert len(hostile_pages) > 8
    reading = hostile_client.get("/r/a%20%3Cb%3E%20&%20'c'/t/1").text
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in reading
    assert "<script>alert" not in reading
    assert '<span class="a-ink1">red</span>' in reading
    assert "\u202e" not in reading
    assert len(reading) < 400_000
    assert "characters left out" in reading
    assert "on a line of the diff" in reading
    assert "far from the diff" in reading
    assert "Attempt 2" in reading
    assert "signal 9" in reading
    assert "last words" in reading
    assert "gates turned off (differential)" in reading
    assert "this pipeline resets files between its attempts" not in reading  # there is no task to begin with


def test_a_broken_line_of_the_task_file_hides_no_other_task(hostile_client):
    page = open_page(hostile_client, "/r/a%20%3Cb%3E%20&%20'c'/task?id=it")
    assert "<script>alert(1)</script>" in page.text
    assert "no attempt at this task" in page.text


def test_raw_text_is_whole_and_can_do_nothing(hostile_client):
    answer = hostile_client.get("/r/a%20%3Cb%3E%20&%20'c'/t/1/observation.txt?of=2")
    assert len(answer.content) == 3_000_000
    assert answer.headers["content-type"] == "text/plain; charset=utf-8"
    assert "sandbox" in answer.headers["content-security-policy"]
    assert hostile_client.get("/r/a%20%3Cb%3E%20&%20'c'/t/1/patch.txt").content.startswith(b"--- a/m.py")


def test_a_run_that_cannot_be_read_hides_no_other(run_folder, tmp_path):
    shutil.copytree(run_folder, tmp_path / "good")
    for name, content in (("empty", b""), ("text", b"this is no database at all " * 20)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "run.db").write_bytes(content)
    whole = (run_folder / "run.db").read_bytes()
    (tmp_path / "torn").mkdir()
    (tmp_path / "torn" / "run.db").write_bytes(whole[: len(whole) // 2])
    client = TestClient(create_app(tmp_path), base_url="http://localhost")
    page = open_page(client, "/")
    assert page.text.count("unreadable") >= 2
    assert "24 trajectories" in page.text
    assert "is still empty" in open_page(client, "/r/empty", 404).text
    assert client.get("/r/torn").status_code in (404, 500)
    assert "Traceback" not in client.get("/r/torn").text
    assert open_page(client, "/r/good")


def test_a_damaged_trajectory_shows_its_row(run_folder, tmp_path):
    shutil.copytree(run_folder, tmp_path / "run")
    with sqlite3.connect(tmp_path / "run" / "run.db") as connection:
        connection.execute("UPDATE documents SET document = x'00', ledger = x'00' WHERE number = 1")
    connection.close()
    client = TestClient(create_app(tmp_path), base_url="http://localhost")
    assert "cannot be read: it is damaged" in open_page(client, "/r/run/t/1").text
    assert "cannot be read" in open_page(client, "/r/run/t/1/tokens", 404).text
    assert "cannot be read: it is damaged" in open_page(client, f"{GROUP.replace('small', 'run')}").text


def test_a_half_written_run_is_shown_as_far_as_it_goes(tmp_path, trajectory_maker):
    with RunStore.create(tmp_path / "run.db") as store:
        store.plan_phases(["teacher", "rl"])
        client = TestClient(create_app(tmp_path), base_url="http://localhost")
        key = tmp_path.name
        assert "No trajectory" in open_page(client, f"/r/{key}/trajectories").text
        store.start_phase("rl")
        store.add_trajectory(trajectory_maker(), phase="rl", step=1, split="train")
        page = open_page(client, "/")
        assert "running" in page.text
        reading = open_page(client, f"/r/{key}/t/1")
        assert "does not hold this task" in reading.text
        assert "shown as their numbers" in open_page(client, f"/r/{key}/t/1/tokens").text


def test_the_pulse_changes_when_the_run_writes(tmp_path, trajectory_maker):
    with RunStore.create(tmp_path / "run.db") as store:
        client = TestClient(create_app(tmp_path), base_url="http://localhost")
        path = f"/r/{tmp_path.name}/pulse"
        first = client.get(path).json()
        client.get(f"/r/{tmp_path.name}")
        assert client.get(path).json() == first
        store.add_trajectory(trajectory_maker(), phase="rl", step=1, split="train")
        assert client.get(path).json() != first
        page = client.get(f"/r/{tmp_path.name}/trajectories")
        assert f'data-stamp="{client.get(path).json()["stamp"]}"' in page.text


def test_viewing_writes_nothing(run_folder, tmp_path):
    shutil.copytree(run_folder, tmp_path / "run")
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    crawl(TestClient(create_app(tmp_path), base_url="http://localhost"))
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before


def test_the_page_of_a_run_names_a_failure_and_a_success_to_read_first(synthetic_run):
    client = TestClient(create_app(synthetic_run), base_url="http://localhost")
    page = client.get("/r/run").text
    shown = page.partition('id="read-first"')[2].partition("</ul>")[0]
    numbers = [int(number) for number in re.findall(r'href="/r/run/t/(\d+)"', shown)]
    with RunReader.read(synthetic_run / "run.db") as reader:
        rows = [reader.entry(number).row for number in numbers]
    assert [row.verdict.value for row in rows] == ["failed", "passed"]
    assert {row.phase for row in rows} == {"eval/rl/test-mutations"}
    assert all(row.reason in page for row in rows)


@pytest.fixture(scope="module")
def reported(synthetic_run, tmp_path_factory):
    """A finished run with its summary."""
    folder = tmp_path_factory.mktemp("reported") / "run"
    shutil.copytree(synthetic_run, folder)
    write_report(folder)
    return folder


def test_the_headline_stands_with_its_limits(reported):
    client = TestClient(create_app(reported), base_url="http://localhost")
    for path in ("/", "/r/run"):
        text = " ".join(open_page(client, path).text.split())
        assert re.search(r"RL raised Pass@1 on 12 held-out mutation tasks from \d", text), path
        assert "Resampling the 4 packages instead of the tasks" in text
        assert re.search(r"5 real release-pair tasks .* RL solves .*: \d of 10 samples passed", text)
        assert "This is one training run." in text
    (listed,) = client.get("/api/runs.json").json()["runs"]
    assert listed["result"].startswith("RL raised")
    assert len(listed["limits"]) >= 5


@pytest.mark.parametrize(
    ("content", "sentence"),
    [('{"headline": {"sentence": "Old."}}', "Old."), ('{"headline": null}', ""), ("[" * 5000, ""), ("[1]", "")],
)
def test_a_summary_of_another_version_gives_its_sentence_alone(tmp_path, content, sentence):
    (tmp_path / "summary.json").write_text(content)
    assert read_result(tmp_path) == Result(sentence)


def test_phases_are_not_mixed_in_one_rate(client, synthetic_run):
    text = " ".join(open_page(client, "/r/small").text.split())
    assert "Verdicts of 24 trajectories of 2 phases, training and evaluation together" in text
    assert re.search(r"Verdicts of 12 trajectories: \d", open_page(client, "/r/small/phase?name=teacher").text)


def test_an_evaluation_names_its_weights_and_no_step(tmp_path, trajectory_maker):
    folder = tmp_path / "run"
    folder.mkdir()
    with RunStore.create(folder / "run.db") as store:
        for step in range(3):
            store.add_metrics("rl", step, {"time/update_s": 1.0})
        for phase in ("eval/rl/test-mutations", "rl"):
            store.add_trajectory(trajectory_maker(phase), phase=phase, step=0, split="test")
    client = TestClient(create_app(folder), base_url="http://localhost")
    evaluated, trained = (" ".join(client.get(f"/r/run/t/{number}").text.split()) for number in (1, 2))
    assert "RL after 3 iterations" in evaluated
    assert "step 0" not in evaluated
    assert "step 0" in trained
    assert "after 3 iterations" not in trained
    tokens = client.get("/r/run/t/1/tokens").text
    assert "RL after 3 iterations" in tokens
    assert "<dt>learned from</dt>" not in tokens
    assert "RL after 3 iterations" in client.get("/r/run/phase?name=eval/rl/test-mutations").text


def test_settings_that_ran_come_first(tmp_path):
    (tmp_path / "config.toml").write_text("minutes = 2.0\n")
    (tmp_path / "fitted.toml").write_text("minutes = 2.0\nnum_tasks = 16\n")
    with RunStore.create(tmp_path / "run.db"):
        pass
    client = TestClient(create_app(tmp_path), base_url="http://localhost")
    page = client.get(f"/r/{tmp_path.name}/setup").text
    assert page.index("fitted.toml: what ran") < page.index("config.toml: what was asked for")
    assert page.index("num_tasks = 16") < page.index("config.toml: what was asked for")
    links = re.findall(r'href="[^"]*/setup(#[^"]*)?"', page)
    assert links == ["#settings-1", "#settings-2"]
    assert all(f'id="{link[1:]}"' in page for link in links)


def test_what_sizing_changed_is_listed(tmp_path):
    (tmp_path / "config.toml").write_text("minutes = 2.0\nnum = 9\n[sft]\nlr = 1\n")
    (tmp_path / "fitted.toml").write_text("minutes = 2.0\nnum = 16\n")
    RunStore.create(tmp_path / "run.db").close()
    assert read_setup(tmp_path, []).sized == (("num", "9", "16"),)
    page = TestClient(create_app(tmp_path), base_url="http://localhost").get(f"/r/{tmp_path.name}/setup").text
    assert "<td><code>num</code></td><td>9 → 16</td>" in page


def test_a_checkpoint_has_the_date_of_its_phase_not_of_a_copy(tmp_path):
    for name in ("rft", "other"):
        (tmp_path / "checkpoints" / name).mkdir(parents=True)
    with RunStore.create(tmp_path / "run.db") as store:
        with store.phase("rft"):
            pass
        ended = datetime.fromisoformat(store.phases()[0].ended_at).timestamp()
        later = ended + 3600
        for name in ("rft", "other"):
            os.utime(tmp_path / "checkpoints" / name, (later, later))
        times = {it.name: it.time_s for it in read_setup(tmp_path, store.phases()).checkpoints}
        assert times == {"rft": ended, "other": None}
        store.start_phase("rl")
        times = {it.name: it.time_s for it in read_setup(tmp_path, store.phases()).checkpoints}
        assert times == {"rft": ended, "other": later}


def test_a_phase_without_episodes_tells_what_it_did(synthetic_run, tmp_path):
    client = TestClient(create_app(synthetic_run), base_url="http://localhost")
    page = client.get("/r/run/phase?name=rft").text
    assert "Supervised fine-tuning on the model&#39;s own successes" in page
    with RunStore.create(tmp_path / "run.db") as store:
        for name in ("tasks", "rft"):
            with store.phase(name):
                pass
        store.add_event("sandbox_lost", "spawner ended", phase="tasks")
        for step in range(2):
            store.add_metrics("train/rft", step, {"train/loss": 0.5 + step})
    shutil.copytree(synthetic_run / "tasks", tmp_path / "tasks")
    client = TestClient(create_app(tmp_path), base_url="http://localhost")
    made, trained = (client.get(f"/r/{tmp_path.name}/phase?name={name}").text for name in ("tasks", "rft"))
    assert "<dt>mutations/test</dt><dd>12 tasks</dd>" in made
    assert "spawner ended" in made
    assert "<h2>Steps</h2>" not in made + trained
    assert "1 metrics" in trained
    assert "<figure>" in trained


def test_the_report_leads_back_to_the_pages(reported):
    client = TestClient(create_app(reported), base_url="http://localhost")
    links = open_page(client, "/r/run/report").links()
    assert "/r/run" in links
    numbers = {int(link.rpartition("/")[2]) for link in links if link.startswith("/r/run/t/")}
    stored = re.findall(r'data-trajectory="([^"]*)"', (reported / "report.html").read_text())
    with RunReader.read(reported / "run.db") as reader:
        assert {reader.entry(number).row.id for number in numbers} == set(stored)
    assert len(stored) == 5


def test_a_metric_with_one_step_has_no_chart(tmp_path):
    with RunStore.create(tmp_path / "run.db") as store:
        store.add_metrics("rl", 0, {"train/loss": 0.5})
        client = TestClient(create_app(tmp_path), base_url="http://localhost")
        assert "<figure" not in client.get(f"/r/{tmp_path.name}/metric?phase=rl&name=train%2Floss").text
        store.add_metrics("rl", 1, {"train/loss": 0.25})
        assert "<figure" in client.get(f"/r/{tmp_path.name}/metric?phase=rl&name=train%2Floss").text


def test_a_warm_site_knows_its_counts_whatever_else_lies_there(many_rows):
    (many_rows.parent / "broken").mkdir()
    (many_rows.parent / "broken" / "run.db").write_bytes(b"no database" * 99)
    site = Site(RunFolders(many_rows.parent))
    site.warm()
    assert many_rows.name in {viewed.name for viewed in site.folders.all()}
    with sqlite3.connect(many_rows / "run.db") as connection:  # warm counts are those of the rows then
        counts = site.folders.get(many_rows.name)._counts.get(stamp_of(many_rows / "run.db")[:1])
        assert counts.total().num == connection.execute("SELECT count(*) FROM trajectories").fetchone()[0] == 40
    connection.close()


def test_the_waterfall_has_the_parts_of_each_turn(trajectory_maker):
    turns = [turn.model_copy(update={"generate_s": 1.0, "tool_s": 3.0}) for turn in trajectory_maker().turns[:2]]
    drawn = ElementTree.fromstring(waterfall(turns, {"grade": 2.0, "prefill": 9.0}))
    bars = [(bar.get("class"), float(bar.get("x")), float(bar.get("width"))) for bar in drawn.iter("rect")]
    bars = [(css.split()[-1], x, width) for css, x, width in bars if "w-" in css]
    assert [css for css, _, _ in bars] == ["w-generate", "w-tool", "w-generate", "w-tool", "w-grade"]
    second = bars[0][2]
    assert [width / second for _, _, width in bars] == pytest.approx([1, 3, 1, 3, 2], rel=0.02)
    for (_, x, width), (_, following, _) in pairwise(bars):
        assert following == pytest.approx(x + width, abs=0.1)
    assert waterfall([], {}) == ""


def test_the_table_of_other_viewers_names_tests_that_exist():
    root = Path(__file__).parents[2]
    table = (root / "docs/howto/view.md").read_text().partition("| what users love elsewhere")[2].partition("\n\n")[0]
    sources = "\n".join(path.read_text() for path in (root / "tests").rglob("test_*.py"))
    rows = [line.split("|")[1:4] for line in table.splitlines()[2:]]
    assert len(rows) > 15
    for wanted, here, shown_by in rows:
        names = re.findall(r"`(test_\w+)`", shown_by)
        assert here.strip().startswith("yes") == bool(names), wanted
        assert [name for name in names if f"def {name}(" not in sources] == [], wanted
    assert [wanted.strip() for wanted, here, _ in rows if here.strip().startswith("no")] == ["hosted service"]


def test_the_size_of_the_model_stands_in_the_setup(tmp_path):
    base = tmp_path / "checkpoints" / "base"
    shutil.copytree(shipped_base(), base)
    (tmp_path / "checkpoints" / "rl-state").mkdir()
    RunStore.create(tmp_path / "run.db").close()
    page = TestClient(create_app(tmp_path), base_url="http://localhost").get(f"/r/{tmp_path.name}/setup").text
    num = sum(weight.numel() for weight in load_file(base / "model.safetensors").values())
    assert f"qwen3, {num:,} parameters, 6 layers of 192, 2,048 tokens in its vocabulary" in page
    (base / "model.safetensors").write_bytes(b"broken")
    assert read_setup(tmp_path, []).model == ""

"""Notes, tags and the review queue: kept next to a live run, listed, exported, and bounded."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor

import pytest
from starlette.testclient import TestClient

from repairgym.errors import InputError
from repairgym.rollout.reviews import MAX_NOTE_CHARS, REVIEWS_FILE, read_reviews, write_review
from repairgym.rollout.store import RunStore
from repairgym.view.app import create_app
from repairgym.view.export import export_site

OWN = {"origin": "http://localhost", "content-type": "application/x-www-form-urlencoded"}


@pytest.fixture
def folder(tmp_path, trajectory_maker):
    path = tmp_path / "run"
    path.mkdir()
    with RunStore.create(path / "run.db") as store:
        for name in ("a", "b", "c"):
            store.add_trajectory(trajectory_maker(name), phase="rl", step=0, split="train")
    return path


@pytest.fixture
def client(folder):
    return TestClient(create_app(folder), base_url="http://localhost")


def test_a_review_is_kept_shown_and_changed(client, folder):
    before = (folder / "run.db").read_bytes()
    form = {"note": "wrong <b>file</b>", "tags": "hack, odd hack", "status": "queued"}
    answer = client.post("/r/run/t/2/review", data=form, headers=OWN, follow_redirects=False)
    assert answer.status_code == 303
    assert answer.headers["location"] == "/r/run/t/2#review"
    page = client.get("/r/run/t/2").text
    assert "wrong &lt;b&gt;file&lt;/b&gt;" in page
    assert 'value="hack, odd"' in page
    assert 'href="/r/run/t/2#review"' in client.get("/r/run/reviews?tag=odd").text
    assert "t/2" not in client.get("/r/run/reviews?tag=none").text
    (listed,) = client.get("/api/r/run/reviews.json").json()["reviews"]
    assert (listed["number"], listed["tags"], listed["status"]) == (2, ["hack", "odd"], "queued")
    client.post("/r/run/t/2/review", data={"note": "", "tags": "", "status": ""}, headers=OWN)
    assert read_reviews(folder) == {}
    assert len((folder / REVIEWS_FILE).read_text().splitlines()) == 2
    assert (folder / "run.db").read_bytes() == before


def test_chosen_rows_are_queued_and_keep_their_notes(client, folder):
    write_review(folder, "c", status="reviewed", tags="x", note="seen")
    answer = client.post("/r/run/queue", content="of=run:1&of=run:3", headers=OWN, follow_redirects=False)
    assert answer.headers["location"] == "/r/run/reviews"
    reviews = read_reviews(folder)
    assert {name: review.status for name, review in reviews.items()} == {"a": "queued", "c": "queued"}
    assert reviews["c"].note == "seen"
    for content, status in (("", 400), ("of=run:x", 400), ("of=run:9", 404)):
        assert client.post("/r/run/queue", content=content, headers=OWN).status_code == status


def test_too_much_is_an_error_and_writes_nothing(client, folder):
    for form in (
        {"note": "x" * (MAX_NOTE_CHARS + 1)},
        {"tags": "y" * 41},
        {"tags": " ".join(map(str, range(21)))},
        {"status": "done"},
    ):
        assert client.post("/r/run/t/1/review", data=form, headers=OWN).status_code == 400
    assert client.post("/r/run/t/1/review", content="note=" + "x" * 300_000, headers=OWN).status_code == 413
    assert client.post("/r/run/t/9/review", data={"note": "x"}, headers=OWN).status_code == 404
    assert not (folder / REVIEWS_FILE).exists()
    with pytest.raises(InputError, match="cannot be written"):
        write_review(folder / "absent", "a", status="", tags="", note="x")


def test_two_viewers_and_a_damaged_line_lose_nothing(folder):
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda n: write_review(folder, f"t{n}", status="queued", tags="", note="n" * 5000), range(40)))
    with (folder / REVIEWS_FILE).open("ab") as file:
        file.write(b'{"half\n\xff\n')
    write_review(folder, "last", status="reviewed", tags="", note="")
    reviews = read_reviews(folder)
    assert set(reviews) == {*(f"t{n}" for n in range(40)), "last"}
    assert list(reviews)[-1] == "last"


def test_an_export_has_the_reviews_and_no_form(folder, tmp_path):
    write_review(folder, "b", status="reviewed", tags="lesson", note="tests were edited")
    export_site(folder, tmp_path / "site", formats={})
    pages = {path.name: path.read_text() for path in (tmp_path / "site").rglob("*.html")}
    assert "tests were edited" in pages["2.html"]
    assert "lesson" in pages["reviews.html"]
    assert not any("<form class=" in text or "<textarea" in text for text in pages.values())
    stored = json.loads(next((tmp_path / "site").rglob("reviews.json")).read_text())
    assert stored["reviews"][0]["note"] == "tests were edited"

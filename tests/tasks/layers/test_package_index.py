from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from repairgym.errors import IndexUnavailableError, PackageNotFoundError
from repairgym.tasks.layers.package_index import (
    BACK_OFF_S,
    IndexSettings,
    PackageIndex,
    Sdist,
    index_settings,
    sha256_of,
)


@pytest.fixture
def simple(tmp_path: Path, sdists: Path) -> Path:
    """A static index in the layout of PEP 503."""
    folder = tmp_path / "simple" / "tinycalc"
    folder.mkdir(parents=True)
    names = [path.name for path in sorted(sdists.iterdir())]
    for name in names:
        (folder / name).write_bytes((sdists / name).read_bytes())
    links = "".join(f'<a href="{name}">{name}</a>' for name in names)
    (folder / "index.html").write_text(f"<!DOCTYPE html><html><body>{links}</body></html>")
    return folder.parent


@pytest.fixture
def sdist(sdists: Path) -> Sdist:
    return Sdist(name="tinycalc", version="1.1.0", sha256=sha256_of(sdists / "tinycalc-1.1.0.tar.gz"))


class FlakyHandler(SimpleHTTPRequestHandler):
    statuses: list[int] = []

    def do_GET(self) -> None:
        if self.statuses:
            self.send_error(self.statuses.pop(0))
        else:
            super().do_GET()

    def log_message(self, *arguments: object) -> None:
        pass


@pytest.fixture
def server(simple: Path) -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(FlakyHandler, directory=str(simple.parent))) as http:
        threading.Thread(target=http.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{http.server_address[1]}/simple"
        http.shutdown()


def make_index(url: str, waits: list[float]) -> PackageIndex:
    return PackageIndex(IndexSettings(url, ()), sleep=waits.append)


def test_fetch_from_a_static_index(simple: Path, sdist: Sdist, tmp_path: Path) -> None:
    path = make_index(simple.as_uri(), []).fetch(sdist, tmp_path / "down")
    assert sha256_of(path) == sdist.sha256


class JsonHandler(BaseHTTPRequestHandler):
    """An index in JSON (PEP 691) with upload times (PEP 700)."""

    num_pages = 0

    def do_GET(self) -> None:
        type(self).num_pages += 1
        times = {"1.0": "2026-10-01T08:00:00.5Z", "1.1": "2026-11-02T09:30:00Z", "2.0rc1": "2026-11-03T00:00:00Z"}
        files = [
            {
                "filename": f"tinycalc-{version}.tar.gz",
                "url": f"tinycalc-{version}.tar.gz",
                "hashes": {"sha256": version},
                "upload-time": time,
            }
            for version, time in times.items()
        ]
        files.append({"filename": "tinycalc-1.2.tar.gz", "url": "tinycalc-1.2.tar.gz", "hashes": {"sha256": "1.2"}})
        self.send_response(200)
        self.send_header("Content-Type", "application/vnd.pypi.simple.v1+json")
        self.end_headers()
        self.wfile.write(json.dumps({"meta": {"api-version": "1.1"}, "name": "tinycalc", "files": files}).encode())

    def log_message(self, *arguments: object) -> None:
        pass


def test_upload_times_are_those_of_final_releases(simple: Path) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), JsonHandler) as http:
        threading.Thread(target=http.serve_forever, daemon=True).start()
        index = make_index(f"http://127.0.0.1:{http.server_address[1]}/simple", [])
        versions = [sdist.version for sdist in index.sdists("tinycalc")]
        times = {version: f"{time:%m-%d %H:%M}" for version, time in index.upload_times("tinycalc").items()}
        http.shutdown()
    assert versions == ["1.2", "1.1", "1.0"]
    assert times == {"1.1": "11-02 09:30", "1.0": "10-01 08:00"}
    assert JsonHandler.num_pages == 1
    assert make_index(simple.as_uri(), []).upload_times("tinycalc") == {}


def test_transient_trouble_is_retried_with_growing_waits(server: str, sdist: Sdist, tmp_path: Path) -> None:
    FlakyHandler.statuses[:] = [503, 429]
    waits: list[float] = []
    assert sha256_of(make_index(server, waits).fetch(sdist, tmp_path)) == sdist.sha256
    assert waits == list(BACK_OFF_S[:2])
    assert waits == sorted(waits)


def test_silent_index_is_unavailable(sdist: Sdist, tmp_path: Path) -> None:
    waits: list[float] = []
    with pytest.raises(IndexUnavailableError, match="PIP_INDEX_URL") as caught:
        make_index("http://127.0.0.1:1/simple", waits).fetch(sdist, tmp_path)
    assert not isinstance(caught.value, PackageNotFoundError)
    assert waits == list(BACK_OFF_S)


@pytest.mark.parametrize("change", [{"version": "9.9"}, {"name": "no-such-package"}, {"sha256": "0" * 64}])
def test_missing_or_other_files_are_not_found(
    server: str, sdist: Sdist, tmp_path: Path, change: dict[str, str]
) -> None:
    FlakyHandler.statuses.clear()
    waits: list[float] = []
    with pytest.raises(PackageNotFoundError, match=r"tinycalc|no-such-package"):
        make_index(server, waits).fetch(sdist.model_copy(update=change), tmp_path)
    assert waits == []


def test_settings_come_from_the_environment() -> None:
    assert index_settings({}) == IndexSettings("", ())
    pip = {"PIP_INDEX_URL": "https://a/simple", "PIP_EXTRA_INDEX_URL": "https://b https://c"}
    assert index_settings(pip) == IndexSettings("https://a/simple", ("https://b", "https://c"))
    assert index_settings({**pip, "UV_DEFAULT_INDEX": "https://d"}).default == "https://d"


@pytest.mark.network
def test_fetch_from_the_default_index(tmp_path: Path) -> None:
    sha256 = "1a29730d366e996aaacffb2f1f1cb9593dc38e2ddd30c91250c6dde09ea9b417"
    pinned = Sdist(name="inflection", version="0.5.1", sha256=sha256)
    assert sha256_of(PackageIndex().fetch(pinned, tmp_path)) == sha256

"""Runs as a static site: files that a browser opens from a folder, an archive or an object store, without a server.

Reads the pages of the application over a folder of runs; makes HTML, JSON and text files with relative links.
Guarantees: every link of an exported page leads to an exported file or is no link any more; file names hold letters,
digits and ``._~-`` only; counts on the pages are those of the whole run even where only some trajectories were taken.
"""

import asyncio
import hashlib
import json
import posixpath
import re
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from html import escape, unescape
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from starlette.applications import Starlette

from repairgym.errors import InputError
from repairgym.report.html import REPORT_FILE
from repairgym.rollout.reviews import read_reviews
from repairgym.rollout.rows import GroupRow
from repairgym.view.api_pages import Formats
from repairgym.view.app import create_app
from repairgym.view.folders import RunFolders, ViewedRun
from repairgym.view.lists import Entry
from repairgym.view.reader import RunReader
from repairgym.view.site import Site, api_url
from repairgym.view.trajectory_pages import named_in

PAGE_SIZE = 250
CONTENT_FILE = "export.json"
_ASSETS = ("/static/view.css", "/static/view.js", "/static/icon.svg", "/shared/base.css")
_KEPT_QUERY = {
    "phase": ("name",),
    "groups": ("phase", "step", "status", "after_step", "after"),
    "group": ("phase", "step", "id"),
    "trajectories": ("phase", "step", "verdict", "min_step", "max_step", "after", "before"),
    "trajectories.json": ("phase", "after"),
    "metrics": ("phase", "x", "log", "page"),
    "metric": ("phase", "name", "x", "log"),
    "metrics.json": ("phase",),
    "task": ("id",),
    "tokens": ("from",),
    "reviews": ("tag",),
}
"""Page -> the keys of its address that make another file; an address with others is no part of an export."""
_LINK = re.compile(r' (href|src)="(/[^"]*)"')
_UNSAFE = re.compile(r"[^A-Za-z0-9._~-]")
Progress = Callable[[int, int], None]
"""(files written, files known so far)."""


@dataclass
class Export:
    """Numbers of an export."""

    folder: Path
    num_files: int = 0
    num_bytes: int = 0
    runs: dict[str, dict[str, int]] = field(default_factory=dict)
    """Run -> numbers of its trajectories: ``exported`` and ``stored``."""


def export_site(
    root: Path, out: Path, *, max_trajectories: int = 0, formats: Formats, progress: Progress = lambda done, known: None
) -> Export:
    """Write the runs in ``root`` as a static site into the new or empty folder ``out``.

    ``max_trajectories`` of each run are exported, 0: all. They are whole groups, from every phase in turn, the latest
    steps first; those that the report shows or a reader reviewed are always among them.

    Raises:
        InputError: ``root`` holds no run, or ``out`` is not empty.
    """
    folders = RunFolders(root)
    runs = folders.all()
    if not runs:
        raise InputError(f"{root} holds no run; name a run folder, or one that holds runs")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise InputError(f"{out} is not empty; name a new folder, or remove it first")
    export = Export(out)
    chosen: dict[str, frozenset[int]] = {}
    for viewed in runs:
        with viewed.opened() as reader:
            num = reader.extent().num_rows
            is_cut = 0 < max_trajectories < num
            numbers = choose(reader, max_trajectories, _named(viewed, reader)) if is_cut else None
        if numbers is not None:
            chosen[viewed.key] = numbers
        export.runs[viewed.key] = {"exported": num if numbers is None else len(numbers), "stored": num}
    site = Site(folders, PAGE_SIZE, formats=tuple(formats), is_static=True, chosen=chosen)
    app = create_app(root, site=site, formats=formats)
    asyncio.run(_Crawl(app, site, runs, export).write(progress))
    content = {"runs": export.runs, "num_files": export.num_files, "num_bytes": export.num_bytes}
    (out / CONTENT_FILE).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    return export


def choose(reader: RunReader, most: int, named: Sequence[Entry] = ()) -> frozenset[int]:
    """Return numbers of ``most`` trajectories or a few more: whole groups of each phase in turn, latest steps first.

    The groups of those that are ``named`` come before them.
    """
    waiting = deque(_groups_of(reader, phase) for phase in reader.num_trajectories())
    numbers = {
        member.number
        for row in (entry.row for entry in named)
        for member in reader.members(reader.group(row.phase, row.step, row.group_id))
    }
    while waiting and len(numbers) < most:
        groups = waiting.popleft()
        if (group := next(groups, None)) is not None:
            numbers |= {member.number for member in reader.members(group)}
            waiting.append(groups)
    return frozenset(numbers)


def _named(viewed: ViewedRun, reader: RunReader) -> list[Entry]:
    """Return the trajectories that the report shows in full, and those with a review."""
    report = viewed.folder / REPORT_FILE
    ids = named_in(report.read_text(encoding="utf-8")) if report.is_file() else []
    return reader.of_ids([*ids, *read_reviews(viewed.folder)])


def _groups_of(reader: RunReader, phase: str) -> Iterator[GroupRow]:
    groups = reader.groups(phase=phase)
    return iter(sorted(groups, key=lambda group: (-group.step, group.id)))


class _Crawl:
    """Follows the links of the application and writes what they lead to."""

    def __init__(self, app: Starlette, site: Site, runs: list[ViewedRun], export: Export) -> None:
        self._app = app
        self._chosen = site.chosen
        self._export = export
        self._runs = runs
        self._folders = {viewed.key: _safe(viewed.key) for viewed in runs}
        self._is_alone = len(runs) == 1
        self._waiting: deque[str] = deque()
        self._files: dict[str, str] = {}
        """File -> the address that it is made of."""

    async def write(self, progress: Progress) -> None:
        """Write every file that can be reached from the first page."""
        parts = [api_url(viewed, part) for viewed in self._runs for part in ("run", "metrics", "trajectories")]
        for address in ("/", *_ASSETS, "/api", "/api/runs.json", *parts):
            self._file(address)
        while self._waiting:
            file = self._waiting.popleft()
            content, kind = await _answer(self._app, self._files[file])
            if kind.startswith("text/html"):
                content = self._linked(content.decode("utf-8"), file).encode()
            path = self._export.folder / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
            self._export.num_files += 1
            self._export.num_bytes += len(content)
            progress(self._export.num_files, len(self._files))

    def _linked(self, text: str, file: str) -> str:
        """Return a page with relative links; a link that leads out of the export goes."""
        folder = posixpath.dirname(file)

        def link(match: re.Match[str]) -> str:
            address, mark, fragment = unescape(match[2]).partition("#")
            target = self._file(address)
            if not target:
                return " data-absent"
            relative = _relative(target, folder)
            return f' {match[1]}="{escape(relative + mark + fragment)}"'

        return _LINK.sub(link, text)

    def _file(self, address: str) -> str:
        """Return the file for an address, and queue it when it is new; empty if it is no part of the export."""
        parts = urlsplit(address)
        path, query = unquote(parts.path), parse_qsl(parts.query)
        file = self._name(path.strip("/").split("/"), dict(query))
        if file and file not in self._files:
            self._files[file] = address
            self._waiting.append(file)
        return file

    def _name(self, words: list[str], query: dict[str, str]) -> str:
        if words[0] in ("static", "shared"):
            return "/".join(words)
        prefix, words = ("api/", words[1:]) if words[0] == "api" else ("", words)
        if not words or words == [""]:
            return "api.html" if prefix else "runs.html" if self._is_alone else "index.html"
        if words == ["runs.json"]:
            return "api/runs.json"
        if words == ["words"]:
            return "words.html"
        if words == ["leaderboard"] and set(query) <= {"stage"}:
            return f"leaderboard{''.join(f'-{_safe(stage)}' for stage in query.values())}.html"
        if words[0] != "r" or len(words) < 2 or words[1] not in self._folders or not self._is_chosen(words):
            return ""
        page = words[-1] if len(words) > 2 else ""
        is_reading = words[2:3] == ["t"] and len(words) == 4 and not prefix
        if is_reading or page.endswith(".txt"):
            query = {name: value for name, value in query.items() if name in ("of", "turn")}
        elif not set(query) <= set(_KEPT_QUERY.get(page, ())):
            return ""
        if not page:
            return "index.html" if self._is_alone else f"r/{self._folders[words[1]]}/index.html"
        stem, ending = posixpath.splitext("/".join(["r", self._folders[words[1]], *map(_safe, words[2:])]))
        if ending not in (".txt", ".json", ".toml", ".log"):
            stem, ending = stem + ending, ".html"
        marks = "".join(f"-{_safe(value)}" for name, value in sorted(query.items()) if (name, value) != ("from", "0"))
        return f"{prefix}{stem}{marks}{ending}"

    def _is_chosen(self, words: list[str]) -> bool:
        """Return False for an address of a trajectory that is not exported."""
        chosen = self._chosen.get(words[1])
        if chosen is None or words[2:3] != ["t"] or len(words) < 4:
            return True
        number = words[3].partition(".")[0]
        return number.isdecimal() and int(number) in chosen


@lru_cache(maxsize=10_000)
def _relative(target: str, folder: str) -> str:
    return posixpath.relpath(target, folder)


@lru_cache(maxsize=10_000)
def _safe(text: str) -> str:
    """Return a part of a file name for ``text``, with a digest where characters had to be replaced."""
    plain = _UNSAFE.sub("_", text).lstrip(".")[:80]
    return plain if plain == text else f"{plain}-{hashlib.sha256(text.encode('utf-8', 'replace')).hexdigest()[:8]}"


async def _answer(app: Starlette, address: str) -> tuple[bytes, str]:
    """Return content and type of an address of the application; a part that cannot be read has its error page."""
    parts = urlsplit(address)
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "GET",
        "scheme": "http",
        "path": unquote(parts.path),
        "raw_path": parts.path.encode(),
        "query_string": parts.query.encode(),
        "root_path": "",
        "headers": [(b"host", b"localhost")],
        "client": None,
        "server": ("localhost", 80),
    }
    messages: list[Any] = []
    is_asked = asyncio.Event()

    async def receive() -> dict[str, Any]:
        if is_asked.is_set():
            await asyncio.Event().wait()  # a reader that never goes away
        is_asked.set()
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        messages.append(message)

    await app(scope, receive, send)
    headers = {name.lower(): value for name, value in messages[0]["headers"]}
    body = b"".join(message.get("body", b"") for message in messages[1:])
    return body, headers.get(b"content-type", b"").decode()

"""Shared parts of all pages: the runs, the templates, addresses, states.

Reads requests; makes responses. Guarantees: an address is made from keys and numbers, never from a path; the stamp of a
page is taken before the run is read, so that a change in between is seen.
"""

import hashlib
import re
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any
from urllib.parse import quote, urlencode

from jinja2 import Environment
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse

from repairgym.errors import InputError
from repairgym.report.html import environment
from repairgym.rollout.rows import GroupRow
from repairgym.view.folders import RunFolders, Stamp, ViewedRun
from repairgym.view.lists import TrajectoryFilter
from repairgym.view.reader import RunCounts, RunReader

PAGE_SIZE = 50
STATIC_FOLDER = Path(__file__).with_name("static")
TEMPLATES_FOLDER = Path(__file__).with_name("templates")


class Site:
    """The runs, and the templates of their pages."""

    def __init__(
        self,
        folders: RunFolders,
        page_size: int = PAGE_SIZE,
        formats: tuple[str, ...] = (),
        is_static: bool = False,
        chosen: Mapping[str, frozenset[int]] = MappingProxyType({}),
    ) -> None:
        """``formats``: names of downloads of a trajectory; ``is_static``: the pages become files.

        ``chosen``: key of a run -> numbers of the trajectories that lists and groups show, where these are not all.
        """
        self.folders = folders
        self.page_size = page_size
        self.formats = formats
        self.is_static = is_static
        self.chosen = chosen
        self._templates = _environment()

    def warm(self) -> None:
        """Compile the templates and count the rows of each run, so that the first page need not."""
        own = [path.name for path in TEMPLATES_FOLDER.glob("*.j2")]
        for name in (*own, "shell.html.j2", "parts.html.j2"):
            self._templates.get_template(name)
        for viewed in self.folders.all():
            with suppress(InputError, sqlite3.Error, OSError), viewed.opened() as reader:
                viewed.counts(reader)

    def run(self, request: Request) -> ViewedRun:
        """Return the run that the address names; `InputError` without one."""
        return self.folders.get(request.path_params["run"])

    @contextmanager
    def opened(self, request: Request) -> "Iterator[OpenRun]":
        """Open the run that the address names; `InputError` when it is absent or cannot be read."""
        viewed = self.run(request)
        stamp = digest_of(viewed.stamp())
        with viewed.opened() as reader:
            reader.chosen = self.chosen.get(viewed.key)
            yield OpenRun(self, viewed, reader, stamp)

    @contextmanager
    def opened_all(self, keys: Sequence[str]) -> "Iterator[list[OpenRun]]":
        """Open the runs with these keys; `InputError` when one is absent or cannot be read."""
        with ExitStack() as stack:
            runs = [self.folders.get(key) for key in keys]
            yield [OpenRun(self, viewed, stack.enter_context(viewed.opened()), "") for viewed in runs]

    def page(self, template: str, *, status_code: int = 200, **context: Any) -> HTMLResponse:
        """Render a page; ``live`` is the address of a digest that changes with the page, or empty."""
        shared = {"live": "", "now_s": time.time(), "exported_at": time.strftime("%Y-%m-%d", time.gmtime())}
        shared |= {"is_static": self.is_static, "formats": self.formats}
        text = self._templates.get_template(template).render({**shared, **context})
        # Unpaired surrogates that came through JSON cannot be sent.
        return HTMLResponse(text.encode("utf-8", "replace"), status_code)


@dataclass(frozen=True)
class OpenRun:
    """A run while one request reads it."""

    site: Site
    viewed: ViewedRun
    reader: RunReader
    stamp: str

    @cached_property
    def counts(self) -> RunCounts:
        """Up-to-date counts of the store."""
        return self.viewed.counts(self.reader)

    @property
    def state(self) -> str:
        """State of the run in a word."""
        return self.viewed.state(self.reader.phases())

    def page(self, template: str, title: str = "", *, is_live: bool = True, **context: Any) -> HTMLResponse:
        """Render a page of the run; a live one is read again when the run writes."""
        if is_live and not self.site.is_static:
            live = {"live": run_url(self.viewed, "pulse"), "stamp": self.stamp, "is_running": self.state == "running"}
            context = {**live, **context}
        title = f"{title} · {self.viewed.name}" if title else self.viewed.name
        return self.site.page(template, title=title, viewed=self.viewed, **context)


def number_in(request: Request, name: str) -> int | None:
    """Return a whole number of the query string, None without one; status 400 for any other value."""
    given = request.query_params.get(name, "")
    if not given:
        return None
    if not re.fullmatch("-?[0-9]{1,18}", given):
        raise HTTPException(400, f"the address has {name}={given[:40]!r}, expected a whole number")
    return int(given)


def digest_of(stamp: Stamp) -> str:
    """Return a short digest of a stamp."""
    return hashlib.sha256(repr(stamp).encode()).hexdigest()[:16]


# --- addresses -------------------------------------------------------------------------------------------------------


def run_url(viewed: ViewedRun, page: str = "", **query: Any) -> str:
    """Return the address of a page of a run; query values that are None or empty are omitted."""
    shown = {name: str(value) for name, value in query.items() if value not in ("", None)}
    path = f"/r/{quote(viewed.key, safe='~', errors='replace')}" + (f"/{page}" if page else "")
    return path + (f"?{urlencode(shown, errors='replace')}" if shown else "")


def api_url(viewed: ViewedRun, page: str, **query: Any) -> str:
    """Return the address of a part of a run in the JSON API."""
    path, _, rest = run_url(viewed, f"{page}.json", **query).partition("?")
    return f"/api{path}" + (f"?{rest}" if rest else "")


def list_url(viewed: ViewedRun, wanted: TrajectoryFilter | None = None, **changes: Any) -> str:
    """Return the address of a list of trajectories."""
    query = (wanted or TrajectoryFilter()).query(**changes)
    return run_url(viewed, "trajectories") + (f"?{query}" if query else "")


def trajectory_url(viewed: ViewedRun, number: int, wanted: TrajectoryFilter | None = None) -> str:
    """Return the address of a trajectory, inside the list ``wanted``."""
    query = wanted.query() if wanted else ""
    return run_url(viewed, f"t/{number}") + (f"?{query}" if query else "")


def link_to(viewed: ViewedRun, number: int) -> Callable[..., str]:
    """Return a function that gives the address of a part of a trajectory."""
    return lambda part, **query: run_url(viewed, f"t/{number}/{part}", **query)


def group_url(viewed: ViewedRun, group: GroupRow) -> str:
    """Return the address of a group."""
    return run_url(viewed, "group", phase=group.phase, step=group.step, id=group.id)


# --- times -------------------------------------------------------------------------------------------------------


def ago(then_s: float, now_s: float) -> str:
    """Format the time since ``then_s``."""
    seconds = max(0.0, now_s - then_s)
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit} ago"
    return "just now"


def moment(then_s: float) -> str:
    """Format a time to the minute."""
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(then_s))


@cache
def _environment() -> Environment:
    templates = environment("view")
    templates.filters.update(ago=ago, moment=moment, key=lambda key: "-".join(map(str, key)))
    urls = (run_url, api_url, list_url, trajectory_url, group_url, link_to)
    templates.globals.update({url.__name__: url for url in urls})
    return templates

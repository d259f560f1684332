"""The web application: which address leads to which page, and what a reader sees when something is wrong.

Reads requests; makes responses. Invariants: every page answers to GET only and changes nothing; an error is a page that
says what to do, and one run that cannot be read takes none of the others with it.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from repairgym.errors import InputError
from repairgym.view.folders import RunFolders
from repairgym.view.guard import Guard
from repairgym.view.run_pages import RunPages
from repairgym.view.site import PAGE_SIZE, STATIC_FOLDER, Site
from repairgym.view.trajectory_pages import TrajectoryPages

Handler = Callable[[Request], Response]


def create_app(
    root: Path,
    *,
    hosts: tuple[str, ...] = (),
    token: str = "",
    is_any_host: bool = False,
    page_size: int = PAGE_SIZE,
) -> Starlette:
    """The application over the run folder ``root``, or over all runs below it.

    Args:
        root: A run folder or a folder that holds some.
        hosts: Names under which the server is reached, besides loopback.
        token: What a browser must show; empty for none.
        is_any_host: The server is bound to all addresses.
        page_size: Rows of one page of a list.

    Raises:
        InputError: ``root`` is no folder.
    """
    site = Site(RunFolders(root), page_size)
    runs, trajectories = RunPages(site), TrajectoryPages(site)
    routes: dict[str, Handler] = {
        "/": runs.index,
        "/pulse": runs.pulse,
        "/compare": trajectories.compare,
        "/r/{run}": runs.run,
        "/r/{run}/pulse": runs.pulse,
        "/r/{run}/phase": runs.phase,
        "/r/{run}/groups": runs.groups,
        "/r/{run}/group": trajectories.group,
        "/r/{run}/trajectories": runs.trajectories,
        "/r/{run}/task": trajectories.task,
        "/r/{run}/report": trajectories.report,
        "/r/{run}/t/{number:int}": trajectories.trajectory,
        "/r/{run}/t/{number:int}/tokens": trajectories.tokens,
        "/r/{run}/t/{number:int}/{part}.txt": trajectories.raw,
    }
    pages = [Route(path, handler, methods=["GET"]) for path, handler in routes.items()]
    return Starlette(
        routes=[*pages, Mount("/static", StaticFiles(directory=STATIC_FOLDER))],
        middleware=[Middleware(Guard, hosts=hosts, token=token, is_any_host=is_any_host)],
        exception_handlers=_error_handlers(site),
    )


def _error_handlers(site: Site) -> dict[int | type[Exception], Callable[[Request, Exception], Response]]:
    def page(status: int, title: str, message: str) -> Response:
        return site.page("error.html.j2", title=title, status_code=status, message=message)

    def http(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        title = {400: "This address cannot be", 404: "Not found"}.get(error.status_code, "Not possible")
        return page(error.status_code, title, error.detail)

    def not_found(request: Request, error: Exception) -> Response:
        return page(404, "Not found", str(error))

    def damaged(request: Request, error: Exception) -> Response:
        message = f"The run's database cannot be read: {error}. Other runs are not affected."
        return page(500, "This run cannot be read", message)

    return {HTTPException: http, InputError: not_found, sqlite3.Error: damaged}

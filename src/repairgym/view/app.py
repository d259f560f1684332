"""The web application and its server: routes, error pages, the socket.

Reads requests; makes responses. Guarantees: a page changes nothing; the forms of reviews are all that is written; an
error is a page that says what to do; one unreadable run hides no other; a server that other machines can reach asks for
a token; a port in use is an error before an address is printed.
"""

import secrets
import socket
import sqlite3
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from urllib.parse import urlencode

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from repairgym.errors import InputError
from repairgym.report.svg import STATIC_FOLDER as SHARED_FOLDER
from repairgym.view.api_pages import ApiPages, Formats
from repairgym.view.folders import RunFolders
from repairgym.view.guard import Guard, is_loopback
from repairgym.view.leaderboards import LeaderboardPages
from repairgym.view.metric_pages import MetricPages
from repairgym.view.review_pages import ReviewPages
from repairgym.view.run_pages import RunPages
from repairgym.view.site import PAGE_SIZE, STATIC_FOLDER, Site
from repairgym.view.token_pages import TokenPages
from repairgym.view.trajectory_pages import TrajectoryPages

Handler = Callable[[Request], Response]
FormHandler = Callable[[Request], Awaitable[Response]]


def create_app(
    root: Path,
    *,
    hosts: tuple[str, ...] = (),
    token: str = "",
    is_any_host: bool = False,
    embed_from: tuple[str, ...] = (),
    formats: Formats = MappingProxyType({}),
    site: Site | None = None,
    page_size: int = PAGE_SIZE,
) -> Starlette:
    """Return the application over the run folder ``root``, or over all runs below it.

    ``formats`` are downloads of a trajectory besides its own JSON; ``site`` replaces the runs below ``root`` (an
    export); other options: `Guard`.

    Raises:
        InputError: ``root`` is not a folder.
    """
    site = site or Site(RunFolders(root), page_size, formats=tuple(formats))
    folders = {"/static": STATIC_FOLDER, "/shared": SHARED_FOLDER}
    guard = Middleware(Guard, hosts=hosts, token=token, is_any_host=is_any_host, embed_from=embed_from)
    return Starlette(
        routes=[
            *(Route(path, handler, methods=["GET"]) for path, handler in _handlers(site, formats).items()),
            *(Route(path, handler, methods=["POST"]) for path, handler in _forms(site).items()),
            *(Mount(path, StaticFiles(directory=folder)) for path, folder in folders.items()),
        ],
        middleware=[guard],
        exception_handlers=_error_handlers(site),
    )


def _handlers(site: Site, formats: Formats) -> dict[str, Handler]:
    """Return path -> handler of every page and of the JSON API."""
    runs, trajectories, metrics = RunPages(site), TrajectoryPages(site), MetricPages(site)
    api, reviews, tokens = ApiPages(site, formats), ReviewPages(site), TokenPages(site)
    return {
        "/": runs.index,
        "/pulse": runs.pulse,
        "/words": runs.words,
        "/leaderboard": LeaderboardPages(site).leaderboard,
        "/compare": trajectories.compare,
        "/api": api.document,
        "/api/runs.json": api.runs,
        "/api/r/{run}/run.json": api.run,
        "/api/r/{run}/metrics.json": api.metrics,
        "/api/r/{run}/trajectories.json": api.trajectories,
        "/api/r/{run}/groups.json": api.groups,
        "/api/r/{run}/reviews.json": api.reviews,
        "/api/r/{run}/t/{number:int}.json": api.trajectory,
        "/api/r/{run}/t/{number:int}/tokens.json": api.tokens,
        "/api/r/{run}/t/{number:int}/{form}.json": api.exchanged,
        "/r/{run}": runs.run,
        "/r/{run}/pulse": runs.pulse,
        "/r/{run}/setup": runs.setup,
        "/r/{run}/file/{name:path}": runs.file,
        "/r/{run}/metrics": metrics.metrics,
        "/r/{run}/metric": metrics.metric,
        "/r/{run}/phase": runs.phase,
        "/r/{run}/groups": runs.groups,
        "/r/{run}/group": trajectories.group,
        "/r/{run}/trajectories": runs.trajectories,
        "/r/{run}/reviews": reviews.reviews,
        "/r/{run}/task": trajectories.task,
        "/r/{run}/report": trajectories.report,
        "/r/{run}/t/{number:int}": trajectories.trajectory,
        "/r/{run}/t/{number:int}/tokens": tokens.tokens,
        "/r/{run}/t/{number:int}/{part}.txt": trajectories.raw,
    }


def _forms(site: Site) -> dict[str, FormHandler]:
    """Return path -> handler of the forms; `Guard` lets no other page send them."""
    reviews = ReviewPages(site)
    return {"/r/{run}/t/{number:int}/review": reviews.save, "/r/{run}/queue": reviews.queue}


_TITLES = {400: "Invalid address", 404: "Not found", 500: "This run cannot be read"}


def _error_handlers(site: Site) -> dict[int | type[Exception], Callable[[Request, Exception], Response]]:
    def show(request: Request, error: Exception) -> Response:
        status, message = 404, str(error)
        if isinstance(error, HTTPException):
            status, message = error.status_code, error.detail
        elif isinstance(error, sqlite3.Error):
            status, message = 500, f"The run's database cannot be read: {error}. Other runs are not affected."
        title = _TITLES.get(status, "Not possible")
        return site.page("error.html.j2", title=title, status_code=status, message=message)

    return {HTTPException: show, InputError: show, sqlite3.Error: show}


_ANY = ("", "0.0.0.0", "::")
_MIN_TOKEN_CHARS = 16


def serve(
    root: Path,
    *,
    host: str,
    port: int,
    token: str,
    tell: Callable[[str], None],
    embed_from: tuple[str, ...] = (),
    formats: Formats = MappingProxyType({}),
) -> None:
    """Serve the runs below ``root`` until Ctrl-C; port 0 chooses a free one.

    An empty token is generated if other machines reach the server. ``tell`` gets the address of the first page once the
    port is bound. Other options: `create_app`.

    Raises:
        InputError: ``root`` is not a folder, the address cannot be bound, or the token is short.
    """
    if token and len(token) < _MIN_TOKEN_CHARS:
        raise InputError(f"got a token of {len(token)} characters, expected {_MIN_TOKEN_CHARS} or more")
    if not token and not is_loopback(host):
        token = secrets.token_urlsafe(24)
    is_any_host = host in _ANY
    site = Site(RunFolders(root), formats=tuple(formats))
    app = create_app(
        root,
        site=site,
        hosts=() if is_any_host else (host.lower(),),
        token=token,
        is_any_host=is_any_host,
        embed_from=embed_from,
        formats=formats,
    )
    with _bind(host, port) as bound:
        threading.Thread(target=site.warm, daemon=True).start()  # while the browser starts
        name = socket.gethostname() if is_any_host else host
        shown = f"[{name}]" if ":" in name else name
        tell(f"http://{shown}:{bound.getsockname()[1]}/" + (f"?{urlencode({'token': token})}" if token else ""))
        config = uvicorn.Config(app, log_level="warning", access_log=False, server_header=False, lifespan="off")
        # uvicorn stops at Ctrl-C, then raises it again; a closed viewer is not an interrupted run.
        with suppress(KeyboardInterrupt):
            uvicorn.Server(config).run(sockets=[bound])


def _bind(host: str, port: int) -> socket.socket:
    try:
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except (OSError, OverflowError) as error:
        raise InputError(
            f"cannot listen on {host}:{port} ({error}); choose another port with --port, 0 takes a free one"
        ) from error

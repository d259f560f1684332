"""What every page needs: the runs, the templates, addresses, and words for errors.

Reads requests; makes responses. Invariants: everything that a template prints is escaped and shows hidden characters
by name; an address is made from keys and numbers, never from a path.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse

from repairgym import __version__
from repairgym.evaluation.stages import label_of_test_set, parse_eval_phase, stage_label
from repairgym.report import wording
from repairgym.rollout.rows import GroupRow, PhaseRow
from repairgym.view.comparing import address_of
from repairgym.view.filters import TrajectoryFilter
from repairgym.view.folders import RunFolders, Stamp, Viewed
from repairgym.view.listing import Key
from repairgym.view.text import block, inline, plain

PAGE_SIZE = 50
STATIC_FOLDER = Path(__file__).with_name("static")
_SILENT_AFTER_S = 600.0
_MAX_DIGITS = 18


class Site:
    """The runs and how their pages are made."""

    def __init__(self, folders: RunFolders, page_size: int = PAGE_SIZE) -> None:
        self.folders = folders
        self.page_size = page_size
        self._templates = _environment()

    def run(self, request: Request) -> Viewed:
        """The run that the address names.

        Raises:
            InputError: there is none.
        """
        return self.folders.get(request.path_params["run"])

    def page(
        self, template: str, *, title: str, status_code: int = 200, live: str = "", **context: Any
    ) -> HTMLResponse:
        """A page; ``live`` is the address that says whether it would look different now."""
        text = self._templates.get_template(template).render(title=title, live=live, now_s=time.time(), **context)
        # Halves of characters that came through JSON cannot be sent.
        return HTMLResponse(text.encode("utf-8", "replace"), status_code)


def number_in(request: Request, name: str, default: int | None = None) -> int | None:
    """A whole number of the query string.

    Raises:
        HTTPException: 400, it is none.
    """
    given = request.query_params.get(name, "")
    if not given:
        return default
    digits = given.removeprefix("-")
    if not digits.isascii() or not digits.isdecimal() or len(digits) > _MAX_DIGITS:
        raise HTTPException(400, f"the address has {name}={given[:40]!r}, expected a whole number")
    return int(given)


def digest_of(stamp: Stamp) -> str:
    """A stamp as a short word."""
    return hashlib.sha256(repr(stamp).encode()).hexdigest()[:16]


# --- addresses -------------------------------------------------------------------------------------------------------


def run_url(viewed: Viewed, page: str = "", **query: Any) -> str:
    """Address of a page of a run; query values that are None or empty are left out."""
    shown = {name: str(value) for name, value in query.items() if value not in ("", None)}
    path = f"/r/{quote(viewed.key, safe='~', errors='replace')}" + (f"/{page}" if page else "")
    return path + (f"?{urlencode(shown, errors='replace')}" if shown else "")


def list_url(viewed: Viewed, wanted: TrajectoryFilter | None = None, **changes: Any) -> str:
    """Address of a list of trajectories."""
    query = (wanted or TrajectoryFilter()).query(**changes)
    return run_url(viewed, "trajectories") + (f"?{query}" if query else "")


def trajectory_url(viewed: Viewed, number: int, wanted: TrajectoryFilter | None = None) -> str:
    """Address of a trajectory, inside the list ``wanted``."""
    query = wanted.query() if wanted else ""
    return run_url(viewed, f"t/{number}") + (f"?{query}" if query else "")


def group_url(viewed: Viewed, group: GroupRow) -> str:
    """Address of a group."""
    return run_url(viewed, "group", phase=group.phase, step=group.step, id=group.id)


# --- words -----------------------------------------------------------------------------------------------------------


def phase_label(name: str) -> str:
    """What a person calls a phase."""
    phase = parse_eval_phase(name)
    return f"{stage_label(phase.stage)} on {label_of_test_set(phase.test_set)}" if phase else name


def run_state(phases: list[PhaseRow], last_write_s: float) -> str:
    """State of a run in a word or two."""
    statuses = {phase.status for phase in phases}
    if "running" in statuses:
        return "running" if time.time() - last_write_s < _SILENT_AFTER_S else "silent"
    for status in ("failed", "interrupted", "planned"):
        if status in statuses:
            return status if status != "planned" else "unfinished"
    return "done" if phases else "unfinished"


def ago(then_s: float, now_s: float) -> str:
    """A time in the past, roughly."""
    seconds = max(0.0, now_s - then_s)
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit} ago"
    return "just now"


def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("repairgym", "view/templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: inline(value) if isinstance(value, str) and not isinstance(value, Markup) else value,
    )
    words: Mapping[str, Any] = {name: getattr(wording, name) for name in ("percent", "number", "seconds", "size")}
    environment.filters.update(words, ago=ago, block=block, plain=plain, phase=phase_label, key=_key_text)
    environment.globals.update(
        run_url=run_url,
        list_url=list_url,
        trajectory_url=trajectory_url,
        group_url=group_url,
        address_of=address_of,
        version=__version__,
        marks={"passed": "✓", "failed": "✗", "exploited": "!", "invalid": "?"},
    )
    return environment


def _key_text(key: Key) -> str:
    return "-".join(map(str, key))

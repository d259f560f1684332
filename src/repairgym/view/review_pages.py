"""Notes, tags and the review queue: the page that lists them, and the two forms that change them.

Reads the reviews of a run; makes HTML and JSON; appends to ``reviews.jsonl`` of the run folder, which is all that the
viewer writes. Guarantees: only a form of these pages is taken (`Guard`); the trajectory must exist; too much is an
error.
"""

from urllib.parse import parse_qsl

from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from repairgym.errors import InputError
from repairgym.rollout.reviews import Review, read_reviews, write_review
from repairgym.view.folders import ViewedRun
from repairgym.view.site import Site, run_url, trajectory_url

_MAX_BYTES = 200_000
_MAX_QUEUED = 500
Form = list[tuple[str, str]]


class ReviewPages:
    """Handlers: request -> page, or the address to continue at."""

    def __init__(self, site: Site) -> None:
        self._site = site

    def reviews(self, request: Request) -> HTMLResponse:
        """The queue, then what was reviewed, noted or tagged."""
        with self._site.opened(request) as run:
            reviews = read_reviews(run.viewed.folder)
            rows = [(entry, reviews[entry.row.id]) for entry in run.reader.of_ids(list(reviews))]
            tags = sorted({tag for _, review in rows for tag in review.tags})
            wanted = request.query_params.get("tag", "")
            chosen = [(entry, review) for entry, review in rows if not wanted or wanted in review.tags]
            chosen.sort(key=lambda row: (row[1].status != "queued", row[0].number))
            return run.page(
                "reviews.html.j2", "Reviews", is_live=False, rows=chosen, tags=tags, tag=wanted, num_all=len(rows)
            )

    async def save(self, request: Request) -> Response:
        """Keep note, tags and status of one trajectory."""
        form = dict(await _form(request))
        return await run_in_threadpool(self._save, request, form)

    def _save(self, request: Request, form: dict[str, str]) -> Response:
        with self._site.opened(request) as run:
            entry = run.reader.entry(request.path_params["number"])
            given = {name: form.get(name, "") for name in ("status", "tags", "note")}
            _write(run.viewed, entry.row.id, **given)
            return RedirectResponse(trajectory_url(run.viewed, entry.number) + "#review", 303)

    async def queue(self, request: Request) -> Response:
        """Put the chosen trajectories of a list into the queue."""
        form = await _form(request)
        return await run_in_threadpool(self._queue, request, form)

    def _queue(self, request: Request, form: Form) -> Response:
        names = [value.rpartition(":")[2] for name, value in form if name == "of"]
        if not 1 <= len(names) <= _MAX_QUEUED or not all(name.isdecimal() for name in names):
            got = f"got {len(names)} trajectories for the queue"
            raise HTTPException(400, f"{got}, expected 1 to {_MAX_QUEUED}: select rows of the list first")
        with self._site.opened(request) as run:
            reviews = read_reviews(run.viewed.folder)
            for entry in [run.reader.entry(int(name)) for name in names]:
                known = reviews.get(entry.row.id, Review(trajectory_id=entry.row.id, time=""))
                _write(run.viewed, entry.row.id, status="queued", tags=" ".join(known.tags), note=known.note)
            return RedirectResponse(run_url(run.viewed, "reviews"), 303)


def _write(viewed: ViewedRun, trajectory_id: str, *, status: str, tags: str, note: str) -> None:
    try:
        write_review(viewed.folder, trajectory_id, status=status, tags=tags, note=note)
    except InputError as error:
        raise HTTPException(400, str(error)) from error


async def _form(request: Request) -> Form:
    """Return the fields of a form; status 413 for one that is too long."""
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > _MAX_BYTES:
            raise HTTPException(413, f"the form has more than {_MAX_BYTES} bytes; shorten the note")
    return parse_qsl(body.decode("utf-8", "replace"), keep_blank_values=True)

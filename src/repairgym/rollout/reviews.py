"""Notes, tags and the review queue of a run: ``reviews.jsonl`` in its folder, one line per change.

Reads and appends lines. Guarantees: the run store is not touched, so a live run and a review never wait for each other;
a line is one write to the end of the file, so that two viewers lose nothing; the last line of a trajectory counts, the
earlier ones stay as history; an unreadable line hides no other.
"""

import json
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, ValidationError

from repairgym.errors import InputError
from repairgym.records import Record
from repairgym.tasks.layers.atomic_write import append_line

REVIEWS_FILE = "reviews.jsonl"
Status = Literal["", "queued", "reviewed"]
STATUSES: tuple[Status, ...] = ("", "queued", "reviewed")
MAX_NOTE_CHARS = 10_000
MAX_TAGS = 20
Tag = Annotated[str, Field(pattern=r"^[^\s,]{1,40}$")]


class Review(Record):
    """A note about one trajectory, with tags and a place in the queue."""

    trajectory_id: str
    time: str
    status: Status = ""
    """``queued``: somebody should read it; ``reviewed``: somebody has."""
    tags: Annotated[tuple[Tag, ...], Field(max_length=MAX_TAGS)] = ()
    note: Annotated[str, Field(max_length=MAX_NOTE_CHARS)] = ""

    @property
    def is_empty(self) -> bool:
        """True where nothing is left of it."""
        return not (self.status or self.tags or self.note)


def read_reviews(folder: Path) -> dict[str, Review]:
    """Return trajectory id -> its newest review, in the order of the changes; empty ones are left out."""
    reviews: dict[str, Review] = {}
    path = folder / REVIEWS_FILE
    for line in path.read_bytes().splitlines() if path.is_file() else ():
        try:
            review = Review.model_validate_json(line)
        except ValidationError:
            continue
        reviews.pop(review.trajectory_id, None)
        reviews[review.trajectory_id] = review
    return {name: review for name, review in reviews.items() if not review.is_empty}


def write_review(folder: Path, trajectory_id: str, *, status: str, tags: str, note: str) -> Review:
    """Append a review and return it; ``tags`` are separated by commas or spaces.

    Raises:
        InputError: the text is too long, a tag is not a word, the status is unknown, or the folder cannot be written.
    """
    words = tuple(dict.fromkeys(tags.replace(",", " ").split()))
    content = {"trajectory_id": trajectory_id, "status": status, "tags": words, "note": note.strip()}
    try:
        review = Review.model_validate({**content, "time": datetime.now(UTC).isoformat(timespec="seconds")})
    except ValidationError as error:
        first = error.errors()[0]
        raise InputError(
            f"the review has {'.'.join(map(str, first['loc']))} that cannot be kept: {first['msg']}"
        ) from error
    line = json.dumps(review.model_dump(mode="json"), ensure_ascii=True)
    try:
        descriptor = os.open(folder / REVIEWS_FILE, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            append_line(descriptor, line)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise InputError(
            f"the review cannot be written next to the run ({error.strerror}); nothing was kept"
        ) from error
    return review

"""Lines of reviews on a disk without room."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest

from repairgym.errors import InputError
from repairgym.rollout.reviews import REVIEWS_FILE, read_reviews, write_review


def keep(folder: Path, name: str) -> None:
    write_review(folder, name, status="queued", tags="", note="")


def test_a_line_that_found_no_room_is_an_error_and_swallows_no_other(tmp_path: Path) -> None:
    keep(tmp_path, "a")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, ((tmp_path / REVIEWS_FILE).stat().st_size + 20, hard))
    try:
        with pytest.raises(InputError, match="nothing was kept"):
            keep(tmp_path, "b")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert not (tmp_path / REVIEWS_FILE).read_bytes().endswith(b"\n")
    keep(tmp_path, "c")
    assert list(read_reviews(tmp_path)) == ["a", "c"]

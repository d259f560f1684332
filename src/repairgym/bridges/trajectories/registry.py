"""The formats by name; a new one is a file and one line here. Where a document fits several, the first is meant."""

from __future__ import annotations

from repairgym.bridges.trajectories.atif import Atif
from repairgym.bridges.trajectories.base import Document, FormatError, TrajectoryFormat
from repairgym.bridges.trajectories.chat import ChatMessages
from repairgym.bridges.trajectories.mini_swe_agent import MiniSweAgent
from repairgym.bridges.trajectories.swe_agent import SweAgent

FORMATS: dict[str, TrajectoryFormat] = {
    form.name: form for form in (Atif(), SweAgent(), MiniSweAgent(), ChatMessages())
}


def detect_format(document: Document) -> TrajectoryFormat:
    """The format that ``document`` is in.

    Raises:
        FormatError: none fits.
    """
    for form in FORMATS.values():
        if form.matches(document):
            return form
    raise FormatError(f"the keys {', '.join(sorted(document)[:8]) or '(none)'} fit no format of {', '.join(FORMATS)}")

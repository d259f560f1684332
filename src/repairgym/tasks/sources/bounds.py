"""A repair of requirements by bounds: as settings files, and as the recipe of a task.

Reads a tree and bounds; makes texts. Invariant: `read_bounds` reads what `bounds_recipe` wrote.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import get_args

from repairgym.tasks.layers.requirement_pins import Place, bound_edit
from repairgym.tasks.sources.version_search import Pin, Pins

Files = dict[str, str | None]
_RECIPE_BOUND = re.compile(r"(\S+) (<\S+) \(newest ")


def bound_edits(tree: Path, bounds: Pins) -> Files | None:
    """Settings files of ``tree`` with ``bounds``; None when there is no place for one."""
    files: Files = {}
    for pin, bound in bounds.items():
        edit = bound_edit(tree, files, pin.place, pin.name, bound)
        if edit is None:
            return None
        files[edit[0]] = edit[1]
    return files


def bounds_recipe(bounds: Mapping[Pin, tuple[str, str]]) -> str:
    """The repair in words; ``bounds``: pin -> (first version that breaks, newest version)."""
    told = {
        place: "; ".join(_bound_text(pin, *found) for pin, found in bounds.items() if pin.place == place)
        for place in get_args(Place)
    }
    return " / ".join(f"{place} requirements: {text}" for place, text in told.items() if text)


def _bound_text(pin: Pin, bad: str, newest: str) -> str:
    return f"{pin.name} <{bad} (newest {newest})"


def read_bounds(recipe: str) -> dict[Pin, str]:
    """What `bounds_recipe` wrote: pin -> bound."""
    found: dict[Pin, str] = {}
    for part in recipe.split(" / "):
        place: Place = "build" if part.startswith("build ") else "runtime"
        found.update({Pin(place, name): bound for name, bound in _RECIPE_BOUND.findall(part.partition(": ")[2])})
    return found

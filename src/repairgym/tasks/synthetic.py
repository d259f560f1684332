"""Labels of synthetic bugs, and the place that their issues tell.

Guarantees: a task without the labels, as older versions made it, tells its function and has one bug.
"""

from typing import get_args

from repairgym.config.tasks import Localization
from repairgym.records import Location, Task

LOCALIZATION = "localization"
"""Label: level of localization of the issue."""
NUM_BUGS = "num_bugs"
"""Label of a task with several bugs: their number."""
_WHOLE_FILE = 1 << 30
"""A last line beyond every file."""


def told_level(task: Task) -> Localization:
    """Return the level of localization of ``task``."""
    return next((level for level in get_args(Localization) if level == task.labels.get(LOCALIZATION)), "function")


def told_place(task: Task) -> Location | None:
    """Return what the issue of ``task`` tells of its location: the function, the head of its file, or nothing."""
    place, level = task.location, told_level(task)
    if place is None or level == "symptom":
        return None
    return place if level == "function" else Location(path=place.path, name="", first_line=1, last_line=_WHOLE_FILE)

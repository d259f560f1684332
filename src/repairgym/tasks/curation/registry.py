"""The curation filters by name; a new filter is one line here and its name in `config.curation.FilterName`."""

from __future__ import annotations

from repairgym.config.curation import FilterName
from repairgym.tasks.curation.base import TaskFilter
from repairgym.tasks.curation.contamination import Contamination
from repairgym.tasks.curation.duplicates import Duplicates
from repairgym.tasks.curation.missing_names import MissingNames, UnmentionedNames
from repairgym.tasks.curation.quality import Quality
from repairgym.tasks.curation.size import Size
from repairgym.tasks.curation.solve_rate import SolveRateWindow
from repairgym.tasks.curation.stability import BuildTime, Flakiness, Trivial

FILTERS: dict[FilterName, TaskFilter] = {
    "missing_names": MissingNames(),
    "unmentioned_names": UnmentionedNames(),
    "size": Size(),
    "quality": Quality(),
    "flakiness": Flakiness(),
    "build_time": BuildTime(),
    "trivial": Trivial(),
    "solve_rate": SolveRateWindow(),
    "duplicates": Duplicates(),
    "contamination": Contamination(),
}

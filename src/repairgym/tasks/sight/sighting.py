"""A record of something readable that shows the answer of a task."""

from repairgym.records import Record


class Sighting(Record):
    """A readable file that shows the answer of a task."""

    task_id: str
    kind: str
    """``gold``, ``gold code`` (compiled), ``built copy`` (JavaScript) or ``hidden test``; of broken builds
    ``gold setting``, ``release metadata``, ``built distribution`` or ``expectations``, too."""
    path: str
    """As the agent sees it; members of archives follow a ``!``."""
    line: int
    """First line of what is shown."""
    text: str
    """That line; the name of a compiled function."""
    share: float
    """Share of the distinctive lines (functions, tests) of this kind that the file shows."""

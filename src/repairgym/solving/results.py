"""The folder of solutions of a run: evidence, search and patch of each task.

Writes ``RUN/solutions/<task id>.json``. Guarantees: a file appears whole; a later search of the same task replaces it.
"""

from pathlib import Path
from urllib.parse import quote

from repairgym.solving.search import Solution
from repairgym.tasks.layers.atomic_write import written_whole

FOLDER = "solutions"


def save_solution(run: Path, solution: Solution) -> None:
    """Write ``solution`` into the run folder."""
    path = run / FOLDER / f"{quote(solution.task_id, safe='')}.json"
    with written_whole(path) as file:
        file.write(solution.model_dump_json(indent=2).encode())

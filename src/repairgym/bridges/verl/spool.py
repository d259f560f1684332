"""Finished trajectories on their way from the processes that ran them to the one that owns ``run.db``.

Reads and writes one file per trajectory in a folder. Guarantees: a file is complete or absent; a trajectory is read as
it was written, tokens bit for bit; a file is deleted once its trajectory is stored, so a killed run loses none.
"""

import base64
import json
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from repairgym.records import Trajectory
from repairgym.rollout.rows import (
    TrajectoryRow,
    join_trajectory,
    pack_document,
    pack_ledger,
    unpack_document,
    unpack_ledger,
)
from repairgym.rollout.store import row_values
from repairgym.tasks.layers.atomic_write import written_whole

_SUFFIX = ".trajectory"


@dataclass(frozen=True)
class SpooledTrajectory:
    """A trajectory and its place in the run store."""

    trajectory: Trajectory
    phase: str
    step: int
    split: str


def write_spool(folder: Path, spooled: SpooledTrajectory) -> None:
    """Write a trajectory to ``folder``.

    Raises:
        DiskFullError: no room; nothing was written.
    """
    row = row_values(spooled.trajectory, spooled.phase, spooled.step, spooled.split)
    content = {
        "row": row | {"durations_s": spooled.trajectory.durations_s},
        "document": base64.b64encode(pack_document(spooled.trajectory)).decode(),
        "ledger": base64.b64encode(pack_ledger(spooled.trajectory.ledger)).decode(),
    }
    name = sha256(spooled.trajectory.id.encode()).hexdigest()[:24]
    with written_whole(folder / f"{name}{_SUFFIX}") as stream:
        stream.write(json.dumps(content).encode())


def read_spool(folder: Path) -> Iterator[tuple[Path, SpooledTrajectory]]:
    """Yield the trajectories in ``folder``, oldest first, with the file to delete once it is stored."""
    files = sorted(folder.glob(f"*{_SUFFIX}"), key=lambda path: (path.stat().st_mtime_ns, path.name))
    for path in files:
        content = json.loads(path.read_text(encoding="utf-8"))
        row = TrajectoryRow.model_validate_json(json.dumps(content["row"]))
        document = unpack_document(base64.b64decode(content["document"]))
        trajectory = join_trajectory(row, document, unpack_ledger(base64.b64decode(content["ledger"])))
        yield path, SpooledTrajectory(trajectory, row.phase, row.step, row.split)

"""verl's trainer as a child process: started, watched, ended with its parent.

Reads what the child leaves in the configuration folder (metrics, trajectories, its log); makes one `Arrival` after the
other. Invariants: a trajectory arrives before the metrics of its iteration; a child that fails is an error with our own
reason, where it said one, or its last lines; no process of the run outlives the caller.
"""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
from collections.abc import Generator, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from repairgym.bridges.verl.child_output import new_lines, read_metrics, reason_of
from repairgym.bridges.verl.config_files import METRICS_FILE, VerlPaths, command, environment
from repairgym.bridges.verl.spool import Spooled, spooled
from repairgym.child_process import end_with_parent
from repairgym.config.verl import VerlConfig
from repairgym.errors import RepairGymError

LOG_FILE = "verl.log"
LATEST_FILE = "latest_checkpointed_iteration.txt"
_POLL_S = 1.0
_END_S = 30.0
"""Ray needs a moment to end what it started."""
_NUM_STARTS = 3
_PORT_TAKEN = "address already in use"
"""verl looks for a free port seconds before it listens there; now and then another process has it by then."""


@dataclass(frozen=True)
class Arrival:
    """Something that the child has finished."""

    trajectory: Spooled | None = None
    file: Path | None = None
    """Where the trajectory lies until it is stored; the receiver deletes it."""
    num_updates: int = 0
    metrics: Mapping[str, float] | None = None
    """Of the iteration that ended with update ``num_updates``."""


def num_saved_updates(places: VerlPaths) -> int:
    """Updates of verl's latest checkpoint, where it goes on; 0 where there is none."""
    path = places.checkpoints / LATEST_FILE
    return int(path.read_text()) if path.is_file() else 0


def saved_model(places: VerlPaths) -> Path:
    """Model folder of verl's latest checkpoint, in Hugging Face format."""
    return places.checkpoints / f"global_step_{num_saved_updates(places)}" / "actor" / "huggingface"


def run_verl(places: VerlPaths, machine: VerlConfig) -> Iterator[Arrival]:
    """Run verl's trainer to its end; yields what it finishes, as it does.

    Raises:
        RepairGymError: it failed; the message has its last lines.
    """
    for num_left in reversed(range(_NUM_STARTS)):
        ended = yield from _run_once(places, machine)
        if not ended.exit_code:
            return
        if num_left == 0 or ended.num_arrivals or _PORT_TAKEN not in ended.reason:
            raise RepairGymError(
                f"verl ended with exit code {ended.exit_code}: {ended.reason} (all of it: {places.folder / LOG_FILE}); "
                "the same command goes on from the last checkpoint"
            )


@dataclass(frozen=True)
class _Ended:
    """How a child ended."""

    exit_code: int
    num_arrivals: int
    reason: str
    """Why it failed; empty where it did not."""


def _run_once(places: VerlPaths, machine: VerlConfig) -> Generator[Arrival, None, _Ended]:
    metrics, log_file = places.folder / METRICS_FILE, places.folder / LOG_FILE
    metrics.unlink(missing_ok=True)
    num_arrivals = 0
    with log_file.open("ab") as log:
        begin = log.tell()
        child = _start(places, machine, log)
        try:
            position = 0
            while True:
                is_over = child.poll() is not None
                lines, position = new_lines(metrics, position)
                # After the lines: what led to an iteration's metrics was spooled before they were written.
                for file, found in spooled(places.spool):
                    num_arrivals += 1
                    yield Arrival(trajectory=found, file=file)
                for line in lines:
                    num_arrivals += 1
                    num_updates, values = read_metrics(line)
                    yield Arrival(num_updates=num_updates, metrics=values)
                if is_over:
                    break
                with suppress(subprocess.TimeoutExpired):
                    child.wait(_POLL_S)
        finally:
            _end(child)
    return _Ended(child.returncode, num_arrivals, reason_of(log_file, begin) if child.returncode else "")


def _start(places: VerlPaths, machine: VerlConfig, log: IO[bytes]) -> subprocess.Popen[bytes]:
    variables = os.environ | environment(places, machine) | {"HYDRA_FULL_ERROR": "1"}
    if not machine.ray_address:
        variables = own_ray_environment() | variables
    return subprocess.Popen(
        command(places),
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        env=variables,
        preexec_fn=end_with_parent,
        start_new_session=True,  # Ctrl-C is this process's to pass on
    )


def own_ray_environment() -> dict[str, str]:
    """For a Ray that is started for this run: nobody else can use it, it tells nobody, and starts what is needed."""
    return {
        # Of this run alone; otherwise Ray writes one to the home folder.
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": secrets.token_hex(32),
        # Ray would start an interpreter for each CPU that it is told of.
        "RAY_prestart_worker_first_driver": "0",
        "RAY_enable_worker_prestart": "0",
        "RAY_USAGE_STATS_ENABLED": "0",
    }


def _end(child: subprocess.Popen[bytes]) -> None:
    """Interrupt, then kill; Ray's processes end with the one that started them."""
    for sign in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
        if child.poll() is not None:
            return
        child.send_signal(sign)
        try:
            child.wait(_END_S)
        except subprocess.TimeoutExpired:
            continue

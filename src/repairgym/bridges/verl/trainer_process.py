"""verl's trainer as a child process: started, watched, ended with its parent.

Guarantees: a trajectory arrives before the metrics of its iteration; a line that is not complete waits for the next
look; a child that fails raises an error with our own reason, where it gave one, or its last lines; no process of the
run outlives the caller.
"""

import json
import math
import os
import re
import secrets
import signal
import subprocess
from collections.abc import Generator, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import IO

from repairgym.bridges.verl.config_files import METRICS_FILE, VerlPaths, command, environment
from repairgym.bridges.verl.outputs import SpooledTrajectory, read_spool
from repairgym.config.cluster import VerlConfig
from repairgym.errors import RepairGymError
from repairgym.process_pool import end_with_parent

LOG_FILE = "verl.log"
LATEST_FILE = "latest_checkpointed_iteration.txt"
_POLL_S = 1.0
_END_S = 30.0
"""Ray needs a moment to end what it started."""
_NUM_STARTS = 3
_PORT_TAKEN = "address already in use"
"""verl looks for a free port seconds before it listens there; sometimes another process has taken it by then."""
_NUM_LAST_LINES = 12
_OUR_ERROR = re.compile(rb"repairgym\.errors\.\w+: (.+)")
_ANY_ERROR = re.compile(rb"\b[A-Z]\w*(?:Error|Exception): .+")


@dataclass(frozen=True)
class IterationMetrics:
    """verl's finite metrics of the iteration that ended with update ``num_updates``."""

    num_updates: int
    values: Mapping[str, float]


Arrival = SpooledTrajectory | IterationMetrics
"""A finished trajectory or a finished iteration."""


def num_saved_updates(paths: VerlPaths) -> int:
    """Return the updates of verl's latest checkpoint, where it resumes; 0 where there is none."""
    path = paths.checkpoints / LATEST_FILE
    return int(path.read_text()) if path.is_file() else 0


def saved_model(paths: VerlPaths) -> Path:
    """Return the model folder of verl's latest checkpoint, in Hugging Face format."""
    return paths.checkpoints / f"global_step_{num_saved_updates(paths)}" / "actor" / "huggingface"


def run_verl(paths: VerlPaths, machine: VerlConfig) -> Iterator[Arrival]:
    """Run verl's trainer to its end; yields what it finishes, as it does. A `RepairGymError` has its last lines."""
    for num_left in reversed(range(_NUM_STARTS)):
        end = yield from _run_once(paths, machine)
        if not end.exit_code:
            return
        if num_left == 0 or end.num_arrivals or _PORT_TAKEN not in end.reason:
            raise RepairGymError(
                f"verl ended with exit code {end.exit_code}: {end.reason} (full log: {paths.folder / LOG_FILE}); "
                "the same command resumes from the last checkpoint"
            )


@dataclass(frozen=True)
class _End:
    """The end of a child process."""

    exit_code: int
    num_arrivals: int
    reason: str


def _run_once(paths: VerlPaths, machine: VerlConfig) -> Generator[Arrival, None, _End]:
    metrics, log_file = paths.folder / METRICS_FILE, paths.folder / LOG_FILE
    metrics.unlink(missing_ok=True)
    num_arrivals = 0
    with log_file.open("ab") as log:
        begin = log.tell()
        child = _start(paths, machine, log)
        try:
            position = 0
            while True:
                is_over = child.poll() is not None
                lines, position = new_lines(metrics, position)
                # After the lines: trajectories are spooled before the metrics of their iteration are written.
                arrivals: Iterator[Arrival] = chain(read_spool(paths.spool), map(read_metrics, lines))
                for arrival in arrivals:
                    num_arrivals += 1
                    yield arrival
                if is_over:
                    break
                with suppress(subprocess.TimeoutExpired):
                    child.wait(_POLL_S)
        finally:
            _stop(child)
    return _End(child.returncode, num_arrivals, failure_reason(log_file, begin) if child.returncode else "")


def _start(paths: VerlPaths, machine: VerlConfig, log: IO[bytes]) -> subprocess.Popen[bytes]:
    variables = os.environ | environment(paths, machine) | {"HYDRA_FULL_ERROR": "1"}
    if not machine.ray_address:
        variables = own_ray_environment() | variables
    return subprocess.Popen(
        command(paths),
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        env=variables,
        preexec_fn=end_with_parent,
        start_new_session=True,  # Ctrl-C is this process's to pass on
    )


def own_ray_environment() -> dict[str, str]:
    """Return variables for a Ray of this run alone: private, without telemetry, with no more processes than needed."""
    return {
        # Of this run alone; otherwise Ray writes one to the home folder.
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": secrets.token_hex(32),
        # Ray would start an interpreter for each CPU that it counts.
        "RAY_prestart_worker_first_driver": "0",
        "RAY_enable_worker_prestart": "0",
        "RAY_USAGE_STATS_ENABLED": "0",
    }


def _stop(child: subprocess.Popen[bytes]) -> None:
    """Interrupt, then kill; Ray's processes end with the one that started them."""
    for signal_number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
        if child.poll() is not None:
            return
        child.send_signal(signal_number)
        try:
            child.wait(_END_S)
        except subprocess.TimeoutExpired:
            continue


def new_lines(path: Path, position: int) -> tuple[list[bytes], int]:
    """Return the complete lines after ``position``, and the position after them."""
    if not path.is_file():
        return [], position
    with path.open("rb") as stream:
        stream.seek(position)
        content = stream.read()
    end = content.rfind(b"\n") + 1
    return content[:end].splitlines(), position + end


def read_metrics(line: bytes) -> IterationMetrics:
    """Read a line of verl's file log."""
    content = json.loads(line)
    values = {
        name: float(value)
        for name, value in content["data"].items()
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    }
    return IterationMetrics(int(content["step"]), values)


def failure_reason(log: Path, begin: int) -> str:
    """Return the first error of ours in the log after ``begin``, or the last other error, or the last lines."""
    with log.open("rb") as stream:
        stream.seek(begin)
        content = stream.read()
    if ours := _OUR_ERROR.search(content):
        return ours[1].decode(errors="replace").strip()
    if others := _ANY_ERROR.findall(content):
        return str(others[-1].decode(errors="replace").strip())
    lines = content.decode(errors="replace").splitlines()[-_NUM_LAST_LINES:]
    return " | ".join(line.strip()[-200:] for line in lines if line.strip())

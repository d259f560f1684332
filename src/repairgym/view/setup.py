"""The circumstances of a run: its calls, settings, log, checkpoints, disk use and cost.

Reads files of a run folder and its phases; makes plain records. Guarantees: absent or unreadable files are left out;
however large the folder, the work is bounded, and a sum that was cut short says so.
"""

import json
import math
import os
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from pathlib import Path

from repairgym.config.loading import flatten
from repairgym.errors import InputError
from repairgym.report.html import SUMMARY_FILE
from repairgym.report.run_folder import CONFIG_FILE, MATRIX_FILE, read_funnel
from repairgym.rollout.calls import LOG_FILE, Call, read_calls
from repairgym.rollout.names import CONFIGS_FOLDER, FITTED_FILE
from repairgym.rollout.rows import PhaseRow

TAIL_LINES = 200
_TAIL_BYTES = 64 << 10
_MAX_TEXT_BYTES = 1 << 20
_MAX_ENTRIES = 20_000
CHECKPOINTS_FOLDER = "checkpoints"


@dataclass(frozen=True)
class Checkpoint:
    """One folder of weights."""

    name: str
    num_bytes: int
    time_s: float | None
    """Time of writing, in seconds since the epoch; None where only the date of a copy is known."""


@dataclass(frozen=True)
class Cost:
    """Sums over the phases; a phase inside of another is counted with it."""

    wall_s: float
    cpu_s: float
    peak_rss_bytes: int
    num_tokens: int
    usd: float
    """Of answers of models that have a price."""


@dataclass(frozen=True)
class Setup:
    """The circumstances of a run."""

    calls: tuple[Call, ...]
    configs: tuple[tuple[str, str], ...]
    """(file, its text)."""
    checkpoints: tuple[Checkpoint, ...]
    """Oldest first."""
    disk: tuple[tuple[str, int], ...]
    """(entry of the run folder, bytes), largest first."""
    is_disk_cut: bool
    log: tuple[str, ...]
    """The last lines."""
    sized: tuple[tuple[str, str, str], ...] = ()
    """(setting, value that was asked for, value that ran) of a run whose settings were fitted to its time."""
    model: str = ""
    """Architecture and size of the oldest checkpoint; empty without one that can be read."""

    @property
    def num_bytes(self) -> int:
        """Disk use of the folder."""
        return sum(size for _, size in self.disk)


def read_setup(folder: Path, phases: Sequence[PhaseRow]) -> Setup:
    """Return the circumstances of the run in ``folder``."""
    disk, is_cut = _disk(folder)
    checkpoints = _checkpoints(folder / CHECKPOINTS_FOLDER, phases)
    models = (model_of(folder, checkpoint.name) for checkpoint in checkpoints)
    return Setup(
        calls=tuple(read_calls(folder)),
        configs=tuple((name, _text(folder / name)) for name in config_files(folder)),
        checkpoints=checkpoints,
        disk=disk,
        is_disk_cut=is_cut,
        log=tuple(_tail(folder / LOG_FILE)),
        sized=tuple(_sized(folder)),
        model=next(filter(None, models), ""),
    )


def config_files(folder: Path) -> list[str]:
    """Return the files with settings, relative to the run folder; those of a demo that ran come first."""
    configs = sorted(path.name for path in (folder / CONFIGS_FOLDER).glob("*.toml"))
    names = [FITTED_FILE, CONFIG_FILE, MATRIX_FILE, *(f"{CONFIGS_FOLDER}/{name}" for name in configs)]
    return [name for name in names if (folder / name).is_file()]


def text_files(folder: Path) -> list[str]:
    """Return the text files of a run that can be read as a whole, relative to its folder."""
    return [*config_files(folder), *(name for name in (LOG_FILE, SUMMARY_FILE) if (folder / name).is_file())]


def cost_of(phases: Sequence[PhaseRow], num_tokens: int, usd: float) -> Cost:
    """Return the cost of a run; phases within the time of another are part of it."""
    outer = [row for row in phases if not any(_is_within(row, other) for other in phases)]
    return Cost(
        wall_s=sum(row.wall_s for row in outer),
        cpu_s=sum(row.cpu_s for row in outer),
        peak_rss_bytes=max((row.peak_rss_bytes for row in phases), default=0),
        num_tokens=num_tokens,
        usd=usd,
    )


def _is_within(row: PhaseRow, other: PhaseRow) -> bool:
    if row.name == other.name or not (row.started_at and row.ended_at and other.started_at and other.ended_at):
        return False
    is_equal = (row.started_at, row.ended_at) == (other.started_at, other.ended_at)
    return not is_equal and other.started_at <= row.started_at and row.ended_at <= other.ended_at


def _text(path: Path) -> str:
    with suppress(OSError), path.open("rb") as file:
        return file.read(_MAX_TEXT_BYTES).decode("utf-8", "replace")
    return ""


def _tail(path: Path) -> list[str]:
    with suppress(OSError), path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - _TAIL_BYTES))
        lines = file.read(_TAIL_BYTES).decode("utf-8", "replace").splitlines()
        return lines[1 if size > _TAIL_BYTES else 0 :][-TAIL_LINES:]
    return []


def _sized(folder: Path) -> Iterator[tuple[str, str, str]]:
    """Yield the settings that a demo changed to fit its time."""
    files = folder / CONFIG_FILE, folder / FITTED_FILE
    if all(path.is_file() for path in files):
        with suppress(tomllib.TOMLDecodeError):
            asked, ran = (dict(flatten(tomllib.loads(_text(path)))) for path in files)
            yield from ((name, asked[name], value) for name, value in ran.items() if asked.get(name, value) != value)


def _checkpoints(folder: Path, phases: Sequence[PhaseRow]) -> tuple[Checkpoint, ...]:
    """Return the checkpoints, oldest first; one with the name of a phase was written at its end."""
    ended = {row.name: datetime.fromisoformat(row.ended_at).timestamp() for row in phases if row.ended_at}
    last = max(ended.values(), default=math.inf) if all(row.status != "running" for row in phases) else math.inf
    checkpoints = []
    with suppress(OSError):
        for entry in os.scandir(folder):
            if entry.is_dir() and not entry.name.startswith("."):
                size, _ = _size(Path(entry.path), _MAX_ENTRIES)
                changed = entry.stat().st_mtime
                written = ended.get(entry.name, changed if changed <= last else None)
                checkpoints.append(Checkpoint(entry.name, size, written))
    return tuple(sorted(checkpoints, key=lambda checkpoint: (checkpoint.time_s or math.inf, checkpoint.name)))


def model_of(run_folder: Path, checkpoint: str) -> str:
    """Return architecture and size of a checkpoint; empty for a folder without weights."""
    folder = run_folder / CHECKPOINTS_FOLDER / checkpoint
    try:
        config = json.loads(_text(folder / "config.json"))
        num = sum(_num_parameters(path, path.stat().st_mtime_ns) for path in sorted(folder.glob("*.safetensors")))
        shape = f"{config['num_hidden_layers']} layers of {config['hidden_size']}"
        return f"{config['model_type']}, {num:,} parameters, {shape}, {config['vocab_size']:,} tokens in its vocabulary"
    except (OSError, ValueError, KeyError, TypeError):
        return ""


def outcome_of(run_folder: Path, phase: str) -> list[tuple[str, str]]:
    """Return what a phase left in the run folder: (kind, description) of its checkpoint, and of the tasks made."""
    model, funnel = model_of(run_folder, phase), None
    if phase == "tasks":
        with suppress(InputError):
            funnel = read_funnel(run_folder)
    outcome = [("checkpoint", model)] if model else []
    return outcome + ([(name, f"{num} tasks") for name, num in sorted(funnel.splits.items())] if funnel else [])


@lru_cache(maxsize=1_000)
def _num_parameters(path: Path, changed_ns: int) -> int:
    """Return the numbers in a file of weights, from its header: 8 bytes of length, then JSON."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(min(length, _MAX_TEXT_BYTES)))
    return sum(math.prod(entry["shape"]) for name, entry in header.items() if name != "__metadata__")


def _disk(folder: Path) -> tuple[tuple[tuple[str, int], ...], bool]:
    sizes, num_left = {}, _MAX_ENTRIES
    with suppress(OSError):
        for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
            size, num = _size(Path(entry.path), num_left)
            sizes[entry.name] = size
            num_left -= num
    return tuple(sorted(sizes.items(), key=lambda item: (-item[1], item[0]))), num_left <= 0


def _size(path: Path, most: int) -> tuple[int, int]:
    """Return the bytes below ``path``, and the number of entries that were looked at, up to ``most``."""
    total, num, waiting = 0, 0, [path]
    while waiting and num < most:
        current = waiting.pop()
        num += 1
        with suppress(OSError):
            if current.is_dir() and not current.is_symlink():
                waiting += current.iterdir()
            else:
                total += current.lstat().st_size
    return total, num

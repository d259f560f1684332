"""Application of a `TaskSelection`: filter tasks part by part and say what each part left.

Reads tasks, and the id files that a selection names. Makes the chosen tasks in an order that mixes the packages.
Guarantees: an id that the folder does not hold is an error; an empty result names the part that emptied it and the
values that the tasks before it had.
"""

import hashlib
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from repairgym.config.selection import TaskSelection
from repairgym.errors import ConfigError, InputError
from repairgym.records import UNDERSPECIFIED, Task
from repairgym.tasks.solve_rates import rates_of

_MAX_VALUES = 8
_MAX_IDS = 3


@dataclass(frozen=True)
class Selected:
    """The chosen tasks and how they were found."""

    tasks: list[Task]
    num_all: int
    left: tuple[tuple[str, int], ...]
    """Each part that was set, and the number of tasks after it."""

    @property
    def summary(self) -> str:
        """One line, e.g. ``115 of 2945 tasks (splits=train: 1777, sources=releases: 115)``."""
        parts = ", ".join(f"{text}: {count}" for text, count in self.left)
        return f"{len(self.tasks)} of {self.num_all} tasks ({parts or 'every task'})"


@dataclass(frozen=True)
class _Part:
    text: str
    value: Callable[[Task], str]
    allows: Callable[[str], bool]


def select_tasks(tasks: Collection[Task], selection: TaskSelection) -> Selected:
    """Return the tasks of ``selection``.

    Raises:
        InputError: an id file or a file of solve rates cannot be read.
        ConfigError: ``tasks`` lack an id, or no task is left.
    """
    chosen, left = list(tasks), []
    for part in _parts(selection, tasks):
        before, chosen = chosen, [task for task in chosen if part.allows(part.value(task))]
        left.append((part.text, len(chosen)))
        if not chosen:
            raise ConfigError(_describe_empty(len(tasks), left, part, before))
    if not chosen:
        raise ConfigError("there is no task to select from; see: repairgym tasks show")
    chosen.sort(key=lambda task: hashlib.sha256(task.id.encode()).digest())
    if selection.num_tasks:
        chosen = chosen[: selection.num_tasks]
        left.append((f"num_tasks={selection.num_tasks}", len(chosen)))
    return Selected(chosen, len(tasks), tuple(left))


def _parts(selection: TaskSelection, tasks: Collection[Task]) -> Iterator[_Part]:
    if ids := {*selection.ids, *(name for file in selection.id_files for name in read_ids(Path(file)))}:
        _require_known(ids, tasks)
        origin = ",".join(selection.id_files) or f"{len(ids)} of them"
        yield _Part(f"ids={origin}", lambda task: task.id, ids.__contains__)
    if selection.splits:
        yield _among("splits", selection.splits, lambda task: task.split)
    if selection.sources:
        yield _among("sources", selection.sources, lambda task: task.source)
    if selection.packages:
        yield _among("packages", selection.packages, lambda task: task.provenance.package)
    for name, values in selection.labels.items():
        yield _among(f"labels.{name}", values, partial(_label, name))
    if selection.is_specified_only and any(UNDERSPECIFIED in task.labels for task in tasks):
        yield _Part("is_specified_only", _specified, lambda value: value == "specified")
    if selection.is_told_only and any(map(_is_thin, tasks)):
        yield _Part("is_told_only", lambda task: "thin" if _is_thin(task) else "told", lambda value: value == "told")
    if selection.solve_rates:
        low, high, policy = selection.min_solve_rate, selection.max_solve_rate, selection.solved_by
        rates = rates_of(Path(selection.solve_rates), policy, tasks)
        known = {task_id: f"{rate.rate:.6f}" for task_id, rate in rates.items()}
        within = frozenset(text for task_id, text in known.items() if low <= rates[task_id].rate <= high)
        yield _Part(
            f"solve_rate={low:g}..{high:g} by {policy}", lambda task: known.get(task.id, ""), within.__contains__
        )
    if selection.since:
        yield _Part(f"since={selection.since}", _day, selection.since.__le__)
    if selection.before:
        yield _Part(f"before={selection.before}", _day, lambda day: "" < day < selection.before)


def _among(name: str, values: Sequence[str], value: Callable[[Task], str]) -> _Part:
    return _Part(f"{name}={','.join(values)}", value, frozenset(values).__contains__)


def _label(name: str, task: Task) -> str:
    return task.labels.get(name, "")


def _specified(task: Task) -> str:
    return "underspecified" if UNDERSPECIFIED in task.labels else "specified"


def _is_thin(task: Task) -> bool:
    return task.certificate.replay is not None and task.certificate.replay.is_thin


def _day(task: Task) -> str:
    return task.created_at[:10]


def read_ids(file: Path) -> list[str]:
    """Return the ids of a file, one per line; `InputError` where it cannot be read or holds none."""
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read the ids in {file}: {error}") from None
    ids = [name for line in lines if (name := line.partition("#")[0].strip())]
    if not ids:
        raise InputError(f"{file} holds no task id; expected one per line")
    return ids


def _require_known(ids: Collection[str], tasks: Collection[Task]) -> None:
    unknown = sorted(set(ids) - {task.id for task in tasks})
    if unknown:
        raise ConfigError(
            f"{len(unknown)} of {len(ids)} ids are not in the task folder: {', '.join(unknown[:_MAX_IDS])}; "
            "see: repairgym tasks show"
        )


def _describe_empty(num_all: int, left: Sequence[tuple[str, int]], part: _Part, before: Sequence[Task]) -> str:
    counts = ", ".join(f"{count} with {text}" for text, count in left)
    values = Counter(part.value(task) or "no value" for task in before).most_common(_MAX_VALUES)
    had = ", ".join(f"{value} {count}" for value, count in values)
    return f"no task is left by {part.text}: the folder has {num_all}, {counts}; before it there were: {had or 'none'}"

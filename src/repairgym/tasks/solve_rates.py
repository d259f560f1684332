"""Solve rates of reference policies: how difficult each task is, measured and stored next to the tasks.

Reads and writes ``solve_rates.jsonl`` of a task folder: a line for each policy and task. Guarantees: the tasks
themselves and their digests stay; a rate counts only for the task with the digest that it was measured on; samples
without a verdict do not count.
"""

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from repairgym.errors import InputError
from repairgym.records import Record, Task
from repairgym.tasks.layers.atomic_write import written_whole

RATES_FILE = "solve_rates.jsonl"
_Z = 1.959964
"""Normal quantile of a 95 % interval."""


@dataclass(frozen=True)
class SolveRate:
    """Share of a policy's samples that solved a task."""

    num_passed: int
    num_valid: int
    """Samples with a verdict other than invalid."""

    @property
    def rate(self) -> float:
        """Passed samples over valid ones."""
        return self.num_passed / self.num_valid

    @property
    def interval(self) -> tuple[float, float]:
        """Wilson's 95 % interval, which holds for few samples and at 0 and 1, too."""
        n, rate = self.num_valid, self.rate
        middle, width = rate + _Z**2 / (2 * n), _Z * math.sqrt(rate * (1 - rate) / n + (_Z / (2 * n)) ** 2)
        low, high = ((middle + sign * width) / (1 + _Z**2 / n) for sign in (-1, 1))
        return round(max(0.0, low), 4), round(min(1.0, high), 4)

    def describe(self) -> str:
        """Return rate, interval and samples in words."""
        low, high = self.interval
        return f"{self.rate:.2f} ({low:.2f} to {high:.2f}, {self.num_passed} of {self.num_valid})"


class MeasuredRate(Record):
    """The solve rate of a reference policy on a task."""

    task_id: str
    task_digest: str
    policy: str
    settings: dict[str, str]
    """Digests of the weights and of the settings of the rollout."""
    num_passed: int
    num_samples: int
    """Samples with a verdict other than invalid; at least one."""
    interval: tuple[float, float]
    """Wilson's 95 % interval."""

    @property
    def solve_rate(self) -> SolveRate:
        """The counts."""
        return SolveRate(self.num_passed, self.num_samples)


def measured(task: Task, policy: str, settings: Mapping[str, str], rate: SolveRate) -> MeasuredRate:
    """Return the record of ``rate`` of ``policy`` on ``task``."""
    return MeasuredRate(
        task_id=task.id,
        task_digest=task.digest(),
        policy=policy,
        settings=dict(settings),
        num_passed=rate.num_passed,
        num_samples=rate.num_valid,
        interval=rate.interval,
    )


def load_rates(path: Path) -> list[MeasuredRate]:
    """Return the rates in a file; none without it, InputError for a broken one."""
    if not path.is_file():
        return []
    try:
        return [MeasuredRate.model_validate_json(line) for line in path.read_text(encoding="utf-8").splitlines()]
    except (OSError, ValidationError) as error:
        text = f"{path} holds no solve rates: {error}; remove it, and run repairgym tasks calibrate again"
        raise InputError(text) from error


def add_rates(path: Path, rates: Iterable[MeasuredRate]) -> None:
    """Write ``rates`` to a file; they take the place of those of the same policies and tasks."""
    known = {(rate.policy, rate.task_id): rate for rate in (*load_rates(path), *rates)}
    with written_whole(path) as stream:
        stream.writelines(known[key].model_dump_json().encode() + b"\n" for key in sorted(known))


def count_levels(rates: Iterable[MeasuredRate]) -> dict[str, str]:
    """Return policy -> how many tasks it never, sometimes and always solves, and the rate over all samples."""
    by_policy: dict[str, list[SolveRate]] = {}
    for rate in rates:
        by_policy.setdefault(rate.policy, []).append(rate.solve_rate)
    told = {}
    for policy, own in by_policy.items():
        never, always = sum(rate.rate == 0 for rate in own), sum(rate.rate == 1 for rate in own)
        whole = SolveRate(sum(rate.num_passed for rate in own), sum(rate.num_valid for rate in own))
        some = len(own) - never - always
        told[policy] = f"{len(own)} tasks, {never} never, {some} sometimes, {always} always; {whole.describe()}"
    return told


def rates_of(path: Path, policy: str, tasks: Collection[Task]) -> dict[str, SolveRate]:
    """Return task id -> rate of ``policy``, of the ``tasks`` as they were measured.

    Raises:
        InputError: the file is missing or has no rate of ``policy``.
    """
    rates = load_rates(path)
    if policy not in (known := {rate.policy for rate in rates}):
        has = f"it has those of {', '.join(sorted(known))}" if known else "make it with: repairgym tasks calibrate"
        raise InputError(f"{path} has no solve rates of the policy {policy!r}; {has}")
    own = {rate.task_id: rate for rate in rates if rate.policy == policy}
    same = (task for task in tasks if task.id in own and task.digest() == own[task.id].task_digest)
    return {task.id: own[task.id].solve_rate for task in same}

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from repairgym.cli.tasks import app
from repairgym.config.selection import TaskSelection
from repairgym.errors import ConfigError, InputError
from repairgym.records import Task
from repairgym.tasks.selection import select_tasks
from repairgym.tasks.solve_rates import (
    RATES_FILE,
    MeasuredRate,
    SolveRate,
    add_rates,
    count_levels,
    load_rates,
    measured,
    rates_of,
)
from repairgym.tasks.store import TaskStore
from repairgym.testing.scripted import scripted_task
from repairgym.training.group_sampling import reference_rewards


@pytest.fixture
def tasks() -> list[Task]:
    return [scripted_task().model_copy(update={"id": f"t{number}"}) for number in range(4)]


def rate(task: Task, policy: str, num_passed: int, num_valid: int = 8) -> MeasuredRate:
    return measured(task, policy, {"policy_digest": "d"}, SolveRate(num_passed, num_valid))


@pytest.fixture
def rates(tasks: list[Task], tmp_path: Path) -> Path:
    """Rates of two policies; the last task has changed since, and t2 has none by the base."""
    path = tmp_path / RATES_FILE
    changed = tasks[3].model_copy(update={"issue": "another issue"})
    add_rates(path, [rate(tasks[0], "base", 0), rate(tasks[1], "base", 2), rate(changed, "base", 4)])
    add_rates(path, [rate(task, "random", 8) for task in tasks])
    return path


@pytest.mark.parametrize(
    ("num_passed", "num_valid", "interval"),
    [(0, 10, (0.0, 0.2775)), (10, 10, (0.7225, 1.0)), (5, 10, (0.2366, 0.7634)), (1, 1, (0.2065, 1.0))],
)
def test_intervals_are_wilsons(num_passed: int, num_valid: int, interval: tuple[float, float]) -> None:
    assert SolveRate(num_passed, num_valid).interval == pytest.approx(interval, abs=2e-4)


def test_rates_of_a_policy_are_replaced_and_others_stay(rates: Path, tasks: list[Task]) -> None:
    add_rates(rates, [rate(tasks[0], "base", 8, 16)])
    counts = {(r.policy, r.task_id): (r.num_passed, r.num_samples) for r in load_rates(rates)}
    assert counts["base", "t0"] == (8, 16)
    assert counts["base", "t1"] == (2, 8)
    assert len(counts) == 7


def test_a_rate_counts_for_the_task_that_it_was_measured_on(rates: Path, tasks: list[Task]) -> None:
    assert rates_of(rates, "base", tasks) == {"t0": SolveRate(0, 8), "t1": SolveRate(2, 8)}
    with pytest.raises(InputError, match="it has those of base, random"):
        rates_of(rates, "rl", tasks)
    with pytest.raises(InputError, match="repairgym tasks calibrate"):
        rates_of(rates.parent / "none.jsonl", "rl", tasks)


def test_a_broken_file_is_an_error(rates: Path) -> None:
    rates.write_text('{"task_id": 1}\n')
    with pytest.raises(InputError, match="holds no solve rates"):
        load_rates(rates)


def test_a_selection_takes_tasks_by_their_rate(rates: Path, tasks: list[Task]) -> None:
    some = TaskSelection(solve_rates=str(rates), min_solve_rate=0.1, max_solve_rate=0.9)
    chosen = select_tasks(tasks, some)
    assert [task.id for task in chosen.tasks] == ["t1"]
    assert chosen.summary == "1 of 4 tasks (solve_rate=0.1..0.9 by base: 1)"
    never = TaskSelection(solve_rates=str(rates), max_solve_rate=0)
    assert [task.id for task in select_tasks(tasks, never).tasks] == ["t0"]
    with pytest.raises(ConfigError, match="before it there were: no value 2"):
        select_tasks(tasks, TaskSelection(solve_rates=str(rates), min_solve_rate=0.9))
    names = {TaskSelection().set_name, some.set_name, never.set_name}
    assert len(names) == 3


def test_bounds_without_a_file_are_refused() -> None:
    with pytest.raises(ValueError, match="names no file"):
        TaskSelection(max_solve_rate=0.5)
    with pytest.raises(ValueError, match="above"):
        TaskSelection(solve_rates="x", min_solve_rate=0.6, max_solve_rate=0.5)
    again = TaskSelection.model_validate(TaskSelection().model_dump())
    assert again == TaskSelection()


def test_the_curriculum_starts_from_the_rates_of_the_selection(rates: Path, tasks: list[Task]) -> None:
    assert reference_rewards(tasks, TaskSelection()) == {}
    rewards = reference_rewards(tasks, TaskSelection(solve_rates=str(rates)))
    assert rewards == {"t0": [0.0] * 8, "t1": [1.0] * 2 + [0.0] * 6}


def test_stats_and_show_tell_the_rates(rates: Path, tasks: list[Task]) -> None:
    TaskStore(rates.parent).save(tasks, {}, {})
    told = count_levels(load_rates(rates))
    assert told["base"].startswith("3 tasks, 1 never, 2 sometimes, 0 always; 0.25 (")
    stats = CliRunner().invoke(app, ["stats", str(rates.parent)]).output
    assert f"solve rates by base: {told['base']}" in stats
    shown = CliRunner().invoke(app, ["show", str(rates.parent), "t3"]).output
    assert "base 0.50 (0.22 to 0.78, 4 of 8), measured before the task changed" in shown

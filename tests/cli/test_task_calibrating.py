"""`repairgym tasks calibrate`: rates of stored and of new episodes, next to the tasks."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from repairgym.cli.main import create_app
from repairgym.config.selection import TaskSelection
from repairgym.records import VerdictKind
from repairgym.rollout.jobs import make_groups
from repairgym.rollout.store import RunStore
from repairgym.tasks.solve_rates import RATES_FILE, load_rates
from repairgym.tasks.store import TaskStore

PASSED, FAILED, INVALID = VerdictKind.PASSED, VerdictKind.FAILED, VerdictKind.INVALID


def calibrate(*arguments: object) -> Result:
    return CliRunner().invoke(create_app(), ["tasks", "calibrate", *map(str, arguments)])


@pytest.fixture
def run(task_folder, trajectory_maker, tmp_path) -> Path:
    """A run with all episodes of two scripted policies, as an interrupted calibration leaves them."""
    kinds = {
        "random": {"tiny-1": [FAILED, FAILED], "to-validate": [PASSED, FAILED]},
        "oracle": {"tiny-1": [INVALID, INVALID], "to-validate": [PASSED, INVALID]},
    }
    folder = tmp_path / "run"
    folder.mkdir()
    with RunStore.create(folder / "run.db") as store:
        for policy, by_task in kinds.items():
            phase = f"eval/{policy}/{TaskSelection().set_name}"
            for job in make_groups(phase, 0, list(by_task), 2, 0):
                number = int(job.trajectory_id.rpartition("#")[2])
                made = trajectory_maker(
                    job.trajectory_id, job.task_id, kind=by_task[job.task_id][number], group_id=job.group_id
                )
                store.add_trajectory(made, phase=phase, step=0, split="train")
    return folder


def test_rates_are_counted_by_task_and_policy_and_tasks_stay(task_folder, run):
    before = (task_folder / "tasks.jsonl").read_bytes()
    policies = ("--policy", "random", "--policy", "oracle")
    done = calibrate(task_folder, run, *policies, "num_samples=2", "rollout.num_workers=1")
    assert done.exit_code == 0, done.output
    assert "random: 2 tasks, 1 never, 1 sometimes, 0 always; 0.25 (" in done.output
    rates = {(rate.policy, rate.task_id): rate for rate in load_rates(task_folder / RATES_FILE)}
    counts = {key: (rate.num_passed, rate.num_samples) for key, rate in rates.items()}
    assert counts == {
        ("random", "tiny-1"): (0, 2),
        ("random", "to-validate"): (1, 2),
        ("oracle", "to-validate"): (1, 1),  # an episode without a verdict counts for nothing
    }
    digests = {task.id: task.digest() for task in TaskStore(task_folder).load()}
    assert all(rate.task_digest == digests[rate.task_id] for rate in rates.values())
    assert (task_folder / "tasks.jsonl").read_bytes() == before
    shown = CliRunner().invoke(create_app(), ["tasks", "show", str(task_folder), "to-validate"]).output
    assert "oracle 1.00 (0.21 to 1.00, 1 of 1)" in shown


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--policy", "nobody"), "got policy 'nobody'"),
        (("num_samples=0",), "num_samples"),
        (("nonsense=1",), "nonsense"),
    ],
)
def test_what_cannot_be_measured_is_an_error(task_folder, tmp_path, arguments, message):
    done = calibrate(task_folder, tmp_path / "new", *arguments)
    assert done.exit_code != 0
    assert message in " ".join(done.output.split())
    assert not (task_folder / RATES_FILE).exists()


def test_a_folder_without_tasks_is_an_error(tmp_path):
    done = calibrate(tmp_path, tmp_path / "new")
    assert done.exit_code != 0
    assert not (tmp_path / "new").exists()

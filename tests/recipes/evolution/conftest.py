"""Tasks of the tiny package, and runs on them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from tests.conftest import make_trajectory
from tests.tasks.conftest import built as built
from tests.tasks.conftest import layers as layers
from tests.tasks.conftest import sdists as sdists
from tests.tasks.conftest import seeded_layers as seeded_layers
from tests.tasks.conftest import tinycalc as tinycalc
from tests.tasks.conftest import write_config as write_config

from repairgym.records import Task, Verdict, VerdictKind
from repairgym.rollout.store import RunStore

Episode = tuple[Task, VerdictKind, dict[str, str | None]]


@pytest.fixture(scope="session")
def make_run(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Makes a run folder of episodes: task, verdict, changed files."""

    def make(*episodes: Episode) -> Path:
        folder = tmp_path_factory.mktemp("run")
        with RunStore.create(folder / "run.db") as store:
            for number, (task, kind, files) in enumerate(episodes):
                made = make_trajectory(f"t-{number}", task.id, group_id=task.id, seed=number)
                verdict = Verdict(kind=kind, reason=kind.value, grader_version="1")
                made = replace(made, final_files=files, verdict=verdict)
                store.add_trajectory(made, phase="rl", step=0, split="train")
        return folder

    return make

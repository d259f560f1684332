"""RFT samples from, and the judge is, the shipped model behind a running `repairgym serve`; tasks are real."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from repairgym.inference.loading import load_model, shipped_base
from repairgym.records import VerdictKind
from repairgym.rollout.store import RunStore

pytestmark = [pytest.mark.network, pytest.mark.slow]
REPAIRGYM = [sys.executable, "-c", "import sys; from repairgym.cli.main import main; main(sys.argv[1:])"]
SELECTED = ("rollout.num_workers=1", "seed=0")


def run(*command: str | Path) -> str:
    done = subprocess.run([*REPAIRGYM, *map(str, command)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("served") / "tasks"
    run("tasks", "build", folder, 'packages=["funcy"]', 'sources=["mutations"]', "mutations.num_per_package=6")
    return folder


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    command = [*REPAIRGYM, "serve", "--policy", "base", "port=0", "engine.max_len_tokens=4096"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            yield server.stdout.readline().split()[3]
        finally:
            server.terminate()


def test_rft_samples_from_the_server_and_learns(tasks: Path, url: str, tmp_path: Path) -> None:
    said = run(
        "train", "rft", tmp_path / "run", "base", "--tasks", tasks, "--preset", "demo_rft", *SELECTED, "sampler=vllm",
        f"endpoint.base_url={url}", "endpoint.model=base", "collect.num_samples=8", "rft.batch_size=4",
    )  # fmt: skip
    assert "requests (no errors)" in said
    with RunStore.open(tmp_path / "run" / "run.db", is_read_only=True) as store:
        rows = list(store.rows(phase="rollout"))
        kept = dict(store.metrics("rollout", "rft/num_kept"))
    assert VerdictKind.INVALID not in {row.verdict for row in rows}
    assert kept[0] > 0
    weights = [load_model(folder).state_dict() for folder in (shipped_base(), tmp_path / "run/checkpoints/rft")]
    assert any((weights[0][name] != weights[1][name]).any() for name in weights[0])


def test_the_judge_behind_the_server_is_asked_about_every_pass(tasks: Path, url: str, tmp_path: Path) -> None:
    """The shipped model cannot answer in the judge's form, so that no pass stays one, and none becomes a failure."""
    run(
        "rollout", tasks, tmp_path / "run", "--policy", "oracle", *SELECTED, "num_samples=1", "select.splits=train",
        "rollout.grading.judge.is_enabled=true", f"rollout.grading.judge.endpoint.base_url={url}",
        "rollout.grading.judge.endpoint.model=base", "rollout.grading.judge.max_attempts=2",
        "rollout.grading.judge.max_reply_tokens=64",
    )  # fmt: skip
    with RunStore.open(tmp_path / "run" / "run.db", is_read_only=True) as store:
        verdicts = [trajectory.verdict for trajectory in store.trajectories(phase="rollout")]
    assert {verdict.kind for verdict in verdicts} == {VerdictKind.INVALID}
    assert all("the judge base did not answer 2 questions" in verdict.reason for verdict in verdicts)


def test_an_evaluation_of_real_tasks_ends_with_rate_interval_and_next_command(tasks: Path, tmp_path: Path) -> None:
    said = run("eval", "run", tasks, tmp_path / "run", "--policy", "oracle", *SELECTED, "select.splits=train")
    rate, following = (line for line in said.splitlines() if line.startswith(("oracle on ", "next: ")))
    assert ": Pass@1 100.0 %, 95 % interval " in rate
    assert following.startswith("next: repairgym view ")

"""TRL's own trainer on our episodes: rewards are verdicts, trouble moves no weight, three real steps on real tasks."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

from repairgym.bridges.trl.episodes import Episodes, open_episodes, verdict_reward
from repairgym.config.models import EngineConfig
from repairgym.config.pipeline import PipelineConfig
from repairgym.config.rollout import RolloutConfig
from repairgym.errors import InputError
from repairgym.inference.loading import load_tokenizer, shipped_base
from repairgym.records import Task, TestOutcome, TestRequest, TestResult, TestRun
from repairgym.tasks.build.validation import TaskLayers
from repairgym.testing.scripted import Files, ScriptedBackend

pytestmark = pytest.mark.trl
ROOT = Path(__file__).resolve().parents[3]
ROLLOUT = RolloutConfig(
    pipeline=PipelineConfig(max_len_tokens=400, max_turns=4, max_action_tokens=24),
    engine=EngineConfig(num_slots=16, max_len_tokens=400),
    max_attempts=1,
    backoff_s=0.0,
)


def is_any_repair(files: Files, request: TestRequest) -> TestRun:
    """Passes for every edit that keeps the function: the shipped base makes one often and not always."""
    text = files.get("m.py") or ""
    is_passed = text != "def f(a, b):\n    return a < b\n" and text.startswith("def f(a, b):")
    outcome = TestOutcome.PASSED if is_passed else TestOutcome.FAILED
    return TestRun(results={name: TestResult(outcome=outcome) for name in request.test_ids}, exit_status=0)


def train(task: Task, folder: Path, out: Path, num_failures: int, steps: int = 3):
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    base = shipped_base()
    tasks = [task.model_copy(update={"id": f"train-{number}"}) for number in range(2)]
    backend = ScriptedBackend(is_any_repair, num_failures)
    with Episodes(tasks, load_tokenizer(base), ROLLOUT, backend, lambda _: TaskLayers(folder, folder)) as episodes:
        trainer = GRPOTrainer(
            model=str(base),
            processing_class=load_tokenizer(base),
            train_dataset=Dataset.from_list(episodes.dataset_rows()),
            rollout_func=episodes.rollout,
            reward_funcs=verdict_reward,
            args=GRPOConfig(
                output_dir=str(out), use_cpu=True, bf16=False, max_steps=steps, per_device_train_batch_size=16,
                num_generations=8, max_completion_length=400, learning_rate=1e-4, logging_steps=1, report_to="none",
                save_strategy="no", disable_tqdm=True,
            ),
        )  # fmt: skip
        before = {name: tensor.clone() for name, tensor in trainer.model.state_dict().items()}
        trainer.train()
    moved = max(float((tensor - before[name]).abs().max()) for name, tensor in trainer.model.state_dict().items())
    return [entry for entry in trainer.state.log_history if "reward" in entry], moved


def test_three_steps_change_the_weights(task: Task, tmp_path: Path) -> None:
    steps, moved = train(task, tmp_path, tmp_path / "out", num_failures=0)
    assert len(steps) == 3
    assert all(math.isfinite(step["loss"]) for step in steps)
    assert all(step["reward"] == pytest.approx(step["verdicts/passed"]) for step in steps)
    assert any(step["reward_std"] > 0 for step in steps), "all rewards are equal: the test shows nothing"
    assert moved > 0


def test_invalid_episodes_are_left_out_of_the_reward(task: Task, tmp_path: Path) -> None:
    steps, _ = train(task, tmp_path, tmp_path / "out", num_failures=12, steps=1)
    invalid = steps[0]["verdicts/invalid"]
    assert 0 < invalid < 1
    assert math.isfinite(steps[0]["loss"])
    # The mean reward is that of the valid episodes: an invalid one is no 0.
    assert steps[0]["reward"] == pytest.approx(steps[0]["verdicts/passed"] / (1 - invalid))


def test_the_folders_of_a_user_are_checked(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="repairgym tasks build"):
        open_episodes(tmp_path / "none", shipped_base())


@pytest.mark.network
def test_the_example_trains_on_real_tasks(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "TRL_EXPERIMENTAL_SILENCE": "1"}
    program = "import sys; from repairgym.cli.main import main; main(sys.argv[1:])"
    build = ('packages=["funcy"]', 'sources=["mutations"]', "mutations.num_per_package=8", "num_workers=1")
    run = [sys.executable, "-c", program, "tasks", "build", str(tmp_path / "tasks"), *build]
    subprocess.run(run, check=True, env=environment)
    example = [sys.executable, str(ROOT / "examples" / "trl_grpo.py"), str(tmp_path / "tasks"), str(tmp_path / "out")]
    few = ["--group-size", "4", "pipeline.max_turns=12"]
    done = subprocess.run([*example, *few, "--cpu", "--steps", "3"], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "step 3: " in done.stdout
    assert "weights changed by at most" in done.stdout

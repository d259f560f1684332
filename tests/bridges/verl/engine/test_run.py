"""verl on Ray: two FSDP2 processes make three GRPO steps on our episodes; what they make is in run.db."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from mendwright.models.loading import load_model
from mendwright.rollout.store import RunStore

pytestmark = pytest.mark.verl
ROOT = Path(__file__).parents[4]
NUM_STEPS, NUM_GROUPS, GROUP_SIZE = 3, 4, 4
OVERRIDES = [
    f"rl.num_groups={NUM_GROUPS}",
    f"rl.num_groups_sampled={NUM_GROUPS}",
    "rl.max_refills=0",
    f"rl.max_iterations={NUM_STEPS}",
    f"rl.dapo.group_size={GROUP_SIZE}",
    f"rl.dapo.batch_size={NUM_GROUPS * GROUP_SIZE}",
    "rl.dapo.loss.type=grpo",
    "rl.dapo.is_error_masked=true",
    "rl.dapo.negative_weight=0.3",
    "rl.dapo.optimizer.learning_rate=1e-4",
    # Whatever the groups' rewards are, their episodes differ in length, so that there is something to learn.
    "rl.reward.type=step_penalty",
    "rl.reward.threshold_turns=1",
    "rollout.num_workers=1",
    "rollout.max_in_flight=8",
    "rollout.pipeline.max_turns=6",
    "rollout.engine.num_slots=16",
]


def train(tasks: Path, run: Path, base: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from mendwright.cli.main import main; main()", "train", "verl"]
    machine = ["--machine", str(ROOT / "configs/verl_cpu.toml")]
    return subprocess.run(
        [*command, str(tasks), str(run), str(base), *machine, *OVERRIDES],
        capture_output=True,
        text=True,
        env=os.environ,
    )


def test_three_steps(tasks, base, tmp_path):
    run = tmp_path / "run"
    done = train(tasks, run, base)
    assert done.returncode == 0, done.stdout + done.stderr
    with RunStore.open(run / "run.db", is_read_only=True) as store:
        rows = store.rows(phase="dapo")
        assert [len([row for row in rows if row.step == step]) for step in range(NUM_STEPS)] == [
            NUM_GROUPS * GROUP_SIZE
        ] * NUM_STEPS
        for step in range(NUM_STEPS):
            for trajectory in store.trajectories(phase="dapo", step=step):
                versions = trajectory.ledger.policy_version[trajectory.ledger.is_action]
                assert set(versions) <= {step}, "sampled with the weights after as many updates"
        groups = [group for step in range(NUM_STEPS) for group in store.groups(phase="dapo", step=step)]
        assert len(groups) == NUM_STEPS * NUM_GROUPS
        assert any(group.status == "kept" for group in groups)
        metrics = {name: dict(store.metrics("dapo", name)) for name in store.metric_names("dapo")}
        (phase,) = [row for row in store.phases() if row.name == "dapo"]
    assert phase.status == "done"
    for name in ("train/loss", "optim/grad_norm", "time/rollout_s", "time/update_s", "rollout/reward_mean"):
        assert len(metrics[name]) == NUM_STEPS, name
    assert max(metrics["optim/grad_norm"].values()) > 0.0
    assert metrics["rollout/weight_lag"] == dict.fromkeys(range(NUM_STEPS), 0.0)
    # Each iteration is one optimiser step, so this compares the sampler's log-probabilities with the learner's.
    assert max(map(abs, metrics["verl/actor/ppo_kl"].values())) < 1e-4
    before, after = load_model(base).state_dict(), load_model(run / "checkpoints" / "dapo").state_dict()
    assert set(before) == set(after)
    moved = sum(not torch.equal(tensor.float(), after[name].float()) for name, tensor in before.items())
    assert moved > len(before) // 2

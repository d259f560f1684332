"""verl on Ray: two FSDP2 processes make three GRPO steps on our episodes, as our learner would on the same episodes."""

from __future__ import annotations

import os
import subprocess
import sys
from math import sqrt
from pathlib import Path

import pytest
import torch
from transformers import PreTrainedModel

from repairgym.config.loading import load_config
from repairgym.config.recipes import RlCommandConfig
from repairgym.inference.loading import load_model
from repairgym.learning.rewards import make_shaping
from repairgym.learning.rl import PolicyTrainer
from repairgym.rollout.store import RunStore
from repairgym.tasks.store import TaskStore
from repairgym.training.rollout_batch import advantages_of, make_trajectory_groups, samples_of

pytestmark = pytest.mark.verl
ROOT = Path(__file__).parents[4]
NUM_STEPS, NUM_GROUPS, GROUP_SIZE = 3, 4, 4
OVERRIDES = [
    f"rl.num_groups={NUM_GROUPS}",
    f"rl.num_groups_sampled={NUM_GROUPS}",
    "rl.max_refills=0",
    f"rl.max_iterations={NUM_STEPS}",
    f"rl.algorithm.group_size={GROUP_SIZE}",
    f"rl.algorithm.batch_size={NUM_GROUPS * GROUP_SIZE}",
    "rl.algorithm.loss.type=grpo",
    "rl.algorithm.loss.denominator=token",
    "rl.algorithm.is_error_masked=true",
    "rl.algorithm.negative_weight=0.3",
    # AdamW with so large an eps moves along its mean gradient, where its usual step is hardly more than signs: two
    # learners are then compared by what they computed, not by what they rounded.
    "rl.algorithm.optimizer.learning_rate=0.001",
    "rl.algorithm.optimizer.eps=1.0",
    "rl.algorithm.optimizer.weight_decay=0.0",
    "rl.algorithm.optimizer.num_warmup_steps=0",
    "rl.algorithm.optimizer.max_grad_norm=100.0",
    # Whatever the groups' rewards are, their episodes differ in length, so that there is something to learn.
    "rl.reward.type=step_penalty",
    "rl.reward.threshold_turns=1",
    "rollout.num_workers=1",
    "rollout.max_in_flight=8",
    "rollout.pipeline.max_turns=6",
    "rollout.engine.num_slots=16",
]


def train(tasks: Path, run: Path, base: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from repairgym.cli.main import main; main()", "train", "verl"]
    machine = ["--machine", str(ROOT / "src/repairgym/data/presets/verl_cpu.toml")]
    return subprocess.run(
        [*command, str(tasks), str(run), str(base), *machine, *OVERRIDES],
        capture_output=True,
        text=True,
        env=os.environ,
    )


def weights(model: PreTrainedModel) -> torch.Tensor:
    """All of them, one after the other; float64."""
    return torch.cat([tensor.detach().double().flatten() for _, tensor in sorted(model.named_parameters())])


def learn_again(store: RunStore, tasks: Path, base: Path) -> tuple[torch.Tensor, dict[int, float]]:
    """Our learner on the episodes that verl learned from: new weights, and gradient norms of the steps that compare."""
    config = load_config(RlCommandConfig, None, OVERRIDES)
    shaping = make_shaping(config.rl.reward, config.rollout.pipeline.max_episode_turns)
    known = {task.id: task for task in TaskStore(tasks).load()}
    model = load_model(base)
    trainer = PolicyTrainer(model, config.rl.algorithm)
    norms = {}
    for step in range(NUM_STEPS):
        trajectories = store.trajectories(phase="rl", step=step)
        groups = make_trajectory_groups(trajectories, lambda members: shaping(known[members[0].task_id], members))
        samples = samples_of(groups, advantages_of(groups, config.rl.algorithm), config.rl.algorithm)
        metrics = trainer.update(samples)
        # Ours leaves members at exactly their group's mean out of the count of tokens, verl does not.
        if metrics and metrics["train/num_samples"] == len(samples):
            norms[step] = metrics["optim/grad_norm"]
    return weights(model), norms


def test_three_steps(tasks, base, tmp_path):
    run = tmp_path / "run"
    done = train(tasks, run, base)
    assert done.returncode == 0, done.stdout + done.stderr
    with RunStore.open(run / "run.db", is_read_only=True) as store:
        rows = store.rows(phase="rl")
        assert [len([row for row in rows if row.step == step]) for step in range(NUM_STEPS)] == [
            NUM_GROUPS * GROUP_SIZE
        ] * NUM_STEPS
        for step in range(NUM_STEPS):
            for trajectory in store.trajectories(phase="rl", step=step):
                versions = trajectory.ledger.policy_version[trajectory.ledger.is_action]
                assert set(versions) <= {step}, "sampled with the weights after as many updates"
        groups = [group for step in range(NUM_STEPS) for group in store.groups(phase="rl", step=step)]
        assert len(groups) == NUM_STEPS * NUM_GROUPS
        assert any(group.status == "kept" for group in groups)
        metrics = {name: dict(store.metrics("rl", name)) for name in store.metric_names("rl")}
        (phase,) = [row for row in store.phases() if row.name == "rl"]
        again, norms = learn_again(store, tasks, base)
    assert phase.status == "done"
    for name in ("train/loss", "optim/grad_norm", "time/rollout_s", "time/update_s", "rollout/reward_mean"):
        assert len(metrics[name]) == NUM_STEPS, name
    assert max(metrics["optim/grad_norm"].values()) > 0.0
    assert metrics["rollout/weight_lag"] == dict.fromkeys(range(NUM_STEPS), 0.0)
    # Each iteration is one optimizer step, so this compares the sampler's log-probabilities with the learner's.
    assert max(map(abs, metrics["verl/actor/ppo_kl"].values())) < 1e-4
    # On the same episodes ours goes the same way. verl divides by the sample's deviation, ours by the population's.
    for step, norm in norms.items():
        assert metrics["optim/grad_norm"][step] / norm == pytest.approx(sqrt(1 - 1 / GROUP_SIZE), rel=0.02)
    start, end = load_model(base), load_model(run / "checkpoints" / "rl")
    old, new = start.state_dict(), end.state_dict()
    assert set(old) == set(new)
    assert sum(not torch.equal(tensor.float(), new[name].float()) for name, tensor in old.items()) > len(old) // 2
    before, after = weights(start), weights(end)
    assert torch.nn.functional.cosine_similarity(again - before, after - before, dim=0) > 0.99

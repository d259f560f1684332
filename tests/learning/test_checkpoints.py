"""Training state: resumed runs equal unbroken ones."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import PreTrainedModel

from repairgym.config.learning import AlgorithmConfig, ComputeConfig, OptimizerConfig, SftConfig
from repairgym.config.loading import load_config
from repairgym.config.models import ModelConfig
from repairgym.errors import InputError
from repairgym.inference.loading import create_model
from repairgym.learning.checkpoints import STATE_FILE, load_training_state, save_training_state
from repairgym.learning.learner import Learner
from repairgym.learning.rl import PolicyTrainer
from repairgym.learning.samples import Sample, text_sample
from repairgym.learning.sft import SftTrainer

MakeModel = Callable[[int], PreTrainedModel]
FAST = OptimizerConfig(learning_rate=1e-2)
TINY_SIZES = {
    "vocab_size": 120,
    "hidden_size": 32,
    "num_layers": 2,
    "num_heads": 4,
    "num_kv_heads": 2,
    "head_dim": 8,
    "intermediate_size": 64,
}


TEXTS = [text_sample([(start + step * 7) % 120 for step in range(20)]) for start in range(12)]


def weights(model: PreTrainedModel) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def assert_equal(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> None:
    for name, tensor in left.items():
        assert torch.equal(tensor, right[name]), name


@pytest.mark.parametrize("kind", ["adamw", "muon"])
def test_a_resumed_run_ends_with_the_weights_of_an_unbroken_one(
    make_model: MakeModel, tmp_path: Path, kind: str
) -> None:
    config = SftConfig(
        optimizer=OptimizerConfig(type=kind, learning_rate=1e-2, num_warmup_steps=2, schedule="cosine"),
        batch_size=5,
        num_epochs=3,
    )
    unbroken = SftTrainer.for_samples(make_model(0), config, len(TEXTS))
    assert len(list(unbroken.fit(TEXTS))) == 9

    killed = SftTrainer.for_samples(make_model(0), config, len(TEXTS))
    for step, _ in enumerate(killed.fit(TEXTS)):
        if step == 4:
            save_training_state(killed.learner, tmp_path / "state", {"iteration": 4})
            drawn = torch.rand(3)
        if step == 6:
            break
    torch.manual_seed(99)
    resumed = SftTrainer.for_samples(make_model(1), config, len(TEXTS))
    assert load_training_state(resumed.learner, tmp_path / "state") == {"iteration": 4}
    assert torch.equal(torch.rand(3), drawn)
    assert len(list(resumed.fit(TEXTS))) == 4
    assert_equal(weights(resumed.learner.model), weights(unbroken.learner.model))


def test_states_that_cannot_be_used(make_model: MakeModel, tmp_path: Path) -> None:
    learner = Learner(make_model(0), FAST, ComputeConfig())
    with pytest.raises(InputError, match=r"training/state\.pt"):
        load_training_state(learner, tmp_path)
    save_training_state(learner, tmp_path / "s")
    before = weights(learner.model)
    wider = create_model(ModelConfig(**{**TINY_SIZES, "hidden_size": 48}))
    deeper = create_model(ModelConfig(**{**TINY_SIZES, "num_layers": 3}))
    for other, said in ((wider, "of shape"), (deeper, "missing")):
        with pytest.raises(InputError, match=f"another model.*{said}"):
            load_training_state(Learner(other, FAST, ComputeConfig()), tmp_path / "s")
    muon = Learner(make_model(0), OptimizerConfig(type="muon"), ComputeConfig())
    with pytest.raises(InputError, match="another optimizer"):
        load_training_state(muon, tmp_path / "s")
    # A state of before the updates of each parameter were in its summary.
    shutil.copytree(tmp_path / "s", tmp_path / "old")
    torch.save(torch.load(tmp_path / "s" / STATE_FILE) | {"optimizer": {}}, tmp_path / "old" / STATE_FILE)
    with pytest.raises(InputError, match="another optimizer"):
        load_training_state(learner, tmp_path / "old")
    next((tmp_path / "s" / "training").glob("*.distcp")).unlink()
    with pytest.raises(InputError, match="not complete"):
        load_training_state(learner, tmp_path / "s")
    assert_equal(weights(learner.model), before)


MakeModel = Callable[[int], PreTrainedModel]
MakeGroup = Callable[..., list[Sample]]
PPO = ["loss.type=ppo", "advantage.type=gae"]


def config_of(*overrides: str) -> AlgorithmConfig:
    return load_config(
        AlgorithmConfig, None, ["optimizer.learning_rate=0.01", "optimizer.max_grad_norm=1e9", *overrides]
    )


def trainer_of(make_model: MakeModel, *overrides: str) -> PolicyTrainer:
    return PolicyTrainer(make_model(0), config_of(*overrides), reference=make_model(1))


def test_a_value_head_resumes_with_its_run_only(make_model: MakeModel, samples: list[Sample], tmp_path: Path) -> None:
    whole = trainer_of(make_model, *PPO)
    whole.update(samples)
    save_training_state(whole.learner, tmp_path / "state")
    resumed = trainer_of(make_model, *PPO)
    load_training_state(resumed.learner, tmp_path / "state")
    want, got = whole.update(samples), resumed.update(samples)
    assert got["train/loss"] == want["train/loss"]
    assert got["optim/grad_norm"] == want["optim/grad_norm"]
    with pytest.raises(InputError, match="value head"):
        load_training_state(trainer_of(make_model).learner, tmp_path / "state")

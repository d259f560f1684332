"""Perturbation of weights: what a plateau is, what is drawn, dormant units, and a run that is killed in between."""

from __future__ import annotations

import pytest
import torch

from repairgym.config.exploration import PerturbationConfig
from repairgym.config.learning import AlgorithmConfig, ComputeConfig, OptimizerConfig
from repairgym.config.loading import load_config
from repairgym.config.recipes import RlCommandConfig, RlConfig
from repairgym.errors import ConfigError
from repairgym.inference.loading import load_model, load_tokenizer, save_checkpoint
from repairgym.learning.learner import Learner
from repairgym.learning.losses import sft_loss
from repairgym.learning.samples import text_sample
from repairgym.training.perturbation import KEPT_SHARE, dormant_share, is_plateau, perturb
from repairgym.training.rl_loop import run_rl_stage

SAMPLE = text_sample(list(range(5, 40)))


def learner_of(folder) -> Learner:
    return Learner(load_model(folder), OptimizerConfig(learning_rate=1e-2), ComputeConfig())


@pytest.mark.parametrize(
    ("scores", "step", "done", "expected"),
    [
        ([(0, 0.5), (2, 0.4), (4, 0.5)], 4, [], True),  # two without a better one; equal is not better
        ([(0, 0.5), (2, 0.4), (4, 0.6)], 4, [], False),
        ([(0, 0.5), (2, 0.4)], 2, [], False),
        ([(0, 0.5), (2, 0.4), (4, 0.5)], 5, [], False),  # no validation before this iteration
        ([(0, 0.5), (2, 0.4), (4, 0.5), (6, 0.9)], 4, [], True),  # what came later is not known yet
        ([(0, 0.5), (2, 0.4), (4, 0.5), (6, 0.5)], 6, [4], False),
        ([(0, 0.5), (2, 0.4), (4, 0.5), (6, 0.5), (8, 0.1)], 8, [4], True),
        ([(0, 0.5), (2, 0.4), (4, 0.5)], 4, [4], True),  # the update is made again after a kill
        ([], 0, [], False),
    ],
)
def test_a_plateau_is_so_many_validations_without_a_better_one(scores, step, done, expected):
    assert is_plateau(scores, step, done, patience=2) is expected


def test_weights_are_drawn_around_the_checkpoints_and_the_optimizer_begins_again(base, tmp_path):
    tokenizer, names = load_tokenizer(base), [tmp_path / "low", tmp_path / "high"]
    for folder, value in zip(names, (1.0, 3.0), strict=True):
        model = load_model(base)
        for parameter in model.parameters():
            parameter.data.fill_(value)
        save_checkpoint(model, tokenizer, folder)
    learner = learner_of(base)
    learner.step([SAMPLE], sft_loss)
    before = {name: parameter.detach().clone() for name, parameter in learner.model.named_parameters()}
    assert learner.optimizer.state_tensors()
    perturb(learner, names, 1.0, torch.Generator().manual_seed(0))
    assert all(torch.equal(before[name], parameter) for name, parameter in learner.model.named_parameters())
    assert learner.optimizer.state_tensors() == {}
    assert learner.optimizer.num_done == 1
    perturb(learner, names, 0.25, torch.Generator().manual_seed(0))
    drawn = torch.cat(
        [((parameter - 0.25 * before[name]) / 0.75).flatten() for name, parameter in learner.model.named_parameters()]
    )
    assert float(drawn.detach().mean()) == pytest.approx(2.0, abs=0.05)
    assert float(drawn.detach().std()) == pytest.approx(1.0, abs=0.05)
    again = learner_of(base)
    for name, parameter in again.model.named_parameters():
        parameter.data.copy_(before[name])
    perturb(again, names, 0.25, torch.Generator().manual_seed(0))
    pairs = zip(learner.model.parameters(), again.model.parameters(), strict=True)
    assert all(torch.equal(left, right) for left, right in pairs)
    learner.step([SAMPLE], sft_loss)
    assert learner.optimizer.state_tensors()


def test_dormant_units_are_those_that_hardly_ever_act(base):
    learner = learner_of(base)
    assert dormant_share(learner, [], 0.025) == 0.0
    untouched = dormant_share(learner, [SAMPLE], 1e-9)
    layers = [module for name, module in learner.model.named_modules() if name.endswith("mlp.up_proj")]
    for layer in layers:
        layer.weight.data[: layer.out_features // 4] = 0.0
    share = sum(layer.out_features // 4 for layer in layers) / sum(layer.out_features for layer in layers)
    assert untouched == 0.0
    assert dormant_share(learner, [SAMPLE], 1e-9) == pytest.approx(share)
    assert dormant_share(learner, [SAMPLE, SAMPLE], 1e6) == 1.0
    learner.model.model.layers = torch.nn.ModuleList()
    with pytest.raises(ConfigError, match="down_proj"):
        dormant_share(learner, [SAMPLE], 0.025)


RL = RlConfig(
    algorithm=AlgorithmConfig(group_size=4, batch_size=16, optimizer=OptimizerConfig(learning_rate=1e-3)),
    perturbation=PerturbationConfig(num_best=2, patience=1),
    num_groups=2,
    num_groups_sampled=2,
    max_refills=0,
    max_iterations=3,
    validation_every=1,
)


class Killed(Exception):
    """The process has gone."""


def test_a_run_that_is_killed_behind_the_perturbation_ends_like_an_unbroken_one(tmp_path, open_run):
    """The tiny base solves nothing, so every validation is a plateau: iterations 1 and 2 are perturbed."""
    for name in ("whole", "killed"):
        (tmp_path / name).mkdir()
    whole = open_run(tmp_path / "whole")
    run_rl_stage(whole, RL, "base", "rl")
    kept = whole.store.metrics("rl", KEPT_SHARE)
    assert [step for step, _ in kept] == [1, 2]
    assert all(0.6 <= share <= 0.9 for _, share in kept)
    assert len(whole.store.metrics("rl", "policy/dormant_share")) == 3

    def kill(phase: str, done: int, total: int, detail: str) -> None:
        if "drawn around" in detail:
            raise Killed

    run = open_run(tmp_path / "killed")
    run.progress = kill
    with pytest.raises(Killed):
        run_rl_stage(run, RL, "base", "rl")
    resumed = open_run(tmp_path / "killed")
    run_rl_stage(resumed, RL, "base", "rl")
    assert resumed.store.metrics("rl", KEPT_SHARE) == kept
    states = [load_model(it.checkpoint("rl")).state_dict() for it in (whole, resumed)]
    start = load_model(whole.checkpoint("base")).state_dict()
    assert all(torch.equal(states[0][name], states[1][name]) for name in start)
    assert any(not torch.equal(states[0][name], start[name]) for name in start)


def test_a_plateau_that_nobody_can_see_is_an_error(tmp_path, open_run):
    for wrong in ("rl.validation_every=0", "rl.algorithm.trained.type=lora"):
        with pytest.raises(ConfigError, match="perturbation"):
            load_config(RlCommandConfig, None, ["rl.perturbation.type=best_checkpoints", wrong])
    with pytest.raises(ConfigError, match="min_kept"):
        load_config(RlCommandConfig, None, ["rl.perturbation.type=best_checkpoints", "rl.perturbation.min_kept=1.0"])
    run = open_run(tmp_path)
    run.tasks = {name: task for name, task in run.tasks.items() if task.split != "validation"}
    with pytest.raises(ConfigError, match="needs validation tasks"):
        run_rl_stage(run, RL, "base", "rl")

"""Every generated key is one of verl's, every section makes verl's own dataclass, and verl's own check passes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from repairgym.bridges.verl.config_files import Stage, VerlPaths, paths_of, run_settings, write_stage
from repairgym.bridges.verl.training import stages_of
from repairgym.bridges.verl.translation import translate
from repairgym.cli.verl import load_verl_plan

pytestmark = pytest.mark.verl
CONFIGS = Path(__file__).parents[4] / "src/repairgym/data/presets"
FREE = (
    # Mappings that verl's YAML leaves empty, or fields of its dataclasses that the YAML does not list.
    "actor_rollout_ref.rollout.custom",
    "actor_rollout_ref.actor.fsdp_config.mixed_precision",
    "actor_rollout_ref.ref.fsdp_config.mixed_precision",
    "actor_rollout_ref.actor.optim.override_optimizer_config",
    "actor_rollout_ref.model.override_config",
    "trainer.v1.sampler.sampler_kwargs",
    "ray_kwargs.ray_init",
    "critic.enable",
)
PAPERS = [
    ("paper_a/distill_then_grpo.toml", "distill_then_grpo", "paper_a/verl.toml"),
    ("paper_b/two_stage.toml", "dapo_two_stage", "paper_b/verl.toml"),
    (None, "rl", "verl_cpu.toml"),
]
PARTS = [
    ['rl.algorithm.kl.type="k3"', 'rl.algorithm.correction.type="mask"', 'rl.algorithm.trained.type="lora"'],
    [
        'rl.algorithm.loss.type="dr_grpo"',
        'rl.algorithm.advantage.type="rloo"',
        'rl.algorithm.correction.type="truncate"',
    ],
]
"""What the papers' recipes do not use."""


def cases():
    for source, recipe, machine in PAPERS:
        overrides = [] if source else ["rl.algorithm.batch_size=130"]
        plan = load_verl_plan(recipe, [CONFIGS / source] if source else None, CONFIGS / machine, overrides)
        for stage in stages_of(plan.config, plan.comments):
            yield pytest.param(stage, plan.machine, id=f"{recipe}-{stage.phase}")


@pytest.fixture
def paths(tmp_path, base) -> VerlPaths:
    return replace(paths_of(tmp_path, "x", "start", tmp_path), model=base)


def parts():
    for overrides in PARTS:
        plan = load_verl_plan("rl", None, None, ["rl.algorithm.batch_size=130", *overrides])
        yield pytest.param(stages_of(plan.config)[0], plan.machine, id=overrides[0])


@pytest.mark.parametrize(("stage", "machine"), [*cases(), *parts()])
def test_every_key_is_verls(stage: Stage, machine, paths):
    from hydra import compose, initialize_config_module
    from omegaconf import OmegaConf

    with initialize_config_module("verl.trainer.config", version_base=None):
        theirs = compose("ppo_trainer")
    generated = [*translate(stage.rl, stage.rollout, machine, 0), *run_settings(paths, "x", machine)]
    for setting in generated:
        if setting.key.startswith(FREE):
            continue
        *sections, name = setting.key.split(".")
        section = OmegaConf.select(theirs, ".".join(sections))
        assert section is not None, f"verl has no section {setting.key}"
        assert name in list(section), f"verl has no key {setting.key}"


@pytest.mark.parametrize(("stage", "machine"), list(cases()))
def test_verls_own_check_passes(stage: Stage, machine, paths, compose, base):
    from verl.utils.config import omega_conf_to_dataclass, validate_config

    config = compose(write_stage(stage, machine, paths))
    actor = omega_conf_to_dataclass(config.actor_rollout_ref.actor)
    rollout = omega_conf_to_dataclass(config.actor_rollout_ref.rollout)
    algorithm = omega_conf_to_dataclass(config.algorithm)
    model = omega_conf_to_dataclass(config.actor_rollout_ref.model)
    assert actor.strategy == "fsdp2"
    assert actor.optim.lr == stage.rl.algorithm.optimizer.learning_rate
    assert actor.clip_ratio_high == stage.rl.algorithm.loss.eps_high
    assert rollout.n == stage.rl.algorithm.group_size
    assert rollout.max_model_len == stage.rollout.pipeline.max_len_tokens
    assert algorithm.adv_estimator == "grpo"
    assert model.tokenizer is not None
    validate_config(config, use_reference_policy=False, use_critic=False)

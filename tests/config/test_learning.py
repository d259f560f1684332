"""The defaults are the papers' values."""

from __future__ import annotations

from pathlib import Path

import pytest

from repairgym.config.algorithms import PRESETS, DapoLossConfig, GrpoLossConfig, GspoLossConfig, RlooAdvantageConfig
from repairgym.config.learning import AlgorithmConfig, RftConfig, SftConfig, StepDpoConfig
from repairgym.config.loading import load_config, to_toml
from repairgym.config.models import EngineConfig, ModelConfig
from repairgym.config.recipes import RlCommandConfig
from repairgym.errors import ConfigError


def test_dapo_is_table_3_of_paper_b_stage_1() -> None:
    config = AlgorithmConfig()
    assert config.loss == DapoLossConfig(eps_low=0.2, eps_high=0.3, denominator="token")
    assert (config.advantage.type, config.batch_size, config.group_size) == ("group", 128, 10)
    assert (config.correction.type, config.kl.type, config.overlong) == ("none", "none", "penalize")
    optimizer = config.optimizer
    assert (optimizer.type, optimizer.learning_rate, optimizer.betas) == ("adamw", 1e-6, (0.9, 0.999))
    assert (optimizer.eps, optimizer.weight_decay, optimizer.max_grad_norm) == (1e-8, 0.1, 1.0)
    assert (config.num_epochs, config.token_budget) == (1, None)


def test_rft_is_appendix_c_of_paper_b() -> None:
    config = RftConfig()
    optimizer = config.optimizer
    assert (optimizer.learning_rate, optimizer.weight_decay, optimizer.num_warmup_steps) == (5e-6, 0.1, 10)
    assert (optimizer.schedule, optimizer.final_lr_ratio) == ("cosine", 0.0)
    assert (config.batch_size, config.num_epochs, config.is_format_error_masked) == (64, 1, True)


def test_sft_is_paper_a() -> None:
    config = SftConfig()
    assert (config.optimizer.learning_rate, config.compute.is_bf16, config.batch_size) == (2e-5, False, 4)


@pytest.mark.parametrize("cls", [AlgorithmConfig, RftConfig, SftConfig, StepDpoConfig, ModelConfig, EngineConfig])
def test_toml_round_trip(cls: type, tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text(to_toml(cls()))
    assert load_config(cls, path) == cls()


def test_unequal_head_groups_are_refused() -> None:
    with pytest.raises(ValueError, match="num_kv_heads=3"):
        ModelConfig(num_heads=4, num_kv_heads=3)


def test_another_loss_starts_from_its_own_defaults() -> None:
    config = load_config(AlgorithmConfig, None, ["loss.type=gspo", "loss.eps_high=0.001"])
    assert config.loss == GspoLossConfig(eps_high=0.001)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["loss.type=reinforce"], "cispo"),
        (["loss.type=gspo", "loss.dual_clip=3.0"], "dual_clip"),
        (["loss.type=ppo"], "need each other"),
        (["advantage.type=gae"], "need each other"),
        (["loss.type=ppo", "advantage.type=gae", "negative_weight=0.3"], "sign of a trajectory's advantage"),
        (["loss.type=gspo", "kl.type=k1"], "one per sequence"),
        (["loss.type=gspo", "advantage.type=state_value"], "one per sequence"),
        (["loss.type=grpo", "token_budget=100"], "denominator"),
        (["correction.type=mask", "correction.min_ratio=2.0"], "below and above 1"),
        (["loss.type=cispo", "loss.max_ratio=0.5"], "below and above 1"),
        (["overlong=ignore"], "baseline_only"),
        (["loss.denominator=constant"], "turn"),
    ],
)
def test_what_makes_no_sense_is_refused(overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_config(AlgorithmConfig, None, overrides)


PRESET_OVERRIDES = {
    "dapo": [],
    "grpo": ["loss.type=grpo"],
    "dr_grpo": ["loss.type=dr_grpo", "advantage.type=dr_grpo"],
    "rloo": ["advantage.type=rloo"],
    "gspo": ["loss.type=gspo"],
    "cispo": ["loss.type=cispo"],
    "ppo": ["loss.type=ppo", "advantage.type=gae"],
    "reinforce_pp": ["advantage.type=reinforce_pp"],
}


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_is_its_parts(name: str, tmp_path: Path) -> None:
    explicit = load_config(AlgorithmConfig, None, PRESET_OVERRIDES[name])
    config = load_config(RlCommandConfig, None, [f"rl.algorithm={name}"]).rl.algorithm
    assert config.model_copy(update={"preset": "dapo"}) == explicit
    assert config == AlgorithmConfig(preset=name) == load_config(AlgorithmConfig, None, [f"preset={name}"])
    (tmp_path / "config.toml").write_text(to_toml(config))
    assert load_config(AlgorithmConfig, tmp_path / "config.toml") == config


def test_parts_of_a_preset_can_be_overridden_in_any_order() -> None:
    for overrides in (["preset=grpo", "loss.denominator=turn"], ["loss.denominator=turn", "preset=grpo"]):
        assert load_config(AlgorithmConfig, None, overrides).loss == GrpoLossConfig(denominator="turn")
    config = load_config(RlCommandConfig, None, ["rl.algorithm=grpo", "rl.algorithm.advantage.type=rloo"])
    assert (config.rl.algorithm.loss, config.rl.algorithm.advantage) == (GrpoLossConfig(), RlooAdvantageConfig())


def test_a_preset_replaces_the_parts_of_an_earlier_file_only(tmp_path: Path) -> None:
    file = tmp_path / "rl.toml"
    file.write_text("[rl.algorithm]\nbatch_size = 7\n[rl.algorithm.loss]\neps_high = 0.26\n")
    config = load_config(RlCommandConfig, file, ["rl.algorithm=gspo"]).rl.algorithm
    assert (config.loss, config.batch_size) == (GspoLossConfig(), 7)
    file.write_text('[rl]\nalgorithm = "grpo"\n')
    assert load_config(RlCommandConfig, file).rl.algorithm == AlgorithmConfig(preset="grpo")


def test_an_unknown_preset_is_answered_with_the_list() -> None:
    with pytest.raises(ConfigError, match=r"rl\.algorithm\.preset: got 'grpoo', expected one of dapo, .*mean 'grpo'"):
        load_config(RlCommandConfig, None, ["rl.algorithm=grpoo"])

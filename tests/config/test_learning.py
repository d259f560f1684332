"""The defaults are the papers' values."""

from __future__ import annotations

from pathlib import Path

import pytest

from mendwright.config.learning import DapoConfig, RftConfig, SftConfig
from mendwright.config.loading import load_config, to_toml
from mendwright.config.models import EngineConfig, ModelConfig


def test_dapo_is_table_3_of_paper_b_stage_1() -> None:
    config = DapoConfig()
    assert (config.eps_low, config.eps_high, config.batch_size, config.group_size) == (0.2, 0.3, 128, 10)
    optimizer = config.optimizer
    assert (optimizer.type, optimizer.learning_rate, optimizer.betas) == ("adamw", 1e-6, (0.9, 0.999))
    assert (optimizer.eps, optimizer.weight_decay, optimizer.max_grad_norm) == (1e-8, 0.1, 1.0)
    assert (config.num_epochs, config.token_weighting) == (1, "token")


def test_rft_is_appendix_c_of_paper_b() -> None:
    config = RftConfig()
    optimizer = config.optimizer
    assert (optimizer.learning_rate, optimizer.weight_decay, optimizer.num_warmup_steps) == (5e-6, 0.1, 10)
    assert (optimizer.schedule, optimizer.final_lr_ratio) == ("cosine", 0.0)
    assert (config.batch_size, config.num_epochs, config.is_format_error_masked) == (64, 1, True)


def test_sft_is_paper_a() -> None:
    config = SftConfig()
    assert (config.optimizer.learning_rate, config.compute.is_bf16, config.batch_size) == (2e-5, False, 4)


@pytest.mark.parametrize("cls", [DapoConfig, RftConfig, SftConfig, ModelConfig, EngineConfig])
def test_toml_round_trip(cls: type, tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text(to_toml(cls()))
    assert load_config(cls, path) == cls()


def test_unequal_head_groups_are_refused() -> None:
    with pytest.raises(ValueError, match="num_kv_heads=3"):
        ModelConfig(num_heads=4, num_kv_heads=3)

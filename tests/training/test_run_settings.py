"""A run goes on with the settings that it was begun with."""

import pytest

from repairgym.config.loading import load_config
from repairgym.config.recipes import RlCommandConfig, TwoStageConfig
from repairgym.errors import ConfigError
from repairgym.training.run_settings import CONFIGS_FOLDER, CallConfig, keep_config


def call(*overrides, **options):
    return CallConfig("train-rl", load_config(RlCommandConfig, None, overrides), **options)


def kept(folder):
    return load_config(RlCommandConfig, folder / CONFIGS_FOLDER / "train-rl.toml")


def test_changed_settings_are_rejected_by_name(tmp_path):
    keep_config(tmp_path, call("seed=3"))
    keep_config(tmp_path, call("seed=3"))
    with pytest.raises(
        ConfigError, match=r"seed=4 \(was 3\), rl\.algorithm\.group_size=6 \(was \d+\); resume with its own"
    ) as found:
        keep_config(tmp_path, call("seed=4", "rl.algorithm.group_size=6", "rollout.num_workers=7"))
    assert "num_workers" not in str(found.value)
    assert kept(tmp_path).seed == 3


def test_settings_of_time_and_machine_may_change(tmp_path):
    keep_config(tmp_path, call())
    later = call(
        "rollout.num_workers=7",
        "rl.max_iterations=9",
        "watch.alarms.window=5",
        "rollout.layers.max_bytes=1000",
        "rl.algorithm.compute.context_parallel=2",
    )
    keep_config(tmp_path, later)
    assert kept(tmp_path) == later.config


def test_bounds_of_stages_may_change_and_attempts_of_an_episode_may_not(tmp_path):
    def two(*overrides):
        return CallConfig("train-dapo_two_stage", load_config(TwoStageConfig, None, overrides))

    keep_config(tmp_path, two())
    later = two("stage_1.rl.max_sampled_tokens=1000", "stage_2.rollout.max_attempts=5")
    keep_config(tmp_path, later)
    keep_config(tmp_path, call("rollout.pipeline.type=full"))
    for changed in ("rollout.pipeline.max_attempts=7", "rollout.grading.max_attempts=7"):
        with pytest.raises(ConfigError, match="max_attempts=7"):
            keep_config(tmp_path, call("rollout.pipeline.type=full", changed))


def test_max_staleness_may_not_change(tmp_path):
    keep_config(tmp_path, call("rl.algorithm.correction.type=mask"))
    with pytest.raises(ConfigError, match=r"rl\.max_staleness=1 \(was 0\)"):
        keep_config(tmp_path, call("rl.algorithm.correction.type=mask", "rl.max_staleness=1"))


def test_commands_share_a_folder_and_have_free_settings_of_their_own(tmp_path):
    keep_config(tmp_path, call("seed=3"))
    keep_config(tmp_path, CallConfig("train-rft", call("seed=4").config))
    keep_config(tmp_path, call("seed=4", free=("seed",)))
    assert kept(tmp_path).seed == 4


def test_another_type_of_a_part_is_rejected(tmp_path):
    keep_config(tmp_path, call())
    with pytest.raises(ConfigError, match=r"rl\.algorithm\.loss\.type=grpo \(was dapo\)"):
        keep_config(tmp_path, call("rl.algorithm.loss.type=grpo"))

"""What rollouts cannot support is an error when the configuration is read."""

import pytest

from repairgym.config.commands import RolloutCommandConfig
from repairgym.config.loading import load_config
from repairgym.config.recipes import DemoConfig, RlCommandConfig
from repairgym.errors import ConfigError


@pytest.mark.parametrize("kind", [RlCommandConfig, DemoConfig])
def test_training_samples_at_temperature_1(kind):
    with pytest.raises(ConfigError, match=r"rollout\.temperature=0\.7: training samples at temperature 1"):
        load_config(kind, None, ["rollout.temperature=0.7"])
    assert load_config(RolloutCommandConfig, None, ["rollout.temperature=0.7"]).rollout.temperature == 0.7


def test_invariant_sessions_need_a_slot_each():
    overrides = ["rollout.engine.is_batch_invariant=true", "rollout.engine.num_slots=8"]
    with pytest.raises(ConfigError, match="set max_in_flight to at most num_slots"):
        load_config(RolloutCommandConfig, None, overrides)
    load_config(RolloutCommandConfig, None, [*overrides, "rollout.max_in_flight=8"])

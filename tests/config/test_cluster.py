"""What a cluster cannot support is an error when the configuration is read."""

import pytest

from repairgym.config.cluster import ClusterCheckConfig
from repairgym.config.commands import EvalCommandConfig, RolloutCommandConfig
from repairgym.config.loading import load_config, to_toml
from repairgym.config.recipes import RlCommandConfig
from repairgym.errors import ConfigError

COMMANDS = [RolloutCommandConfig, EvalCommandConfig, RlCommandConfig]


@pytest.mark.parametrize("address", ["local", "auto", "head:6379", "10.0.0.1:6379", "ray://head:10001"])
def test_an_address_is_one_that_ray_knows(address, tmp_path):
    config = load_config(RolloutCommandConfig, None, [f"cluster.address={address}"])
    assert config.cluster.is_used
    (tmp_path / "c.toml").write_text(to_toml(config))
    assert load_config(RolloutCommandConfig, tmp_path / "c.toml") == config


@pytest.mark.parametrize("address", ["head", "http://head:8265", "ray://head", "ssh://head:22", "ray://:10001"])
def test_anything_else_is_refused(address):
    with pytest.raises(ConfigError, match=r"cluster\.address.*expected local, auto, HOST:6379 or ray://HOST:10001"):
        load_config(RolloutCommandConfig, None, [f'cluster.address="{address}"'])


@pytest.mark.parametrize(
    ("overrides", "complaint"),
    [
        (["cluster.num_cpus=2.0"], r"cluster\.num_cpus is set, but there is no cluster"),
        (["cluster.address=auto", "cluster.num_cpus=1.5"], "at most 1 or a whole number"),
        (["cluster.address=auto", "cluster.temp_folder=/tmp/r"], r"temp_folder is for cluster\.address=local"),
        (["cluster.address=auto", "cluster.object_store_bytes=9"], r"object_store_bytes is for cluster\.address=local"),
        (["cluster.address=local", "cluster.is_autoscaling=true"], "this machine does not grow"),
        (["cluster.address=auto", "rollout.sandbox.is_degraded_allowed=true"], "each node must isolate"),
        (["cluster.address=auto", "rollout.pipeline.system_prompt=mine.jinja"], "is on this machine"),
        (
            [
                "cluster.address=auto",
                "rollout.grading.judge.is_enabled=true",
                "rollout.grading.judge.model=models/judge",
            ],
            r"rollout\.grading\.judge\.model='models/judge' is on this machine",
        ),
    ],
)
@pytest.mark.parametrize("command", COMMANDS)
def test_nothing_is_ignored_silently(command, overrides, complaint):
    with pytest.raises(ConfigError, match=complaint):
        load_config(command, None, overrides)


def test_files_of_this_machine_are_fine_on_this_machine():
    named = ["rollout.pipeline.type=simplified", "rollout.pipeline.starts=starts.jsonl"]
    named += ["rollout.pipeline.max_len_tokens=1024"]
    load_config(RolloutCommandConfig, None, ["cluster.address=local", *named])
    with pytest.raises(ConfigError, match=r"rollout\.pipeline\.starts='starts\.jsonl' is on this machine"):
        load_config(RolloutCommandConfig, None, ["cluster.address=head:6379", *named])


def test_a_check_wants_isolation_too():
    with pytest.raises(ConfigError, match="each node must isolate"):
        load_config(ClusterCheckConfig, None, ["cluster.address=auto", "sandbox.backend=degraded"])

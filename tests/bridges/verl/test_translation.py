"""Our configuration as verl's: the papers' numbers arrive, values without a counterpart are rejected by name."""

import re
from pathlib import Path
from typing import Any

import pytest

from repairgym.bridges.verl.setting_table import WEIGHTED_GROUP, FlatConfig
from repairgym.bridges.verl.translation import _CHECKS, _NEUTRAL, Setting, translate
from repairgym.config.cluster import VerlConfig
from repairgym.config.loading import load_config
from repairgym.config.recipes import DistillThenGrpoConfig, RlCommandConfig, RlConfig, TwoStageConfig
from repairgym.errors import ConfigError

CONFIGS = Path(__file__).parents[3] / "src/repairgym/data/presets"
CPU = VerlConfig(device="cpu", engine="embedded", gpus_per_node=2, rollout_tensor_parallel=1, sequence_parallel=1)
FITS = ["rl.algorithm.batch_size=130"]
ACTOR = "actor_rollout_ref.actor"


def translated(*overrides: str, machine: VerlConfig = CPU) -> dict[str, Any]:
    config = load_config(RlCommandConfig, None, [*FITS, *overrides])
    return values(translate(config.rl, config.rollout, machine, config.seed))


def values(settings: list[Setting]) -> dict[str, Any]:
    keys = [setting.key for setting in settings]
    assert len(set(keys)) == len(keys), "a key of verl's is set twice"
    return {setting.key: setting.value for setting in settings}


def test_paper_a():
    config = load_config(DistillThenGrpoConfig, CONFIGS / "paper_a/distill_then_grpo.toml")
    machine = load_config(VerlConfig, CONFIGS / "paper_a/verl.toml")
    settings_by_key = values(translate(config.rl, config.rollout, machine, 0))
    assert (settings_by_key["data.train_batch_size"], settings_by_key["actor_rollout_ref.rollout.n"]) == (8, 4)
    assert settings_by_key[f"{ACTOR}.ppo_mini_batch_size"] == 8
    assert settings_by_key["trainer.total_training_steps"] == 1000
    assert settings_by_key["actor_rollout_ref.rollout.max_model_len"] == 131072
    assert (settings_by_key["trainer.nnodes"], settings_by_key["trainer.n_gpus_per_node"]) == (1, 8)
    assert settings_by_key["algorithm.adv_estimator"] == "grpo"
    assert settings_by_key[f"{ACTOR}.loss_agg_mode"] == "seq-mean-token-mean"
    assert settings_by_key[f"{ACTOR}.ppo_max_token_len_per_gpu"] * machine.sequence_parallel == 131072


def test_paper_b():
    config = load_config(TwoStageConfig, CONFIGS / "paper_b/two_stage.toml")
    machine = load_config(VerlConfig, CONFIGS / "paper_b/verl.toml")
    stages = [values(translate(s.rl, s.rollout, machine, 0)) for s in (config.stage_1, config.stage_2)]
    assert [settings_by_key["data.train_batch_size"] for settings_by_key in stages] == [300, 100]
    assert [settings_by_key[f"{ACTOR}.ppo_mini_batch_size"] for settings_by_key in stages] == [13, 26]
    assert [settings_by_key[f"{ACTOR}.clip_ratio_high"] for settings_by_key in stages] == [0.3, 0.26]
    assert [settings_by_key[f"{ACTOR}.loss_agg_mode"] for settings_by_key in stages] == ["token-mean"] * 2
    assert [settings_by_key["actor_rollout_ref.rollout.max_model_len"] for settings_by_key in stages] == [65536, 131072]
    assert stages[0][f"{ACTOR}.use_kl_loss"] is False
    assert stages[0][f"{ACTOR}.optim.lr"] == 1e-6


REJECTED = [
    "rl.spread_share=0.25",
    "rl.max_sampled_tokens=1000",
    'rl.curriculum="learnability"',
    "rl.algorithm.batch_size=128",
    "rl.algorithm.token_budget=4096",
    'rl.algorithm.demonstration.type="gated"',
    'rl.algorithm.kl.type="k1"',
    'rl.algorithm.loss.denominator="turn"',
    "rl.algorithm.advantage.delta=1e-3",
    'rl.algorithm.advantage.type="state_value"',
    'rl.algorithm.advantage.type="tree_grpo"',
    'rl.algorithm.advantage.type="tree_rl"',
    'rl.tree.type="entropy"',
    'rl.exploration.type="novelty"',
    'rl.perturbation.type="best_checkpoints"',
    'rl.algorithm.optimizer.type="muon"',
    'rl.algorithm.optimizer.schedule="linear"',
    "rl.algorithm.optimizer.num_warmup_steps=3",
    "rl.algorithm.compute.context_parallel=2",
    "rl.algorithm.compute.head_chunk_vocab=1024",
    "rl.algorithm.compute.num_threads=1",
    "rl.algorithm.compute.micro_batch_tokens=512",
    "rollout.drain_timeout_s=5.0",
    'rollout.agent={type="external", command=["agent"]}',
]


@pytest.mark.parametrize("override", REJECTED)
def test_values_without_a_counterpart_are_rejected_by_name(override):
    with pytest.raises(ConfigError, match=override.partition("=")[0].replace(".", r"\.")):
        translated(override)


def test_another_sampler_and_stale_episodes_are_rejected_with_one_line_each():
    with pytest.raises(ConfigError) as caught:
        translated(
            'rl.sampler.type="vllm"',
            'rl.sampler.endpoint.model="m"',
            'rl.algorithm.demonstration.type="gated"',
            "rl.max_staleness=1",
            'rl.algorithm.correction.type="mask"',
        )
    problems = str(caught.value).partition("of: ")[2].split("; ")
    names = [problem.partition("=")[0] for problem in problems]
    assert names == ["rl.algorithm.demonstration.type", "rl.max_staleness", "rl.sampler.type"]


def test_a_value_that_is_added_later_is_a_problem():
    class Later(RlConfig):
        is_new: bool = True

    config = load_config(RlCommandConfig, None, FITS)
    with pytest.raises(ConfigError, match=r"rl\.is_new=True \(no counterpart is known\)"):
        translate(Later.model_validate(config.rl.model_dump()), config.rollout, CPU, 0)


def test_warm_up_counts_the_same_where_an_iteration_is_one_optimizer_step():
    one_step = ["rl.num_groups_sampled=13", "rl.algorithm.optimizer.num_warmup_steps=3"]
    assert translated(*one_step)[f"{ACTOR}.optim.lr_warmup_steps"] == 3
    with pytest.raises(ConfigError, match="num_warmup_steps=3"):
        translated(*one_step, "rl.algorithm.num_epochs=2")


def test_a_reference_computes_as_the_learner_does():
    reference = "actor_rollout_ref.ref.fsdp_config"
    settings_by_key = translated('rl.algorithm.kl.type="k3"')
    assert settings_by_key[f"{reference}.mixed_precision.param_dtype"] == "fp32"
    assert settings_by_key[f"{ACTOR}.fsdp_config.mixed_precision.param_dtype"] == "fp32"
    assert not any(key.startswith(reference) for key in translated())


def test_rewards_of_whole_groups_and_forks_that_count_several_times_are_rejected():
    with pytest.raises(ConfigError, match=r"rl\.reward\.mode='raw_filtered'"):
        translated('rl.reward.type="step_penalty"', 'rl.reward.mode="raw_filtered"')
    fork = ['rollout.pipeline.context.type="elision"']
    with pytest.raises(ConfigError, match=r"rollout\.pipeline\.context\.type"):
        translated(*fork, 'rl.algorithm.advantage.type="rloo"')
    with pytest.raises(ConfigError, match=r"rl\.algorithm\.loss\.denominator='trajectory'"):
        translated(*fork, 'rl.algorithm.loss.type="grpo"')
    assert translated(*fork)["algorithm.adv_estimator"] == "grpo"


def test_the_mean_of_groups_is_a_sum_with_scaled_advantages():
    group = translated('rl.algorithm.loss.denominator="group"')
    assert group[f"{ACTOR}.loss_agg_mode"] == "seq-mean-token-sum-norm"
    assert group[f"{ACTOR}.loss_scale_factor"] == 1
    assert group["algorithm.adv_estimator"] == WEIGHTED_GROUP
    assert [value for key, value in group.items() if key.endswith("is_mean_of_groups")] == [True]
    assert not any(key.endswith("is_mean_of_groups") for key in translated())
    with pytest.raises(ConfigError, match=r"denominator='group' \(under verl with advantage\.type"):
        translated('rl.algorithm.loss.denominator="group"', 'rl.algorithm.advantage.type="rloo"')


CREDIT = ["rl.algorithm.is_error_masked=true", "rl.algorithm.negative_weight=0.3"]


def test_credit_of_errors_and_failures_goes_to_our_parts_of_verl():
    settings_by_key = translated(*CREDIT, 'rl.algorithm.loss.type="grpo"')
    assert settings_by_key["algorithm.adv_estimator"] == "repairgym_group"
    assert settings_by_key["trainer.v1.sampler.sampler_kwargs.is_error_masked"] is True
    assert settings_by_key["trainer.v1.sampler.sampler_kwargs.negative_weight"] == 0.3
    assert translated(CREDIT[0])["algorithm.adv_estimator"] == "grpo"
    for advantage in ("rloo", "reinforce_pp"):
        with pytest.raises(ConfigError, match=r"is_error_masked=True.*negative_weight=0\.3"):
            translated(*CREDIT, f'rl.algorithm.advantage.type="{advantage}"')
    with pytest.raises(ConfigError, match=r"forks would count several times with rl\.algorithm\.negative_weight=0\.3"):
        translated(CREDIT[1], 'rollout.pipeline.context.type="elision"')


def test_a_critic_is_rejected():
    with pytest.raises(ConfigError, match=r"rl\.algorithm\.loss\.type='ppo'.*rl\.algorithm\.advantage\.type='gae'"):
        translated('rl.algorithm.loss.type="ppo"', 'rl.algorithm.advantage.type="gae"')


def test_settings_of_the_embedded_engine_are_rejected_for_vllm():
    vllm = VerlConfig()
    assert translated("rollout.engine.max_len_tokens=2048", machine=vllm)["actor_rollout_ref.rollout.name"] == "vllm"
    with pytest.raises(ConfigError, match=r"rollout\.engine\.num_slots=8"):
        translated("rollout.engine.num_slots=8", machine=vllm)
    assert translated("rollout.engine.num_slots=8")["actor_rollout_ref.rollout.custom.engine.num_slots"] == 8


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (
            ['rl.algorithm.loss.type="gspo"'],
            {f"{ACTOR}.policy_loss.loss_mode": "gspo", f"{ACTOR}.clip_ratio_low": 3e-4},
        ),
        (
            ['rl.algorithm.loss.type="cispo"', "rl.algorithm.loss.min_ratio=0.5", "rl.algorithm.loss.max_ratio=1.5"],
            {f"{ACTOR}.clip_ratio_low": 0.5, f"{ACTOR}.clip_ratio_high": 0.5},
        ),
        (
            ['rl.algorithm.loss.type="dr_grpo"', 'rl.algorithm.advantage.type="dr_grpo"'],
            {
                "algorithm.norm_adv_by_std_in_grpo": False,
                f"{ACTOR}.loss_agg_mode": "seq-mean-token-sum-norm",
                f"{ACTOR}.loss_scale_factor": 1024,
            },
        ),
        (['rl.algorithm.kl.type="k3"'], {f"{ACTOR}.use_kl_loss": True, f"{ACTOR}.kl_loss_coef": 0.001}),
        (["rl.algorithm.loss.dual_clip=3.0"], {f"{ACTOR}.clip_ratio_c": 3.0}),
        (
            ['rl.algorithm.correction.type="mask"'],
            {
                "algorithm.rollout_correction.bypass_mode": False,
                "algorithm.rollout_correction.rollout_is_threshold": "0.5_5.0",
            },
        ),
        ([], {"algorithm.rollout_correction.bypass_mode": True, f"{ACTOR}.clip_ratio_c": 1e9}),
    ],
)
def test_algorithms(overrides, expected):
    settings_by_key = translated(*overrides)
    assert {key: settings_by_key[key] for key in expected} == expected


def test_a_batch_can_be_rounded_to_whole_groups():
    machine = CPU.model_copy(update={"batch_rounding": "nearest"})
    assert translated("rl.algorithm.batch_size=128", machine=machine)[f"{ACTOR}.ppo_mini_batch_size"] == 13


@pytest.mark.parametrize(
    ("overrides", "named"),
    [
        (["device=cpu"], "engine='embedded'"),
        (["device=cpu", "engine=embedded", "rollout_tensor_parallel=1"], "sequence_parallel=1"),
        (["engine=embedded"], "rollout_tensor_parallel=1"),
        (["engine=embedded", "rollout_tensor_parallel=1", "gpu_memory_share=0.5"], "gpu_memory_share"),
        (["sequence_parallel=3"], "sequence_parallel=3"),
        (["rollout_tensor_parallel=5"], "rollout_tensor_parallel=5"),
        (["ray_address=head:6379", "num_cpus=8"], "num_cpus=8"),
    ],
)
def test_machines_that_do_not_fit_are_rejected(overrides, named):
    with pytest.raises(ConfigError, match=named):
        load_config(VerlConfig, None, overrides)


def test_a_flat_config_lists_the_values_that_nobody_has_taken():
    config = FlatConfig({"verl": CPU})
    config.take("verl.device")
    assert "verl.device" not in config.left
    assert "verl.engine" in config.left
    config.take("verl", keep="verl.engine")
    assert config.left == {"verl.engine"}


def test_the_page_names_every_key_that_is_rejected():
    """A key is named by its last part; those of the embedded engine by their section."""
    page = (Path(__file__).parents[3] / "docs/howto/verl.md").read_text(encoding="utf-8")
    table = page.partition("Rejected are:")[2].partition("Small differences")[0]
    keys = {*_NEUTRAL, *(name for name, _ in _CHECKS)}
    names = {key: "engine" if key.startswith("rollout.engine.") else key.split(".")[-1] for key in keys}
    names |= {key: key.removesuffix(".type").split(".")[-1] for key in keys if key.endswith(".type")}
    assert [key for key, name in names.items() if not re.search(rf"[`.]{name}\b", table)] == []

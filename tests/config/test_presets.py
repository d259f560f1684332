"""Every TOML file of the presets parses as what it says it is, and holds the papers' published numbers."""

from pathlib import Path

import pytest

from repairgym.config.cluster import VerlConfig
from repairgym.config.commands import ChangesConfig, EvalCommandConfig, MatrixConfig, RolloutCommandConfig
from repairgym.config.loading import load_config
from repairgym.config.recipes import (
    DemoConfig,
    DistillThenGrpoConfig,
    PretrainingConfig,
    RftCommandConfig,
    RlCommandConfig,
    SftCommandConfig,
    TwoStageConfig,
)
from repairgym.config.tasks import CurationConfig, TasksConfig
from repairgym.errors import ConfigError
from repairgym.records import Record

CONFIGS = Path(__file__).parents[2] / "src/repairgym/data/presets"
KINDS: dict[str, type[Record]] = {
    "base_13m.toml": PretrainingConfig,
    "catalogue.toml": TasksConfig,
    "changes.toml": ChangesConfig,
    "demo.toml": DemoConfig,
    "demo_eval.toml": RolloutCommandConfig,
    "demo_rft.toml": RftCommandConfig,
    "demo_rl.toml": RlCommandConfig,
    "exploit_rl.toml": RlCommandConfig,
    "paper_a/curation.toml": CurationConfig,
    "paper_a/distill_then_grpo.toml": DistillThenGrpoConfig,
    "paper_a/distill_then_grpo_small.toml": DistillThenGrpoConfig,
    "paper_a/distill_then_grpo_thinking.toml": DistillThenGrpoConfig,
    "paper_a/full.toml": RolloutCommandConfig,
    "paper_a/full_small.toml": RolloutCommandConfig,
    "paper_a/matrix_small.toml": MatrixConfig,
    "paper_a/sft.toml": SftCommandConfig,
    "paper_a/simplified.toml": RolloutCommandConfig,
    "paper_a/simplified_small.toml": RolloutCommandConfig,
    "paper_b/curation.toml": CurationConfig,
    "paper_b/curation_stage_2.toml": CurationConfig,
    "paper_b/pipeline.toml": RolloutCommandConfig,
    "paper_b/pipeline_collection.toml": RolloutCommandConfig,
    "paper_b/pipeline_stage_2.toml": RolloutCommandConfig,
    "paper_b/two_stage.toml": TwoStageConfig,
    "paper_b/two_stage_small.toml": TwoStageConfig,
    "paper_b/rft.toml": RftCommandConfig,
    "paper_b/rft_small.toml": RftCommandConfig,
    "paper_a/verl.toml": VerlConfig,
    "paper_b/verl.toml": VerlConfig,
    "qwen3_32b_8gpu.toml": RlCommandConfig,
    "qwen3_8b_8gpu.toml": RlCommandConfig,
    "verl_cpu.toml": VerlConfig,
    "verl_parity.toml": RlCommandConfig,
    "verl_parity_matrix.toml": MatrixConfig,
}


@pytest.mark.parametrize("path", sorted(CONFIGS.rglob("*.toml")), ids=lambda path: str(path.relative_to(CONFIGS)))
def test_parses(path):
    load_config(KINDS[str(path.relative_to(CONFIGS))], path)


def test_the_demo_file_is_the_default():
    assert load_config(DemoConfig, CONFIGS / "demo.toml") == DemoConfig()


def test_the_demos_stages_have_files_of_their_own():
    demo = DemoConfig()
    rl = load_config(RlCommandConfig, CONFIGS / "demo_rl.toml")
    rft = load_config(RftCommandConfig, CONFIGS / "demo_rft.toml")
    assert rl.rl == demo.rl.model_copy(update={"max_iterations": 20})
    assert (rft.collect, rft.rft) == (demo.own, demo.rft)
    assert rl.rollout == rft.rollout == demo.rollout
    assert load_config(RolloutCommandConfig, CONFIGS / "demo_eval.toml").rollout == demo.rollout
    evaluation = load_config(EvalCommandConfig, CONFIGS / "demo_eval.toml").rollout
    assert (evaluation.pipeline, evaluation.engine) == (demo.rollout.pipeline, demo.rollout.engine)
    assert evaluation.grading.is_cold


def test_table_3_of_paper_b():
    found = load_config(TwoStageConfig, CONFIGS / "paper_b/two_stage.toml")
    stages = (found.stage_1, found.stage_2)

    def row(get):
        return tuple(get(stage) for stage in stages)

    assert row(lambda s: s.rl.num_groups) == (300, 100)
    assert row(lambda s: s.rl.algorithm.batch_size) == (128, 256)
    assert row(lambda s: (s.rl.algorithm.loss.eps_low, s.rl.algorithm.loss.eps_high)) == ((0.2, 0.3), (0.2, 0.26))
    assert row(lambda s: s.rollout.pipeline.max_turns) == (40, 80)
    assert row(lambda s: s.rl.reward.threshold_turns) == (10, 10)
    assert row(lambda s: s.rollout.pipeline.max_len_tokens) == (65536, 131072)
    assert (found.stage_1.yarn_factor, found.stage_2.yarn_factor) == (2.0, 4.0)
    for stage in stages:
        optimizer = stage.rl.algorithm.optimizer
        assert (stage.rl.algorithm.group_size, stage.rl.algorithm.num_epochs, stage.rollout.temperature) == (10, 1, 1.0)
        assert (optimizer.type, optimizer.learning_rate, optimizer.betas) == ("adamw", 1e-6, (0.9, 0.999))
        assert (optimizer.eps, optimizer.weight_decay, optimizer.max_grad_norm) == (1e-8, 0.1, 1.0)
        assert (stage.rl.algorithm.kl.type, stage.rollout.pipeline.type) == ("none", "paper_b")


def test_appendix_c_of_paper_b():
    found = load_config(RftCommandConfig, CONFIGS / "paper_b/rft.toml")
    optimizer = found.rft.optimizer
    assert (found.collect.num_samples, found.rft.num_epochs, found.rft.batch_size) == (10, 1, 64)
    assert (optimizer.learning_rate, optimizer.weight_decay, optimizer.num_warmup_steps) == (5e-6, 0.1, 10)
    assert (optimizer.schedule, optimizer.final_lr_ratio) == ("cosine", 0.0)
    assert found.rft.is_format_error_masked
    pipeline = found.rollout.pipeline
    assert (pipeline.type, pipeline.max_len_tokens) == ("paper_b", 65536)
    assert pipeline.demonstration == "paper_b/demonstration"


@pytest.mark.parametrize(("name", "thoughts"), [("", "remove"), ("_thinking", "require")])
def test_the_appendices_of_paper_a(name, thoughts):
    found = load_config(DistillThenGrpoConfig, CONFIGS / f"paper_a/distill_then_grpo{name}.toml")
    assert (found.sft.optimizer.learning_rate, found.sft.batch_size, found.sft.compute.is_bf16) == (2e-5, 4, False)
    assert found.sft.thoughts == thoughts
    assert (found.rl.num_groups, found.rl.algorithm.group_size, found.rl.max_iterations) == (8, 4, 1000)
    assert (found.rl.algorithm.loss.type, found.rl.reward.type) == ("grpo", "terminal")
    pipeline = found.rollout.pipeline
    assert (pipeline.type, pipeline.command_timeout_s) == ("simplified", 3600.0)
    assert pipeline.thinking == ("kept" if name else "off")
    assert (pipeline.max_turns, pipeline.time_limit_s, pipeline.max_len_tokens) == (30, 4800.0, 131072)


def test_the_full_pipeline_has_the_numbers_of_paper_a():
    config = load_config(RolloutCommandConfig, CONFIGS / "paper_a/full.toml")
    pipeline = config.rollout.pipeline
    assert (pipeline.type, pipeline.action_format, len(pipeline.tools)) == ("full", "json_xml", 10)
    assert (pipeline.max_tool_calls, pipeline.time_limit_s, pipeline.max_retries) == (50, 80 * 60, 3)
    assert (pipeline.command_timeout_s, pipeline.max_len_tokens) == (3600, 131_072)
    assert config.rollout.grading.judge.is_enabled
    assert pipeline.max_episode_turns == pipeline.max_turns * pipeline.max_attempts


def test_the_simplified_pipeline_has_the_numbers_of_paper_a():
    config = load_config(RolloutCommandConfig, CONFIGS / "paper_a/simplified.toml")
    pipeline = config.rollout.pipeline
    assert (pipeline.type, pipeline.max_turns, pipeline.max_tool_calls) == ("simplified", 30, None)
    assert not config.rollout.grading.judge.is_enabled


@pytest.mark.parametrize("name", ["full_small", "simplified_small"])
def test_small_pipelines_train_and_differ_in_the_environment_only(name):
    trained = load_config(RlCommandConfig, CONFIGS / f"paper_a/{name}.toml").rollout
    demo = load_config(DemoConfig, CONFIGS / "demo.toml").rollout
    same = {"tools", "action_format", "max_turns", "max_action_tokens", "max_len_tokens", "is_place_opened"}
    assert trained.pipeline.model_dump(include=same) == demo.pipeline.model_dump(include=same)
    assert trained.engine == demo.engine
    assert trained.grading == demo.grading


@pytest.mark.parametrize(("name", "turns", "tokens"), [("pipeline", 40, 65_536), ("pipeline_stage_2", 80, 131_072)])
def test_paper_bs_pipeline_has_its_numbers(name, turns, tokens):
    config = load_config(RolloutCommandConfig, CONFIGS / f"paper_b/{name}.toml")
    pipeline = config.rollout.pipeline
    assert (pipeline.type, pipeline.action_format, pipeline.context.type) == ("paper_b", "fenced", "full")
    assert (pipeline.max_turns, pipeline.max_len_tokens, pipeline.demonstration) == (turns, tokens, "")
    assert (config.num_samples, config.rollout.temperature) == (10, 1.0)


def test_only_collection_has_a_demonstration():
    path = CONFIGS / "paper_b/pipeline_collection.toml"
    assert load_config(RolloutCommandConfig, path).rollout.pipeline.demonstration == "paper_b/demonstration"
    overrides = ["rollout.pipeline.type=paper_b", "rollout.engine.max_len_tokens=65536"]
    with pytest.raises(ConfigError, match="demonstration='x' is for collecting"):
        load_config(RlCommandConfig, None, [*overrides, "rollout.pipeline.demonstration=x"])


def test_the_matrix_has_the_pipelines_of_their_own_files():
    matrix = load_config(MatrixConfig, CONFIGS / "paper_a/matrix_small.toml")
    for name, environment in matrix.environments.items():
        alone = load_config(RolloutCommandConfig, CONFIGS / f"paper_a/{name}_small.toml")
        assert environment.pipeline == alone.rollout.pipeline
        assert environment.grading.disabled_gates == ()

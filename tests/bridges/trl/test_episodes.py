"""Rows are what was sampled by the trainer's weights; what has no verdict has no reward and no learned token."""

from __future__ import annotations

import re
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from repairgym.bridges.trl.checks import check_rollout
from repairgym.bridges.trl.episodes import PHASE, make_row, verdict_reward
from repairgym.config.pipeline import ElisionConfig, FullConfig, PipelineConfig
from repairgym.config.rollout import RolloutConfig
from repairgym.config.selection import TaskSelection
from repairgym.errors import ConfigError, InputError, SandboxError, TaskError
from repairgym.inference.tokenizer import train_tokenizer
from repairgym.ledger import LedgerBuilder
from repairgym.records import VerdictKind
from repairgym.rollout.store import RunStore
from repairgym.testing.scripted import ScriptedBackend, scripted_answer

PROMPTS = ["train-0"] * 4 + ["train-1"] * 4


def learner_log_probs(model: torch.nn.Module, output: dict, number: int) -> torch.Tensor:
    """Of the completion's tokens, by a plain forward pass."""
    prompt, completion = output["prompt_ids"][number], output["completion_ids"][number]
    ids = torch.tensor([prompt + completion])
    with torch.no_grad():
        scores = torch.log_softmax(model(input_ids=ids).logits[0].float(), -1)
    return scores[len(prompt) - 1 : -1].gather(1, ids[0, len(prompt) :, None])[:, 0]


def assert_sampled_by(model: torch.nn.Module, output: dict) -> None:
    for number, mask in enumerate(output["env_mask"]):
        is_sampled = torch.tensor(mask) > 0
        stored = torch.tensor(output["logprobs"][number])
        assert torch.allclose(learner_log_probs(model, output, number)[is_sampled], stored[is_sampled], atol=1e-4)
        assert not stored[~is_sampled].any()


def test_rows_are_sampled_by_the_current_weights(make_episodes, trainer) -> None:
    episodes = make_episodes()
    first = episodes.rollout(PROMPTS, trainer)
    assert_sampled_by(trainer.model, first)
    with torch.no_grad():
        for parameter in trainer.model.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    trainer.state.global_step = 1
    second = episodes.rollout(PROMPTS, trainer)
    assert_sampled_by(trainer.model, second)
    assert trainer.model.training
    assert first["completion_ids"] != second["completion_ids"]


def test_rows_have_trls_form(make_episodes, trainer) -> None:
    output = make_episodes().rollout(PROMPTS, trainer)
    columns = (output[key] for key in ("completion_ids", "logprobs", "env_mask"))
    for completion, log_probs, mask in zip(*columns, strict=True):
        assert len(completion) == len(log_probs) == len(mask) > 0
        assert mask[0] == mask[-1] == 1  # from the first sampled token to the last
    assert any(0 in mask for mask in output["env_mask"])  # observations lie between the actions
    assert output["reward"] == [0.0 if kind == "failed" else 1.0 for kind in output["verdict"]]
    assert len({tuple(ids) for ids in output["completion_ids"][:4]}) > 1  # members of a group are sampled apart


def test_failures_are_masked_and_never_a_reward_of_zero(make_episodes, trainer) -> None:
    output = make_episodes(4).rollout(PROMPTS, trainer)
    is_invalid = [kind == "invalid" for kind in output["verdict"]]
    assert 0 < sum(is_invalid) < len(PROMPTS)
    for number in (number for number, is_bad in enumerate(is_invalid) if is_bad):
        assert output["reward"][number] is None
        assert output["env_mask"][number] == [0]
        assert len(output["completion_ids"][number]) == 1
        assert output["prompt_ids"][number]
    logged: dict[str, float] = {}
    rewards = verdict_reward(verdict=output["verdict"], reward=output["reward"], log_metric=logged.__setitem__)
    assert [reward is None for reward in rewards] == is_invalid
    assert logged["verdicts/invalid"] == sum(is_invalid) / len(PROMPTS)


def test_a_batch_without_verdicts_stops_the_training(make_episodes, trainer) -> None:
    with pytest.raises(SandboxError, match="repairgym doctor"):
        make_episodes(1000).rollout(PROMPTS, trainer)


def test_no_episode_continues_after_training_stopped(make_episodes, trainer) -> None:
    backend = ScriptedBackend(scripted_answer(), num_failures=1000)
    episodes = make_episodes(backend, max_failures_in_row=2, max_in_flight=2)
    with pytest.raises(SandboxError, match="2 episodes in a row"):
        episodes.rollout(PROMPTS * 4, trainer)
    left = backend.num_failures
    time.sleep(0.3)
    assert backend.num_failures == left


def test_steps_that_a_resumed_training_repeats_are_stored_anew(make_episodes, trainer, tmp_path) -> None:
    with RunStore.create(tmp_path / "run.db") as store:
        first = make_episodes(store=store)
        for step in range(3):
            trainer.state.global_step = step
            first.rollout(PROMPTS[:2], trainer)
        kept = [row.id for row in store.rows(step=0)]
        trainer.state.global_step = 1  # the checkpoint that it resumes from
        trainer.args.seed = 2
        make_episodes(store=store).rollout(PROMPTS[:1], trainer)
        assert [(row.step, row.id) for row in store.rows()] == [
            *((0, name) for name in kept),
            (1, f"{PHASE}/1/train-0#0"),
        ]
        assert "4 episodes from step 1" in store.events()[-1].message


def test_held_out_tasks_are_evaluated_and_never_trained_on(make_episodes, trainer) -> None:
    episodes = make_episodes()
    assert sorted(row["prompt"] for row in episodes.dataset_rows()) == ["train-0", "train-1"]
    with pytest.raises(TaskError, match="test-0 is a test task"):
        episodes.rollout(["test-0"], trainer)
    trainer.model.eval()
    assert len(episodes.rollout(["test-0"] * 2, trainer)["reward"]) == 2
    with pytest.raises(InputError, match="is not the id of a task"):
        episodes.rollout(["Fix my code"], trainer)
    with pytest.raises(ConfigError, match="validation"):
        episodes.dataset_rows(TaskSelection(splits=("validation",)))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", 0.7),
        ("top_p", 0.9),
        ("top_k", 50),
        ("use_vllm", True),
        ("use_transformers_continuous_batching", True),
        ("chat_template_kwargs", {"enable_thinking": False}),
        ("max_completion_length", 100),
    ],
)
def test_unsupported_settings_are_rejected(make_episodes, trainer, name, value) -> None:
    setattr(trainer.args, name, value)
    with pytest.raises(ConfigError, match=re.escape(f"GRPOConfig.{name}={value}")):
        make_episodes().rollout(PROMPTS, trainer)


def test_every_trainer_is_checked(make_episodes, trainer) -> None:
    episodes = make_episodes()
    episodes.rollout(PROMPTS[:1], trainer)
    args = SimpleNamespace(**vars(trainer.args) | {"temperature": 0.7})
    with pytest.raises(ConfigError, match="temperature"):
        episodes.rollout(PROMPTS[:1], replace(trainer, args=args))


def test_tools_of_the_trainer_are_rejected(make_episodes, trainer) -> None:
    trainer.tools = [print]
    with pytest.raises(ConfigError, match="leave them out"):
        make_episodes().rollout(PROMPTS, trainer)


def test_another_tokenizer_is_rejected(make_episodes, trainer) -> None:
    trainer.processing_class = train_tokenizer(["other text altogether"] * 20, 400, 40)
    with pytest.raises(ConfigError, match="tokenizer"):
        make_episodes().rollout(PROMPTS, trainer)


def test_sharded_weights_and_adapters_are_rejected(make_episodes, trainer) -> None:
    episodes = make_episodes()
    trainer.accelerator.distributed_type = type(trainer.accelerator.distributed_type)(value="FSDP")
    with pytest.raises(ConfigError, match="FSDP"):
        episodes.rollout(PROMPTS, trainer)
    trainer.accelerator.distributed_type.value = "NO"
    trainer.model = torch.nn.Sequential(trainer.model)
    with pytest.raises(ConfigError, match="whole weights"):
        episodes.rollout(PROMPTS, trainer)


@pytest.mark.parametrize(
    "pipeline", [PipelineConfig(context=ElisionConfig()), PipelineConfig(thinking="dropped"), FullConfig()]
)
def test_pipelines_that_fork_are_rejected(pipeline) -> None:
    with pytest.raises(ConfigError, match="forks"):
        check_rollout(RolloutConfig.model_construct(**{**RolloutConfig().model_dump(), "pipeline": pipeline}))


def test_a_forked_history_is_no_row(trajectory_maker) -> None:
    trajectory = trajectory_maker()
    builder = LedgerBuilder()
    builder.append_context([1, 2])
    builder.append_action([3], [-0.1], 0)
    builder.fork()
    builder.append_context([1])
    with pytest.raises(ValueError, match="forked"):
        make_row(type(trajectory)(**{**vars(trajectory), "ledger": builder.build()}), 0)


def test_trailing_observations_are_no_part_of_a_row(trajectory_maker) -> None:
    trajectory = trajectory_maker(kind=VerdictKind.PASSED)
    row = make_row(trajectory, 0)
    end = max(turn.action_span[1] for turn in trajectory.turns)
    assert row.prompt_ids + row.completion_ids == trajectory.ledger.token_id[:end].tolist()
    assert end < len(trajectory.ledger)

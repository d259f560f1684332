"""Checks of a `GRPOTrainer` before the first episode: a setting that our episodes cannot honor is an error."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from repairgym.config.pipeline import FullConfig, PipelineConfig, check_undemonstrated
from repairgym.config.rollout import RolloutConfig
from repairgym.errors import ConfigError

if TYPE_CHECKING:
    from trl import GRPOTrainer

_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "temperature": (1.0,),
    "top_p": (None, 1.0),
    "top_k": (None, 0, -1),
    "min_p": (None, 0.0),
    "repetition_penalty": (None, 1.0),
    "generation_kwargs": (None, {}),
    "chat_template_kwargs": (None, {}),
    "cache_implementation": (None,),
    "max_tool_calling_iterations": (None,),
    "use_vllm": (False,),
    "use_transformers_continuous_batching": (False,),
    "use_transformers_paged": (False,),
}
"""Settings of `GRPOConfig` with their neutral values: our engine samples at temperature 1, and the pipeline
sets prompts and tools."""
_WHOLE_WEIGHTS = ("NO", "MULTI_CPU", "MULTI_GPU")
"""accelerate's distribution types in which every process holds all weights."""


def check_rollout(config: RolloutConfig) -> None:
    """Raise `ConfigError` unless episodes of ``config`` are rows of TRL: one history each, sampled at temperature 1."""
    check_undemonstrated(config.pipeline)
    if reason := _forks(config.pipeline):
        raise ConfigError(
            f"{reason}, which forks the history, but a row of TRL holds one history; use: repairgym train rl"
        )
    if config.temperature != 1.0:
        raise ConfigError(f"rollout.temperature={config.temperature}: RL samples at temperature 1; leave it out")
    config.require_engine_room()


def _forks(pipeline: PipelineConfig) -> str:
    if pipeline.context.type != "full":
        return f"pipeline.context.type={pipeline.context.type!r} cuts the context"
    if pipeline.thinking == "dropped":
        return "pipeline.thinking='dropped' takes thoughts out of the context"
    if isinstance(pipeline, FullConfig):
        return "pipeline.type='full' begins a new history for each attempt"
    return ""


def check_trainer(trainer: GRPOTrainer, pipeline: PipelineConfig, tokenizer: PreTrainedTokenizerBase) -> None:
    """Raise `ConfigError`, which names the setting, where our episodes do not support all settings of ``trainer``."""
    for name, neutral in _NEUTRAL.items():
        value = getattr(trainer.args, name)
        if value not in neutral:
            raise ConfigError(f"GRPOConfig.{name}={value!r} is not honored by our episodes; set it to {neutral[-1]!r}")
    if trainer.tools:
        raise ConfigError(
            "the trainer has tools or an environment_factory, so TRL would learn text of the environment as if the "
            "model had sampled it; leave them out: the agent's tools are the pipeline's"
        )
    longest = trainer.args.max_completion_length
    if longest is not None and longest < pipeline.max_len_tokens:
        raise ConfigError(
            f"GRPOConfig.max_completion_length={longest} would not be honored: episodes end at "
            f"pipeline.max_len_tokens={pipeline.max_len_tokens}; set it to at least as much"
        )
    distribution = trainer.accelerator.distributed_type.value
    if distribution not in _WHOLE_WEIGHTS:
        raise ConfigError(
            f"accelerate distributes by {distribution}, where no process holds all weights; use DDP or one process"
        )
    if trainer.processing_class.get_vocab() != tokenizer.get_vocab():
        raise ConfigError(
            "the trainer's tokenizer is not that of the episodes; give both the tokenizer of the model's folder"
        )


def plain_model(trainer: GRPOTrainer) -> PreTrainedModel:
    """Return the model without wrappers of accelerate and torch; `ConfigError` unless it is a plain causal LM."""
    model = trainer.accelerator.unwrap_model(trainer.model, keep_torch_compile=False)
    if not isinstance(model, PreTrainedModel):
        raise ConfigError(
            f"the trainer's model is a {type(model).__name__}; our engine samples from whole weights of a Hugging Face "
            "causal LM only (no peft_config); LoRA: repairgym train rl trained.type=lora"
        )
    return model

"""What of a `GRPOTrainer` and of our configuration does not go together, said before the first episode.

Reads a trainer and a `RolloutConfig`; makes nothing. Invariant: a setting of TRL that our episodes cannot honour is an
error that names it, never a silent no-op.
"""

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
"""Settings of `GRPOConfig` with the values under which they change nothing: episodes sample at temperature 1 alone, by
our engine, and their prompts and tools are the pipeline's."""
_WHOLE_WEIGHTS = ("NO", "MULTI_CPU", "MULTI_GPU")
"""accelerate's ways of distributing in which every process holds all weights."""


def check_rollout(config: RolloutConfig) -> None:
    """Check that episodes of ``config`` are rows of TRL: one history each, sampled at temperature 1.

    Raises:
        ConfigError: they are not.
    """
    check_undemonstrated(config.pipeline)
    if reason := _forks(config.pipeline):
        raise ConfigError(
            f"{reason}, which forks the history, and a row of TRL holds one; train with: repairgym train rl"
        )
    if config.temperature != 1.0:
        raise ConfigError(f"rollout.temperature={config.temperature}: RL samples at temperature 1; leave it out")


def _forks(pipeline: PipelineConfig) -> str:
    if pipeline.context.type != "full":
        return f"pipeline.context.type={pipeline.context.type!r} cuts the context"
    if pipeline.thinking == "dropped":
        return "pipeline.thinking='dropped' takes thoughts out of the context"
    if isinstance(pipeline, FullConfig):
        return "pipeline.type='full' begins a new history for each attempt"
    return ""


def check_trainer(trainer: GRPOTrainer, pipeline: PipelineConfig, tokenizer: PreTrainedTokenizerBase) -> None:
    """Check that ``trainer`` asks for nothing that our episodes do not do.

    Raises:
        ConfigError: it does; the message names the setting.
    """
    for name, neutral in _NEUTRAL.items():
        value = getattr(trainer.args, name)
        if value not in neutral:
            raise ConfigError(f"GRPOConfig.{name}={value!r} is not honoured by our episodes; set it to {neutral[-1]!r}")
    if trainer.tools:
        raise ConfigError(
            "the trainer has tools or an environment_factory, and TRL then learns what the environment wrote as if the "
            "model had sampled it; leave them out: the agent's tools are the pipeline's"
        )
    longest = trainer.args.max_completion_length
    if longest is not None and longest < pipeline.max_len_tokens:
        raise ConfigError(
            f"GRPOConfig.max_completion_length={longest} would not be honoured: episodes end at "
            f"pipeline.max_len_tokens={pipeline.max_len_tokens}; set it to at least as much"
        )
    way = trainer.accelerator.distributed_type.value
    if way not in _WHOLE_WEIGHTS:
        raise ConfigError(
            f"accelerate distributes by {way}, where no process holds all weights; use DDP or one process"
        )
    if trainer.processing_class.get_vocab() != tokenizer.get_vocab():
        raise ConfigError(
            "the trainer's tokenizer is not that of the episodes; give both the tokenizer of the model's folder"
        )


def plain_model(trainer: GRPOTrainer) -> PreTrainedModel:
    """The model that ``trainer`` trains, without what accelerate and torch wrapped around it.

    Raises:
        ConfigError: it is no plain causal LM, or one with adapters.
    """
    model = trainer.accelerator.unwrap_model(trainer.model, keep_torch_compile=False)
    if not isinstance(model, PreTrainedModel):
        raise ConfigError(
            f"the trainer's model is a {type(model).__name__}; our engine samples from whole weights of a Hugging Face "
            "causal LM only (no peft_config); LoRA: repairgym train rl trained.type=lora"
        )
    return model

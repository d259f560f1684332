"""How and where it is computed, in verl's words: precision, micro-batches, sampling, machines, and what else verl asks.

Reads and takes values of `RlConfig`, `RolloutConfig` and `VerlConfig`; adds settings and refusals. Imports no verl.
"""

from __future__ import annotations

from repairgym.bridges.verl.settings import OUR_CHOICE, Setting, Settings
from repairgym.config.models import EngineConfig

_COMPUTE = "rl.algorithm.compute"
_MODEL = "actor_rollout_ref.model"
_ACTOR = "actor_rollout_ref.actor"
_REFERENCE = "actor_rollout_ref.ref"
_ROLLOUT = "actor_rollout_ref.rollout"


def translate(to: Settings) -> None:
    """Add everything of this module."""
    _compute(to)
    _precision(to)
    _trained(to)
    _sampling(to)
    _machines(to)
    _engine(to)
    _bookkeeping(to)


def _compute(to: Settings) -> None:
    to.fixed(f"{_ACTOR}.use_dynamic_bsz", True, "needed: micro-batches are counted in tokens")
    name, longest = f"{_COMPUTE}.micro_batch_tokens", to.leaves.peek("rollout.pipeline.max_len_tokens")
    if to.leaves.peek(name) < longest:
        to.refuse(name, f"verl packs whole sequences, of up to rollout.pipeline.max_len_tokens={longest}")
    else:
        # The reference's follow from the actor's.
        share = -(-to.leaves.peek(name) // to.machine.sequence_parallel)
        to.ours(f"{_ACTOR}.ppo_max_token_len_per_gpu", name, share)
    to.fixed(f"{_ACTOR}.calculate_entropy", True, "our choice: verl/actor/entropy_loss, of the learner's own weights")
    to.fixed(f"{_ACTOR}.entropy_from_logits_with_chunking", True, "needed: entropy by chunks of positions")
    to.ours(f"{_ACTOR}.entropy_from_logits_chunk_size", f"{_COMPUTE}.head_chunk_tokens")
    to.ours(f"{_MODEL}.enable_gradient_checkpointing", f"{_COMPUTE}.is_checkpointing")
    if to.machine.device == "cpu":
        to.fixed(f"{_MODEL}.use_remove_padding", False, "needed: a CPU has no flash attention")
        to.fixed(f"{_MODEL}.override_config.attn_implementation", "sdpa", "needed: as above")
        to.fixed(f"{_ACTOR}.use_torch_compile", False, "needed: slower on a CPU than without")
    else:
        to.fixed(f"{_MODEL}.use_remove_padding", True, "needed: sequences differ much in length")


def _precision(to: Settings) -> None:
    """Of the learner, its reference where there is one, and the sampler."""
    name = f"{_COMPUTE}.is_bf16"
    is_bf16 = to.leaves.peek(name)
    has_reference = to.leaves.peek("rl.algorithm.kl.type") != "none"
    for part in (_ACTOR, _REFERENCE) if has_reference else (_ACTOR,):
        engine = f"{part}.fsdp_config"
        to.fixed(f"{engine}.model_dtype", "fp32", "needed: our weights and optimiser are float32")
        to.ours(f"{engine}.mixed_precision.param_dtype", name, "bf16" if is_bf16 else "fp32")
        for kind in ("reduce", "buffer"):
            to.fixed(f"{engine}.mixed_precision.{kind}_dtype", "fp32", "needed: as `repairgym train rl`")
        if to.machine.device == "cpu":
            to.fixed(f"{engine}.use_torch_compile", False, "needed: slower on a CPU than without")
    to.ours(f"{_ROLLOUT}.dtype", name, "bfloat16" if is_bf16 else "float32")


def _trained(to: Settings) -> None:
    prefix = "rl.algorithm.trained"
    if to.leaves.take(f"{prefix}.type") == "full":
        return
    to.ours(f"{_MODEL}.lora_rank", f"{prefix}.rank")
    to.ours(f"{_MODEL}.lora_alpha", f"{prefix}.alpha")
    targets = list(to.leaves.peek(f"{prefix}.targets")) or "all-linear"
    to.ours(f"{_MODEL}.target_modules", f"{prefix}.targets", targets)
    if to.machine.engine == "embedded":
        to.refuse(f"{prefix}.type", "the embedded engine takes whole weights under verl")


def _sampling(to: Settings) -> None:
    plain = "needed: temperature 1 and nothing else (paper B, section 5.2)"
    to.ours(f"{_ROLLOUT}.temperature", "rollout.temperature")
    for key, value in (("top_p", 1.0), ("top_k", -1)):
        to.fixed(f"{_ROLLOUT}.{key}", value, plain)
        to.fixed(f"{_ROLLOUT}.val_kwargs.{key}", value, plain)
    to.fixed(f"{_ROLLOUT}.val_kwargs.temperature", 1.0, plain)
    to.fixed(f"{_ROLLOUT}.val_kwargs.do_sample", True, plain)
    to.fixed(f"{_ROLLOUT}.calculate_log_probs", True, "needed: the ledger holds the sampler's log-probabilities")
    name = "rollout.pipeline.max_len_tokens"
    longest = to.leaves.peek(name)
    to.ours(f"{_ROLLOUT}.max_model_len", name)
    to.fixed("data.max_prompt_length", longest // 4, f"a quarter of {name}: {OUR_CHOICE}, of no effect on episodes")
    to.fixed("data.max_response_length", longest - longest // 4, f"the rest of {name}")
    to.ours(f"{_ROLLOUT}.agent.num_workers", "rollout.num_workers")


def _machines(to: Settings) -> None:
    for key, name in (
        ("trainer.nnodes", "num_nodes"),
        ("trainer.n_gpus_per_node", "gpus_per_node"),
        ("trainer.device", "device"),
        (f"{_ROLLOUT}.name", "engine"),
        (f"{_ROLLOUT}.tensor_model_parallel_size", "rollout_tensor_parallel"),
        (f"{_ROLLOUT}.gpu_memory_utilization", "gpu_memory_share"),
        (f"{_ACTOR}.ulysses_sequence_parallel_size", "sequence_parallel"),
        (f"{_ACTOR}.fsdp_config.param_offload", "is_offloaded"),
        (f"{_ACTOR}.fsdp_config.optimizer_offload", "is_offloaded"),
        ("trainer.save_freq", "save_every"),
        ("trainer.max_actor_ckpt_to_keep", "num_checkpoints_kept"),
    ):
        to.found.append(Setting(key, getattr(to.machine, name), f"verl.{name}"))
    to.fixed(f"{_ACTOR}.strategy", "fsdp2", OUR_CHOICE)


def _engine(to: Settings) -> None:
    for name in EngineConfig.model_fields:
        full = f"rollout.engine.{name}"
        if to.machine.engine == "embedded":
            to.ours(f"{_ROLLOUT}.custom.engine.{name}", full)
        elif name == "max_len_tokens" or to.leaves.peek(full) == EngineConfig.model_fields[name].default:
            to.leaves.take(full)
        else:
            to.refuse(full, "it is the embedded engine's; verl.engine is 'vllm'")


def _bookkeeping(to: Settings) -> None:
    """What verl wants to be told beside."""
    ours, package = "needed: our own", "pkg://repairgym.bridges.verl"
    for key, value, why in (
        ("critic.enable", False, "needed: advantages are relative to the group"),
        ("trainer.v1.sampler.custom_sampler.path", f"{package}.group_sampler", ours),
        ("trainer.v1.sampler.custom_sampler.name", "GroupSampler", ours),
        (f"{_ROLLOUT}.agent.default_agent_loop", "repairgym", ours),
        ("data.gen_batch_size", 1, "needed: refills are counted in groups"),
        ("data.shuffle", True, "needed: rl.curriculum is uniform"),
        ("data.seed", to.seed, "seed"),
        ("data.dataloader_num_workers", 0, "our choice: rows are small"),
        ("reward.num_workers", 1, "needed by verl; rewards come with the episodes"),
        ("trainer.total_epochs", to.leaves.peek("rl.max_iterations"), "needed: trainer.total_training_steps ends"),
        ("trainer.val_before_train", False, "as `repairgym train rl`"),
        ("trainer.logger", ["file"], "needed: metrics come back to run.db through it"),
        ("trainer.resume_mode", "auto", "needed: a run goes on where it was"),
        (
            f"{_ACTOR}.checkpoint.save_contents",
            ["model", "optimizer", "extra", "hf_model"],
            "needed: a model folder for repairgym eval",
        ),
        (
            "transfer_queue.backend.SimpleStorage.num_data_storage_units",
            to.machine.num_nodes,
            "our choice: little is stored besides tokens",
        ),
    ):
        to.fixed(key, value, why)

"""Our RL configuration in verl's words (verl 0.9.1, `verl/trainer/config/ppo_trainer.yaml`).

Reads `RlConfig`, `RolloutConfig` and `VerlConfig`; makes settings: a verl key, its value and where that comes from.
Invariants: every value of ours is translated, is carried out by our own code inside the episodes, or is refused by
name when it is not the neutral one; nothing is a silent no-op. Imports no verl.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mendwright.bridges.verl.leaves import Leaves
from mendwright.bridges.verl.refusals import problems_of
from mendwright.config.models import EngineConfig
from mendwright.config.recipes import RlConfig
from mendwright.config.rollout import RolloutConfig
from mendwright.config.verl import VerlConfig
from mendwright.errors import ConfigError

OUR_CHOICE = "our choice"
UNBOUNDED_DUAL_CLIP = 1e9
"""verl always clips ratio * |A| where A < 0; this bound is never met."""
_DELTA = 1e-6
"""What verl's GRPO adds to the deviation; it cannot be set."""


@dataclass(frozen=True)
class Setting:
    """One value of verl's configuration."""

    key: str
    """Dotted, as in ``ppo_trainer.yaml``."""
    value: Any
    source: str
    """The key of ours that it comes from, or why it is as it is."""
    is_ours: bool = True
    """True when ``source`` is a key of ours."""


def translate(rl: RlConfig, rollout: RolloutConfig, machine: VerlConfig, seed: int) -> list[Setting]:
    """What verl is told for one stage of RL, without paths and names.

    Raises:
        ConfigError: verl has no counterpart of a value; all such values are named.
    """
    leaves = Leaves({"rl": rl, "rollout": rollout})
    translator = _Translator(leaves, machine, seed)
    settings = translator.run()
    problems = translator.problems + problems_of(leaves)
    if problems:
        raise ConfigError(f"verl has no counterpart of: {'; '.join(problems)}. `mend train rl` has them all")
    return settings


class _Translator:
    def __init__(self, leaves: Leaves, machine: VerlConfig, seed: int) -> None:
        self.problems: list[str] = []
        self._leaves = leaves
        self._machine = machine
        self._seed = seed
        self._settings: list[Setting] = []

    def run(self) -> list[Setting]:
        self._sizes()
        self._loss()
        self._advantage()
        self._kl()
        self._correction()
        self._optimizer()
        self._compute()
        self._sampling()
        self._machines()
        self._bookkeeping()
        return self._settings

    # --- helpers ---------------------------------------------------------------------------------------------------

    def _ours(self, key: str, name: str, value: Any = None) -> None:
        """A setting from a key of ours; ``value`` where it is not simply the same."""
        taken = self._leaves.take(name)
        self._settings.append(Setting(key, taken if value is None else value, name))

    def _fixed(self, key: str, value: Any, why: str) -> None:
        self._settings.append(Setting(key, value, why, is_ours=False))

    def _refuse(self, name: str, why: str) -> None:
        self.problems.append(f"{name}={self._leaves.peek(name)!r} ({why})")

    # --- what is learned -------------------------------------------------------------------------------------------

    def _sizes(self) -> None:
        take = self._leaves.take
        self._ours("data.train_batch_size", "rl.num_groups_sampled")
        self._ours("trainer.v1.sampler.sampler_kwargs.num_groups", "rl.num_groups")
        self._ours("trainer.v1.sampler.sampler_kwargs.max_refills", "rl.max_refills")
        self._ours("actor_rollout_ref.rollout.n", "rl.dapo.group_size")
        self._batch_size(take("rl.dapo.batch_size"), self._leaves.peek("rl.dapo.group_size"))
        self._ours("actor_rollout_ref.actor.ppo_epochs", "rl.dapo.num_epochs")
        self._ours("actor_rollout_ref.actor.data_loader_seed", "rl.dapo.seed")
        self._ours("trainer.total_training_steps", "rl.max_iterations")
        num_tasks = self._leaves.peek("rl.num_validation_tasks")
        self._ours("trainer.test_freq", "rl.validation_every", None if num_tasks else -1)
        self._ours("data.val_max_samples", "rl.num_validation_tasks", num_tasks or 1)

    def _batch_size(self, batch_size: int, group_size: int) -> None:
        name, key = "rl.dapo.batch_size", "actor_rollout_ref.actor.ppo_mini_batch_size"
        num_groups = max(1, round(batch_size / group_size))
        if num_groups * group_size == batch_size:
            self._settings.append(Setting(key, num_groups, name))
        elif self._machine.batch_rounding == "nearest":
            why = f"{name} / rl.dapo.group_size = {batch_size} / {group_size}, in whole groups (batch_rounding)"
            self._settings.append(Setting(key, num_groups, why, is_ours=False))
        else:
            self._refuse(
                name,
                f"verl counts in whole groups of {group_size}; set {num_groups * group_size}, or "
                "verl.batch_rounding='nearest'",
            )

    def _loss(self) -> None:
        prefix, actor = "rl.dapo.loss", "actor_rollout_ref.actor"
        kind = self._leaves.peek(f"{prefix}.type")
        if kind == "ppo":
            self._refuse(f"{prefix}.type", "our value head shares the model, verl's critic is another model")
            self._leaves.take_section(prefix)
            return
        modes = {"dapo": "vanilla", "grpo": "vanilla", "dr_grpo": "vanilla", "gspo": "gspo", "cispo": "cispo"}
        self._ours(f"{actor}.policy_loss.loss_mode", f"{prefix}.type", modes[kind])
        if kind == "cispo":
            self._ours(f"{actor}.clip_ratio_low", f"{prefix}.min_ratio", 1.0 - self._leaves.peek(f"{prefix}.min_ratio"))
            self._ours(f"{actor}.clip_ratio_high", f"{prefix}.max_ratio", self._leaves.peek(f"{prefix}.max_ratio") - 1)
        else:
            self._ours(f"{actor}.clip_ratio_low", f"{prefix}.eps_low")
            self._ours(f"{actor}.clip_ratio_high", f"{prefix}.eps_high")
        if f"{prefix}.dual_clip" in self._leaves:
            bound = self._leaves.peek(f"{prefix}.dual_clip") or UNBOUNDED_DUAL_CLIP
            self._ours(f"{actor}.clip_ratio_c", f"{prefix}.dual_clip", bound)
        self._denominator(prefix, actor)

    def _denominator(self, prefix: str, actor: str) -> None:
        name = f"{prefix}.denominator"
        modes = {"token": "token-mean", "trajectory": "seq-mean-token-mean", "constant": "seq-mean-token-sum-norm"}
        denominator = self._leaves.take(name)
        if denominator not in modes:
            self._refuse(name, "verl takes means over tokens or over trajectories")
            return
        self._settings.append(Setting(f"{actor}.loss_agg_mode", modes[denominator], name))
        if denominator == "constant":
            self._ours(f"{actor}.loss_scale_factor", f"{prefix}.max_action_tokens")
        if denominator != "token" and self._leaves.peek("rl.dapo.overlong") == "baseline_only":
            self._refuse("rl.dapo.overlong", "verl counts masked trajectories in a mean over trajectories")

    def _advantage(self) -> None:
        prefix = "rl.dapo.advantage"
        kind = self._leaves.peek(f"{prefix}.type")
        baseline = self._leaves.peek(f"{prefix}.baseline") if kind == "reinforce_pp" else "none"
        names = {
            "group": "grpo",
            "dr_grpo": "grpo",
            "rloo": "rloo",
            "reinforce_pp": "reinforce_plus_plus" if baseline == "none" else "reinforce_plus_plus_baseline",
        }
        if kind not in names or baseline == "leave_one_out":
            self._refuse(f"{prefix}.type", "verl has no such estimator")
            self._leaves.take_section(prefix)
            return
        self._ours("algorithm.adv_estimator", f"{prefix}.type", names[kind])
        if kind in ("group", "dr_grpo"):
            self._fixed("algorithm.norm_adv_by_std_in_grpo", kind == "group", f"needed: {prefix}.type is {kind}")
        if f"{prefix}.delta" in self._leaves and self._leaves.take(f"{prefix}.delta") != _DELTA:
            self._refuse(f"{prefix}.delta", f"verl's is {_DELTA}")
        self._leaves.take_section(prefix)

    def _kl(self) -> None:
        prefix, actor = "rl.dapo.kl", "actor_rollout_ref.actor"
        kind = self._leaves.take(f"{prefix}.type")
        if kind == "k1":
            self._refuse(f"{prefix}.type", "verl takes k1 from the reward, ours from each token's advantage")
            self._leaves.take_section(prefix)
            return
        self._settings.append(Setting(f"{actor}.use_kl_loss", kind != "none", f"{prefix}.type"))
        if kind != "none":
            self._settings.append(Setting(f"{actor}.kl_loss_type", kind, f"{prefix}.type"))
            self._ours(f"{actor}.kl_loss_coef", f"{prefix}.coefficient")

    def _correction(self) -> None:
        prefix, theirs = "rl.dapo.correction", "algorithm.rollout_correction"
        kind = self._leaves.take(f"{prefix}.type")
        self._settings.append(Setting(f"{theirs}.bypass_mode", kind == "none", f"{prefix}.type"))
        if kind == "none":
            return
        self._ours(f"{theirs}.rollout_is", f"{prefix}.level")
        if kind == "truncate":
            self._ours(f"{theirs}.rollout_is_threshold", f"{prefix}.max_ratio")
            return
        low, high = (self._leaves.take(f"{prefix}.{name}_ratio") for name in ("min", "max"))
        self._settings.append(Setting(f"{theirs}.rollout_is_threshold", f"{low}_{high}", f"{prefix}.max_ratio"))

    def _optimizer(self) -> None:
        prefix, theirs = "rl.dapo.optimizer", "actor_rollout_ref.actor.optim"
        if self._leaves.take(f"{prefix}.type") != "adamw":
            self._refuse(f"{prefix}.type", "verl has no Muon")
        for name in ("muon_learning_rate", "muon_momentum"):
            self._leaves.take(f"{prefix}.{name}")  # read by Muon only, which is refused
        self._ours(f"{theirs}.lr", f"{prefix}.learning_rate")
        self._ours(f"{theirs}.betas", f"{prefix}.betas", list(self._leaves.peek(f"{prefix}.betas")))
        self._ours(f"{theirs}.override_optimizer_config.eps", f"{prefix}.eps")
        self._ours(f"{theirs}.weight_decay", f"{prefix}.weight_decay")
        self._ours(f"{theirs}.clip_grad", f"{prefix}.max_grad_norm")
        self._ours("actor_rollout_ref.actor.grad_clip", f"{prefix}.max_grad_norm")
        self._ours(f"{theirs}.lr_warmup_steps", f"{prefix}.num_warmup_steps")
        if self._leaves.peek(f"{prefix}.schedule") == "linear":
            self._refuse(f"{prefix}.schedule", "verl has 'constant' and 'cosine'")
        self._ours(f"{theirs}.lr_scheduler_type", f"{prefix}.schedule")
        self._ours(f"{theirs}.min_lr_ratio", f"{prefix}.final_lr_ratio")

    # --- how it is computed ----------------------------------------------------------------------------------------

    def _compute(self) -> None:
        prefix, ref, actor = "rl.dapo.compute", "actor_rollout_ref", "actor_rollout_ref.actor"
        self._fixed(f"{actor}.use_dynamic_bsz", True, "needed: micro-batches are counted in tokens")
        name, longest = f"{prefix}.micro_batch_tokens", self._leaves.peek("rollout.pipeline.max_len_tokens")
        if self._leaves.peek(name) < longest:
            self._refuse(name, f"verl packs whole sequences, of up to rollout.pipeline.max_len_tokens={longest}")
        share = -(-self._leaves.peek(name) // self._machine.sequence_parallel)
        self._ours(f"{actor}.ppo_max_token_len_per_gpu", name, share)
        self._ours(f"{ref}.ref.log_prob_max_token_len_per_gpu", name, share)
        self._fixed(f"{ref}.ref.log_prob_use_dynamic_bsz", True, "needed: as the actor's")
        self._fixed(f"{actor}.calculate_entropy", True, "our choice: alarms look at it")
        self._fixed(f"{actor}.entropy_from_logits_with_chunking", True, "needed: entropy by chunks of positions")
        self._ours(f"{actor}.entropy_from_logits_chunk_size", f"{prefix}.head_chunk_tokens")
        self._precision(prefix, actor)
        self._ours(f"{ref}.model.enable_gradient_checkpointing", f"{prefix}.is_checkpointing")
        self._trained()

    def _precision(self, prefix: str, actor: str) -> None:
        is_bf16 = self._leaves.take(f"{prefix}.is_bf16")
        short, long = ("bf16", "bfloat16") if is_bf16 else ("fp32", "float32")
        self._fixed(f"{actor}.fsdp_config.model_dtype", "fp32", "needed: our weights and optimiser are float32")
        for key in ("param_dtype", "reduce_dtype", "buffer_dtype"):
            value = short if key == "param_dtype" else "fp32"
            setting = Setting(f"{actor}.fsdp_config.mixed_precision.{key}", value, f"{prefix}.is_bf16")
            self._settings.append(setting)
        self._settings.append(Setting("actor_rollout_ref.rollout.dtype", long, f"{prefix}.is_bf16"))

    def _trained(self) -> None:
        prefix, model = "rl.dapo.trained", "actor_rollout_ref.model"
        if self._leaves.take(f"{prefix}.type") == "full":
            return
        self._ours(f"{model}.lora_rank", f"{prefix}.rank")
        self._ours(f"{model}.lora_alpha", f"{prefix}.alpha")
        self._ours(
            f"{model}.target_modules", f"{prefix}.targets", list(self._leaves.peek(f"{prefix}.targets")) or "all-linear"
        )
        if self._machine.engine == "embedded":
            self._refuse(f"{prefix}.type", "the embedded engine takes whole weights under verl")

    def _sampling(self) -> None:
        rollout, plain = "actor_rollout_ref.rollout", "needed: temperature 1 and nothing else (paper B, section 5.2)"
        self._ours(f"{rollout}.temperature", "rollout.temperature")
        for key, value in (("top_p", 1.0), ("top_k", -1)):
            self._fixed(f"{rollout}.{key}", value, plain)
            self._fixed(f"{rollout}.val_kwargs.{key}", value, plain)
        self._fixed(f"{rollout}.val_kwargs.temperature", 1.0, plain)
        self._fixed(f"{rollout}.val_kwargs.do_sample", True, plain)
        self._fixed(f"{rollout}.calculate_log_probs", True, "needed: the ledger holds the sampler's log-probabilities")
        longest = self._leaves.peek("rollout.pipeline.max_len_tokens")
        name = "rollout.pipeline.max_len_tokens"
        self._settings.append(Setting(f"{rollout}.max_model_len", longest, name))
        self._settings.append(
            Setting("data.max_prompt_length", longest // 4, f"a quarter of {name}: {OUR_CHOICE}", False)
        )
        self._settings.append(Setting("data.max_response_length", longest - longest // 4, f"the rest of {name}", False))
        self._ours(f"{rollout}.agent.num_workers", "rollout.num_workers")

    def _machines(self) -> None:
        machine, actor, rollout = self._machine, "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
        for key, name in (
            ("trainer.nnodes", "num_nodes"),
            ("trainer.n_gpus_per_node", "gpus_per_node"),
            ("trainer.device", "device"),
            (f"{rollout}.name", "engine"),
            (f"{rollout}.tensor_model_parallel_size", "rollout_tensor_parallel"),
            (f"{rollout}.gpu_memory_utilization", "gpu_memory_share"),
            (f"{actor}.ulysses_sequence_parallel_size", "sequence_parallel"),
            (f"{actor}.fsdp_config.param_offload", "is_offloaded"),
            (f"{actor}.fsdp_config.optimizer_offload", "is_offloaded"),
            ("trainer.save_freq", "save_every"),
            ("trainer.max_actor_ckpt_to_keep", "num_checkpoints_kept"),
        ):
            self._settings.append(Setting(key, getattr(machine, name), f"verl.{name}"))
        self._fixed(f"{actor}.strategy", "fsdp2", OUR_CHOICE)
        if machine.sequence_parallel > 1 or machine.device == "cuda":
            self._fixed("actor_rollout_ref.model.use_remove_padding", True, "needed: sequences differ much in length")
        self._engine()
        if machine.device == "cpu":
            self._fixed("actor_rollout_ref.model.use_remove_padding", False, "needed: a CPU has no flash attention")
            self._fixed("actor_rollout_ref.model.override_config.attn_implementation", "sdpa", "needed: as above")
            self._fixed(f"{actor}.use_torch_compile", False, "needed: slower on a CPU than without")
            self._fixed(f"{actor}.fsdp_config.use_torch_compile", False, "needed: as above")

    def _engine(self) -> None:
        for name in EngineConfig.model_fields:
            full = f"rollout.engine.{name}"
            if self._machine.engine == "embedded":
                self._ours(f"actor_rollout_ref.rollout.custom.engine.{name}", full)
                continue
            if name == "max_len_tokens" or self._leaves.peek(full) == EngineConfig.model_fields[name].default:
                self._leaves.take(full)
            else:
                self._refuse(full, "it is the embedded engine's; verl.engine is 'vllm'")
                self._leaves.take(full)

    def _bookkeeping(self) -> None:
        ours, few = "needed: our own", "our choice: little is stored besides tokens"
        package = "pkg://mendwright.bridges.verl"
        self._fixed("critic.enable", False, "needed: advantages are relative to the group")
        self._fixed("trainer.v1.sampler.custom_sampler.path", f"{package}.group_sampler", ours)
        self._fixed("trainer.v1.sampler.custom_sampler.name", "GroupSampler", ours)
        self._fixed("actor_rollout_ref.rollout.agent.default_agent_loop", "mendwright", ours)
        self._fixed("data.gen_batch_size", 1, "needed: refills are counted in groups")
        self._fixed("data.shuffle", True, "needed: rl.curriculum is uniform")
        self._fixed("data.seed", self._seed, "seed")
        self._fixed("data.dataloader_num_workers", 0, "our choice: rows are small")
        self._fixed("reward.num_workers", 1, "needed by verl; rewards come with the episodes")
        self._fixed(
            "trainer.total_epochs", self._leaves.peek("rl.max_iterations"), "needed: trainer.total_training_steps ends"
        )
        self._fixed("trainer.val_before_train", False, "as `mend train rl`")
        self._fixed("trainer.logger", ["file"], "needed: metrics come back to run.db through it")
        self._fixed("trainer.resume_mode", "auto", "needed: a run goes on where it was")
        contents = ["model", "optimizer", "extra", "hf_model"]
        self._fixed(
            "actor_rollout_ref.actor.checkpoint.save_contents", contents, "needed: a model folder for mend eval"
        )
        self._fixed("transfer_queue.backend.SimpleStorage.num_data_storage_units", self._machine.num_nodes, few)

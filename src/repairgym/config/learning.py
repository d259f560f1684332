"""Training settings. Defaults are the papers' published values, with the source next to each.

"Paper A" is arXiv 2510.22075, "paper B" is arXiv 2508.03501. Every value that changes a result is here. Imports no
torch.
"""

from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from repairgym.config import algorithms
from repairgym.config.algorithms import PRESETS, PresetParts
from repairgym.records import Record


class OptimizerConfig(Record):
    """Optimizer, gradient clipping and learning-rate schedule (defaults: paper B, Table 3)."""

    type: Literal["adamw", "muon"] = "adamw"
    """``muon``: 2-D hidden matrices by Muon, embeddings, output head and vectors by AdamW."""
    learning_rate: PositiveFloat = 1e-6
    """Learning rate of AdamW (paper B, Table 3)."""
    muon_learning_rate: PositiveFloat = 0.02
    """Learning rate of Muon; its updates are orthogonal, so it is far larger than that of AdamW."""
    muon_momentum: float = Field(default=0.95, ge=0.0, lt=1.0)
    betas: tuple[float, float] = (0.9, 0.999)
    """Paper B, Table 3."""
    eps: PositiveFloat = 1e-8
    """Paper B, Table 3."""
    weight_decay: NonNegativeFloat = 0.1
    """Paper B, Table 3; on matrices, not on norms and biases."""
    max_grad_norm: PositiveFloat = 1.0
    """Paper B, Table 3."""
    num_warmup_steps: NonNegativeInt = 0
    schedule: Literal["constant", "cosine", "linear"] = "constant"
    """Schedule after the warm-up; ``cosine`` and ``linear`` end at ``final_lr_ratio`` of the peak."""
    final_lr_ratio: float = Field(default=0.0, ge=0.0, le=1.0)


class ComputeConfig(Record):
    """Computation of a batch: affects speed and memory, results only by floating-point noise."""

    micro_batch_tokens: PositiveInt = 8192
    """Distinct tokens of one forward and backward pass."""
    head_chunk_tokens: PositiveInt = 8192
    """Positions whose logits are in memory at one time ..."""
    head_chunk_vocab: PositiveInt = 65536
    """... and vocabulary entries."""
    is_bf16: bool = False
    """bfloat16 autocast; weights, logits and losses stay float32."""
    is_checkpointing: bool = False
    """Activation checkpointing: recompute layers in the backward pass; memory falls to one layer's."""
    context_parallel: PositiveInt = 1
    """Processes (torchrun) that share the tokens of a micro-batch, for contexts too long for one process: Ulysses
    (arXiv 2309.14509). Must divide the number of processes and the model's numbers of attention and key-value heads.
    Paper B (appendix D) uses context parallelism, over an unstated number of devices."""
    is_offloaded: bool = False
    """Keep weights, gradients and optimizer state of several processes in host memory (FSDP2); layers come to the GPU
    when they are computed, and the optimizer steps on the CPU. Slower; for models that GPUs cannot hold."""
    num_threads: PositiveInt | None = None
    """torch threads of the process; None: torch's own setting. 1 is fastest next to other busy processes."""


class FullConfig(Record):
    """Training of all weights (both papers)."""

    type: Literal["full"] = "full"


class LoraConfig(Record):
    """Low-rank updates of the linear layers, by peft (LoRA, arXiv 2106.09685); embeddings and head are frozen.

    Our choices: the papers train all weights.
    """

    type: Literal["lora"] = "lora"
    rank: PositiveInt = 16
    alpha: PositiveInt = 32
    """The update is scaled by alpha / rank."""
    targets: tuple[str, ...] = ()
    """Name suffixes of the linear layers; empty: all but the output head."""


TrainedConfig = Annotated[FullConfig | LoraConfig, Field(discriminator="type")]


class LastChoice(Record):
    """The weights after the last step (paper B: one epoch)."""

    type: Literal["last"] = "last"


class _ValidatedChoice(Record):
    """Comparison of checkpoints on held-out validation tasks."""

    validation_share: float = Field(default=0.15, gt=0.0, lt=1.0)
    """Share of the tasks; paper A (section on SFT) keeps 17 of 101 and 54 of 365 trajectories."""
    every_steps: NonNegativeInt = 0
    """Optimizer steps between comparisons; 0: after each epoch."""


class LossChoice(_ValidatedChoice):
    """The checkpoint with the lowest validation loss."""

    type: Literal["loss"] = "loss"


class EntropyWindowChoice(_ValidatedChoice):
    """The last checkpoint whose entropy is in a window, or the nearest to it, so that RL can still explore.

    C3PO (Ring-lite, arXiv 2506.14731): more epochs lower the entropy, and RL then collapses earlier.
    """

    type: Literal["entropy_window"] = "entropy_window"
    low: NonNegativeFloat = 0.3
    """Nats per action token; Ring-lite: 0.3 to 0.5."""
    high: PositiveFloat = 0.5

    @model_validator(mode="after")
    def _is_window(self) -> Self:
        if self.low >= self.high:
            raise ValueError(f"low={self.low} must be below high={self.high}")
        return self


ChoiceConfig = Annotated[LastChoice | LossChoice | EntropyWindowChoice, Field(discriminator="type")]


class SftConfig(Record):
    """Supervised fine-tuning on successful trajectories (defaults: paper A, appendix on SFT).

    Loss on actions only; instructions and tool responses are masked; float32.
    """

    optimizer: OptimizerConfig = OptimizerConfig(learning_rate=2e-5)
    """Learning rate 2e-5: the best of the search {6,20,60,200}e-7 (paper A); the rest is paper B's."""
    compute: ComputeConfig = ComputeConfig()
    batch_size: PositiveInt = 4
    """Trajectories per optimizer step, of one whose history forked each history; paper A: at most 4 per GPU."""
    num_epochs: PositiveInt = 1
    is_format_error_masked: bool = False
    thoughts: Literal["keep", "require", "remove"] = "keep"
    """Treatment of thoughts (``<think>`` to ``</think>``). ``keep``: as sampled. ``require``: only trajectories with a
    thought in every action (paper A's thinking set). ``remove``: cut from actions and context (its no-thinking set)."""
    is_paired: bool = False
    """Learn only from trajectories with a thought in every action, also where thoughts are removed, so that both modes
    have the same episodes. False as in paper A, where 101 thinking and 365 other trajectories are compared."""
    choice: ChoiceConfig = LastChoice()
    """Selection of the final checkpoint."""
    save_every_steps: PositiveInt = 50
    """Optimizer steps between saved states; a killed run resumes from the last."""
    trained: TrainedConfig = FullConfig()
    seed: int = 0


class RftConfig(SftConfig):
    """Rejection-sampling fine-tuning (paper B, section 4.2 and appendix C)."""

    optimizer: OptimizerConfig = OptimizerConfig(
        learning_rate=5e-6, weight_decay=0.1, num_warmup_steps=10, schedule="cosine", final_lr_ratio=0.0
    )
    batch_size: PositiveInt = 64
    is_format_error_masked: bool = True
    """Actions with an environment-format error stay in the context, but are not trained on."""


class AlgorithmConfig(Record):
    """The policy update. The defaults are paper B's DAPO (section 3.2, Table 3, stage 1).

    A ``preset`` names an algorithm and fills in each part that is not set (table: `docs/howto/algorithms.md`).
    ``algorithm="grpo"`` is short for ``algorithm.preset="grpo"``.
    """

    SHORTHAND: ClassVar[str] = "preset"
    """Field that is set when a plain string replaces this section."""
    PRESET_PARTS: ClassVar[tuple[str, ...]] = PresetParts._fields
    """Fields that another preset replaces."""

    preset: algorithms.Preset = "dapo"
    """Named algorithm; fills in ``loss`` and ``advantage`` where they are not set."""
    loss: algorithms.LossConfig = PRESETS["dapo"].loss
    """Objective of the update."""
    advantage: algorithms.AdvantageConfig = PRESETS["dapo"].advantage
    """Comparison of a trajectory with its group, or of a token with the value head."""
    correction: algorithms.SamplerCorrectionConfig = algorithms.NoCorrectionConfig()
    """Correction of the gap between sampler and learner. Set ``truncate`` or ``mask`` with a non-embedded engine."""
    kl: algorithms.ReferenceKlConfig = algorithms.NoKlConfig()
    demonstration: algorithms.DemonstrationConfig = algorithms.NoDemonstrationConfig()
    overlong: algorithms.OverlongPolicy = "penalize"
    group_size: PositiveInt = 10
    """Trajectories per problem."""
    batch_size: PositiveInt = 128
    """Trajectories per optimizer step, forked or not; stage 2 uses 256."""
    num_epochs: PositiveInt = 1
    token_budget: PositiveInt | None = None
    """Trained tokens per optimizer step and denominator of its loss; more are cut (C3PO, Ring-lite, arXiv
    2506.14731, section 3.2: 409,600); None: no bound."""
    is_error_masked: bool = False
    """Mask turns that ended in a format or tool error where the advantage is positive, because they did not cause the
    success; keep them where it is negative. RFT's rule (paper B, section 4.2) for RL; our choice."""
    negative_weight: NonNegativeFloat = 1.0
    """Factor on negative advantages. Below 1, failures (which are longer) move less probability to untried tokens."""
    optimizer: OptimizerConfig = OptimizerConfig()
    compute: ComputeConfig = ComputeConfig()
    trained: TrainedConfig = FullConfig()
    seed: int = 0

    @property
    def needs_reference(self) -> bool:
        """True when the update reads the model that the run started from."""
        return self.kl.type != "none" or getattr(self.advantage, "teacher", "") == "start"

    def with_preset(self, name: str) -> Self:
        """Return a copy with the parts of ``name``; an unknown or unchanged name changes nothing."""
        if name not in PRESETS or name == self.preset:
            return self
        return self.model_copy(update={"preset": name, **PRESETS[name]._asdict()})  # type: ignore[index]

    @model_validator(mode="after")
    def _fill_parts(self) -> Self:
        parts = PRESETS[self.preset]._asdict()
        self.__dict__.update({name: part for name, part in parts.items() if name not in self.model_fields_set})
        return self

    @model_validator(mode="after")
    def _parts_fit(self) -> Self:
        if (self.loss.type == "ppo") != (self.advantage.type == "gae"):
            raise ValueError(
                f"loss.type={self.loss.type!r} with advantage.type={self.advantage.type!r}: the value head of 'ppo' "
                "and the estimator 'gae' need each other; choose both or neither"
            )
        if self.token_budget and self.loss.denominator != "token":
            raise ValueError(
                f"token_budget={self.token_budget} replaces the denominator 'token', but loss.denominator is "
                f"{self.loss.denominator!r}; set token_budget='none' or another loss"
            )
        if self.advantage.type in algorithms.TOKEN_ADVANTAGES and (self.is_error_masked or self.negative_weight != 1.0):
            raise ValueError(
                "is_error_masked and negative_weight use the sign of a trajectory's advantage, but "
                f"{self.advantage.type!r} gives each token its own; set is_error_masked=false and negative_weight=1.0"
            )
        if self.loss.type == "gspo" and self.kl.type == "k1":
            raise ValueError(
                "kl.type='k1' gives each token its own advantage, but 'gspo' has one per sequence; use kl.type='k3'"
            )
        own = (*algorithms.TURN_ADVANTAGES, "self_distillation")
        if self.loss.type == "gspo" and self.advantage.type in own:
            raise ValueError(
                f"advantage.type={self.advantage.type!r} gives each turn or token its own advantage, but 'gspo' has "
                "one per sequence; use another loss"
            )
        return self


class StepDpoConfig(Record):
    """Direct preference optimization on pairs of actions after one history.

    Agent Q (arXiv 2408.07199) with the loss of DPO (arXiv 2305.18290, equation 7).
    """

    beta: PositiveFloat = 0.1
    """DPO, section 6; Agent Q gives no value."""
    batch_size: PositiveInt = 64
    """Pairs per optimizer step. Our choice."""
    num_epochs: PositiveInt = 1
    optimizer: OptimizerConfig = OptimizerConfig()
    compute: ComputeConfig = ComputeConfig()
    trained: TrainedConfig = FullConfig()
    seed: int = 0

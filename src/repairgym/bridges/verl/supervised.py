"""SFT and RFT by verl's own SFT trainer: our stored samples, verl's updates.

Reads samples and `SftConfig`; writes a folder for ``torchrun -m verl.trainer.sft_trainer``: `CONFIG_NAME`.yaml and
`SAMPLES_FILE`. Guarantees: token ids and masks are those that `repairgym train sft` and `rft` learn from; each value is
translated, applied to the samples before, or rejected by name.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from repairgym.bridges.verl.config_files import VerlPaths, environment, setting_lines
from repairgym.bridges.verl.setting_table import FlatConfig
from repairgym.bridges.verl.training import parquet_package
from repairgym.bridges.verl.translation import Setting
from repairgym.config.cluster import VerlConfig
from repairgym.config.learning import SftConfig
from repairgym.errors import ConfigError
from repairgym.learning.samples import Sample
from repairgym.tasks.layers.atomic_write import written_whole

CONFIG_NAME, SAMPLES_FILE = "sft", "samples.parquet"
_HEAD = """\
# Supervised training of RepairGym's samples under verl, written by `repairgym verl sft`, which prints its command.
hydra:
  searchpath: [pkg://verl.trainer.config]
defaults:
  - sft_trainer_engine
  - _self_
"""
_TRANSLATED = {
    "optimizer.learning_rate": "optim.lr",
    "optimizer.betas": "optim.betas",
    "optimizer.eps": "optim.override_optimizer_config.eps",
    "optimizer.weight_decay": "optim.weight_decay",
    "optimizer.max_grad_norm": "optim.clip_grad",
    "optimizer.num_warmup_steps": "optim.lr_warmup_steps",
    "optimizer.schedule": "optim.lr_scheduler_type",
    "optimizer.final_lr_ratio": "optim.min_lr_ratio",
    "compute.is_checkpointing": "model.enable_gradient_checkpointing",
    "batch_size": "data.train_batch_size",
    "num_epochs": "trainer.total_epochs",
    "save_every_steps": "trainer.save_freq",
}
"""Our key -> verl's, for the same value."""
_OF_MACHINE = (
    ("sequence_parallel", "engine.ulysses_sequence_parallel_size"),
    ("is_offloaded", "engine.param_offload"),
    ("is_offloaded", "engine.optimizer_offload"),
    ("num_checkpoints_kept", "trainer.max_ckpt_to_keep"),
    ("device", "trainer.device"),
    ("num_nodes", "trainer.nnodes"),
    ("gpus_per_node", "trainer.n_gpus_per_node"),
)
_FIXED = (
    ("data.use_dynamic_bsz", True, "needed: micro-batches are counted in tokens"),
    ("data.pad_mode", "no_padding", "needed: sequences differ much in length"),
    ("data.num_workers", 0, "our choice: rows are small"),
    ("data.custom_cls.path", "pkg://repairgym.bridges.verl.sample_dataset", "needed: tokens are never encoded again"),
    ("data.custom_cls.name", "SampleDataset", "as above"),
    ("optim.zero_indexed_step", False, "needed: the first step of a warm-up learns"),
    ("engine.strategy", "fsdp2", "our choice"),
    ("engine.model_dtype", "fp32", "needed: our weights and optimizer are float32"),
    ("engine.mixed_precision.reduce_dtype", "fp32", "needed: as `repairgym train sft`"),
    ("engine.mixed_precision.buffer_dtype", "fp32", "as above"),
    ("checkpoint.save_contents", ["model", "optimizer", "extra", "hf_model"], "needed: a model folder"),
    ("trainer.logger", ["console", "file"], "our choice"),
    ("trainer.project_name", "repairgym", "of this run"),
    ("trainer.experiment_name", CONFIG_NAME, "of this run"),
)
_OF_SAMPLES = ("is_format_error_masked", "thoughts", "is_paired", "choice", "trained", "optimizer", "compute")
"""They make the samples, or `_NEUTRAL` and `_TRANSLATED` have their parts."""
_NEUTRAL = {
    "optimizer.type": ("adamw", "verl has no Muon"),
    "compute.head_chunk_tokens": (8192, "verl cuts no logits of its SFT trainer"),
    "compute.head_chunk_vocab": (65536, "as above"),
    "compute.context_parallel": (1, "verl.sequence_parallel says it"),
    "compute.is_offloaded": (False, "verl.is_offloaded says it"),
    "compute.num_threads": (None, "verl's processes have the threads of their environment"),
    "choice.type": ("last", "verl keeps the weights of the last step"),
    "trained.type": ("full", "the model folder would hold the weights without their adapters"),
    "seed": (0, "verl shuffles with 0"),
}
"""Keys without a counterpart: the only value that fits verl, and why."""


def write_supervised(
    samples: Sequence[Sample], config: SftConfig, machine: VerlConfig, model: Path, folder: Path
) -> tuple[list[str], dict[str, str]]:
    """Write the folder; return the command of each node and the environment variables that it needs.

    Raises:
        ConfigError: verl has no counterpart of a value, or the samples do not fit the batch.
    """
    folder, samples_file = folder.resolve(), folder.resolve() / SAMPLES_FILE
    paths = VerlPaths(folder, model.resolve(), folder, samples_file, samples_file, folder / "checkpoints")
    settings = [*supervised_settings(config, machine, samples), *_of_run(paths)]
    arrow = parquet_package()
    folder.mkdir(parents=True, exist_ok=True)
    columns = {
        "input_ids": [sample.token_id.tolist() for sample in samples],
        "loss_mask": [(sample.weight > 0).astype(np.int8).tolist() for sample in samples],
    }
    with written_whole(samples_file) as stream:
        arrow.parquet.write_table(arrow.table(columns), stream)
    text = _HEAD + "\n".join(setting_lines(settings, {}))
    (folder / f"{CONFIG_NAME}.yaml").write_text(f"{text}\n", encoding="utf-8")
    launch = ["torchrun", "--nnodes", str(machine.num_nodes), "--nproc-per-node", str(machine.gpus_per_node)]
    trainer = ["-m", "verl.trainer.sft_trainer", "--config-path", str(folder), "--config-name", CONFIG_NAME]
    return [*launch, *trainer, f"hydra.run.dir={folder / 'hydra'}"], environment(paths, machine)


def supervised_settings(config: SftConfig, machine: VerlConfig, samples: Sequence[Sample]) -> list[Setting]:
    """Return verl's settings, without paths; `ConfigError` as in `write_supervised`."""
    flat = FlatConfig({"sft": config})
    problems = [
        f"sft.{name}={flat[f'sft.{name}']!r} ({reason})"
        for name, (value, reason) in _NEUTRAL.items()
        if flat[f"sft.{name}"] != value
    ]
    for name in (*_TRANSLATED, *_OF_SAMPLES, *_NEUTRAL):
        flat.take(f"sft.{name}")
    problems += [f"sft.{name} (no counterpart is known)" for name in sorted(flat.left)]
    if config.optimizer.schedule == "linear":
        problems.append("sft.optimizer.schedule='linear' (verl has 'constant' and 'cosine')")
    problems += _batch_problems(config, machine, samples)
    if problems:
        raise ConfigError(f"verl has no counterpart of: {'; '.join(problems)}. `repairgym train sft` has them all")
    translated = (Setting(theirs, flat[f"sft.{ours}"], f"sft.{ours}") for ours, theirs in _TRANSLATED.items())
    length = _fixed("data.max_length", max(map(len, samples)), "the longest sample")
    return [*translated, *_of_machine(config, machine), length, *(_fixed(*row) for row in _FIXED)]


def _batch_problems(config: SftConfig, machine: VerlConfig, samples: Sequence[Sample]) -> Iterator[str]:
    num_parts = machine.num_nodes * machine.gpus_per_node // machine.sequence_parallel
    if config.batch_size % num_parts:
        yield f"sft.batch_size={config.batch_size} (verl gives each of {num_parts} groups of GPUs equally many)"
    if len(samples) < config.batch_size:
        yield f"sft.batch_size={config.batch_size} (verl learns whole batches, and there are {len(samples)} samples)"
    longest = max(map(len, samples), default=0)
    if longest > config.compute.micro_batch_tokens:
        yield f"sft.compute.micro_batch_tokens={config.compute.micro_batch_tokens} (a sample has {longest} tokens)"


def _of_machine(config: SftConfig, machine: VerlConfig) -> Iterator[Setting]:
    num_tokens = -(-config.compute.micro_batch_tokens // machine.sequence_parallel)
    yield Setting("data.max_token_len_per_gpu", num_tokens, "sft.compute.micro_batch_tokens")
    dtype = "bf16" if config.compute.is_bf16 else "fp32"
    yield Setting("engine.mixed_precision.param_dtype", dtype, "sft.compute.is_bf16")
    for ours, theirs in _OF_MACHINE:
        yield Setting(theirs, getattr(machine, ours), f"verl.{ours}")
    yield _fixed("model.use_remove_padding", machine.device == "cuda", "a CPU has no flash attention")
    if machine.device == "cpu":
        yield _fixed("model.override_config.attn_implementation", "sdpa", "needed: as above")
        yield _fixed("engine.use_torch_compile", False, "needed: slower on a CPU than without")


def _of_run(paths: VerlPaths) -> Iterator[Setting]:
    yield _fixed("model.path", str(paths.model))
    yield _fixed("data.train_files", str(paths.train_rows))
    yield _fixed("trainer.default_local_dir", str(paths.checkpoints))


def _fixed(key: str, value: Any, reason: str = "of this run") -> Setting:
    return Setting(key, value, reason, is_ours=False)

"""Samples and settings for verl's SFT trainer: nothing is encoded again, nothing is silently ignored."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from repairgym.bridges.verl.supervised import supervised_settings, write_supervised
from repairgym.config.cluster import VerlConfig
from repairgym.config.learning import RftConfig, SftConfig
from repairgym.config.loading import load_config
from repairgym.errors import ConfigError
from repairgym.learning.samples import Sample

EIGHT = VerlConfig(sequence_parallel=2)


def samples(num_samples: int = 64, num_tokens: int = 40) -> list[Sample]:
    ids = np.arange(num_tokens, dtype=np.int32)
    weight = (ids % 7 > 3).astype(np.float32)
    return [Sample(ids + at, weight, np.zeros(num_tokens, np.float32)) for at in range(num_samples)]


def test_ids_and_masks_are_written_as_they_are(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    command, variables = write_supervised(samples(), RftConfig(), EIGHT, Path("model"), tmp_path / "out")
    rows = parquet.read_table(tmp_path / "out" / "samples.parquet").to_pylist()
    assert [row["input_ids"] for row in rows] == [sample.token_id.tolist() for sample in samples()]
    assert all(row["loss_mask"] == [int(at % 7 > 3) for at in range(40)] for row in rows)
    text = (tmp_path / "out" / "sft.yaml").read_text()
    assert "  lr_warmup_steps: 10  # sft.optimizer.num_warmup_steps, its default" in text
    assert command[:5] == ["torchrun", "--nnodes", "1", "--nproc-per-node", "8"]
    assert variables["VERL_USE_EXTERNAL_MODULES"] == "repairgym.bridges.verl.plugin"


def test_a_context_is_split_as_the_machine_says() -> None:
    config = load_config(SftConfig, None, ["batch_size=8", "compute.micro_batch_tokens=101", "compute.is_bf16=true"])
    settings = {setting.key: setting.value for setting in supervised_settings(config, EIGHT, samples())}
    assert settings["data.max_token_len_per_gpu"] == 51
    assert settings["engine.mixed_precision.param_dtype"] == "bf16"
    assert settings["engine.optimizer_offload"] is True


@pytest.mark.parametrize(
    "override",
    [
        "optimizer.type=muon",
        "optimizer.schedule=linear",
        "trained.type=lora",
        "choice.type=loss",
        "seed=1",
        "compute.context_parallel=2",
        "compute.micro_batch_tokens=39",
        "batch_size=6",
        "batch_size=128",
    ],
)
def test_what_verl_cannot_do_is_named(override: str) -> None:
    config = load_config(SftConfig, None, ["batch_size=8", override] if "batch" not in override else [override])
    with pytest.raises(ConfigError, match=rf"verl has no counterpart of: sft\.{override.partition('=')[0]}="):
        supervised_settings(config, EIGHT, samples())

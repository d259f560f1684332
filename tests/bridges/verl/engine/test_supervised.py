"""verl's own SFT trainer learns from our samples what `repairgym train sft` learns from them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from repairgym.bridges.verl.config_files import METRICS_FILE
from repairgym.bridges.verl.sample_dataset import SampleDataset
from repairgym.bridges.verl.supervised import SAMPLES_FILE, write_supervised
from repairgym.config.learning import ComputeConfig, OptimizerConfig, SftConfig
from repairgym.inference.loading import load_model
from repairgym.learning.samples import Sample
from repairgym.learning.sft import SftTrainer

pytestmark = pytest.mark.verl
CONFIG = SftConfig(
    batch_size=4,
    num_epochs=3,
    # verl decays norms, too.
    optimizer=OptimizerConfig(learning_rate=1e-3, weight_decay=0.0, num_warmup_steps=2, schedule="cosine"),
    compute=ComputeConfig(micro_batch_tokens=100),
)


def samples() -> list[Sample]:
    generator = np.random.default_rng(0)
    made = []
    for length in (20, 27, 34, 41):
        weight = (np.arange(length) >= length // 2).astype(np.float32)
        weight[-3] = 0.0  # what an environment says between two actions
        ids = generator.integers(5, 500, length).astype(np.int32)
        made.append(Sample(ids, weight, np.zeros(length, np.float32)))
    return made


def test_two_processes_of_verl_make_our_steps(tmp_path, base, cpu) -> None:
    folder = tmp_path / "sft"
    _, variables = write_supervised(samples(), CONFIG, cpu, base, folder)
    for sample, row in zip(samples(), SampleDataset(str(folder / SAMPLES_FILE)), strict=True):
        assert row["input_ids"].tolist() == sample.token_id.tolist()
        assert row["loss_mask"].tolist() == sample.weight.tolist()
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    process = subprocess.run(
        [*launch, str(Path(__file__).with_name("sft_process.py")), str(folder)],
        env=os.environ | variables,
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert process.returncode == 0, process.stderr[-3000:]
    found = [json.loads(line)["data"] for line in (folder / METRICS_FILE).read_text().splitlines()]
    ours = list(SftTrainer.for_samples(load_model(base), CONFIG, len(samples())).fit(samples()))
    assert [row["train/loss"] for row in found] == pytest.approx([row["train/loss"] for row in ours], rel=1e-3)
    assert [row["train/grad_norm"] for row in found] == pytest.approx(
        [row["optim/grad_norm"] for row in ours], rel=1e-3
    )
    load_model(folder / "checkpoints" / "global_step_3" / "huggingface")

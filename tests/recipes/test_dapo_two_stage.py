"""The two stages' start: a stretched copy of the checkpoint as it is when the stage begins."""

from typing import Any, cast

import pytest

from repairgym.config.models import ModelConfig
from repairgym.inference.loading import create_model, save_checkpoint, weights_digest
from repairgym.recipes.dapo_two_stage import STAGE_1, STAGE_2, extend
from repairgym.sizing.positions import read_positions
from repairgym.training.run import Run

SIZES = {"hidden_size": 32, "num_layers": 1, "num_heads": 2, "num_kv_heads": 1, "head_dim": 16, "intermediate_size": 64}


@pytest.fixture
def run(store, tmp_path):
    """A run with checkpoint ``stage-1``; a call of ``learn`` gives it other weights."""
    return Run(tmp_path, store, cast(Any, None), {})


def learn(run, seed):
    save_checkpoint(create_model(ModelConfig(vocab_size=420, seed=seed, **SIZES)), None, run.checkpoint(STAGE_1))


def test_a_stretched_start_follows_its_checkpoint_until_its_stage_begins(run):
    learn(run, 0)
    assert extend(run, STAGE_1, 1.0, STAGE_2) == STAGE_1
    long = run.checkpoint(extend(run, STAGE_1, 2.0, STAGE_2))
    made = long.stat().st_ino
    assert extend(run, STAGE_1, 2.0, STAGE_2) == long.name
    assert long.stat().st_ino == made
    learn(run, 1)
    extend(run, STAGE_1, 2.0, STAGE_2)
    assert weights_digest(long) == weights_digest(run.checkpoint(STAGE_1))
    extend(run, STAGE_1, 4.0, STAGE_2)
    assert read_positions(long).factor == 4.0
    run.store.start_phase(STAGE_2)
    learn(run, 2)
    extend(run, STAGE_1, 4.0, STAGE_2)
    assert weights_digest(long) != weights_digest(run.checkpoint(STAGE_1))

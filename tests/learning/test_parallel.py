"""Two processes (gloo, on a CPU) make the steps of one: losses, gradients, weights, and checkpoints that both can read.

The processes are started by torchrun itself, so this also tests that its environment is understood.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from mendwright.learning.parallel import World
from mendwright.models.loading import load_model

WORKER = Path(__file__).parent / "two_processes.py"


def test_batches_are_shared_out_evenly_and_all_make_equally_many() -> None:
    batches, sizes = list("abcde"), [5, 9, 4, 1, 3]
    shares = [World(rank, 2).share(batches, sizes) for rank in range(2)]
    assert sorted(batch for share in shares for batch, is_counted in share if is_counted) == batches
    assert len(shares[0]) == len(shares[1])
    assert [batch for share in shares for batch, is_counted in share if not is_counted] == ["d"]
    assert World().share(batches, sizes) == [(batch, True) for batch in batches]


def load_worker() -> ModuleType:
    specification = importlib.util.spec_from_file_location("two_processes", WORKER)
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


@pytest.mark.slow
def test_two_processes_make_the_steps_of_one(tmp_path: Path) -> None:
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    done = subprocess.run(
        [*launch, str(WORKER), str(tmp_path / "two")],
        env=environment,
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads((tmp_path / "two" / "metrics.json").read_text())
    worker = load_worker()
    for kind in worker.KINDS:
        want = worker.supervise(tmp_path / "one" / kind, kind, 2)
        assert_like(found[kind], want, ("sft/nll", "train/num_learned_tokens"), kind)
        # States know no number of processes: what two began, one ends, and the other way round is the same code.
        worker.supervise(tmp_path / "one" / kind, kind, 4)
        worker.supervise(tmp_path / "two" / kind, kind, 4)
        weights = load_model(tmp_path / "one" / kind / "model").state_dict()
        for name, tensor in load_model(tmp_path / "two" / kind / "model").state_dict().items():
            assert torch.allclose(tensor, weights[name], atol=1e-5), name
    worker.reinforce(tmp_path / "one" / "rl", World())
    weights = load_model(tmp_path / "one" / "rl" / "model").state_dict()
    for name, tensor in load_model(tmp_path / "two" / "rl" / "model").state_dict().items():
        assert torch.allclose(tensor, weights[name], atol=1e-6), name
    for name, want in worker.update_all().items():
        assert_like(found[name], want, ("policy/entropy",), name)


def assert_like(found: dict[str, float], want: dict[str, float], metrics: tuple[str, ...], name: str) -> None:
    for metric in ("train/loss", "optim/grad_norm", *metrics):
        assert found[metric] == pytest.approx(want[metric], rel=1e-3, abs=1e-6), (name, metric)

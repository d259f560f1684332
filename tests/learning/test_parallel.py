"""Two processes (gloo, on a CPU) make the step of one: losses, gradients, weights, and checkpoints both can read.

The processes are started by torchrun itself, so this also tests that its environment is understood.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from mendwright.learning.parallel import World
from mendwright.models.loading import load_model

WORKER = Path(__file__).parent / "two_processes.py"


def test_batches_are_shared_out_evenly_and_all_make_equally_many() -> None:
    batches, sizes = list("abcde"), [5, 9, 4, 1, 3]
    shares = [World(rank, 2).share(batches, sizes) for rank in range(2)]
    counted = sorted(batch for share in shares for batch, is_counted in share if is_counted)
    assert counted == batches
    assert len(shares[0]) == len(shares[1])
    assert [(batch, is_counted) for share in shares for batch, is_counted in share if not is_counted] == [("d", False)]
    assert World().share(batches, sizes) == [(batch, True) for batch in batches]


def run(folder: Path, num_processes: int, *arguments: str) -> dict[str, float]:
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={num_processes}"]
    done = subprocess.run(
        [*launch, str(WORKER), str(folder), *arguments], env=environment, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, float] = json.loads((folder / "metrics.json").read_text())
    return found


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["untied", "tied", "lora"])
def test_two_processes_make_the_steps_of_one(tmp_path: Path, kind: str) -> None:
    one, two, mixed = tmp_path / "one", tmp_path / "two", tmp_path / "mixed"
    for folder in (one, two, mixed):
        folder.mkdir()
    want = run(one, 1, kind, "4")
    got = run(two, 2, kind, "4")
    # Two steps by two processes, then two by one: states know no world size.
    run(mixed, 2, kind, "2")
    after = run(mixed, 1, kind, "4")
    for metrics in (got, after):
        assert metrics["sft/nll"] == pytest.approx(want["sft/nll"], rel=1e-5)
        assert metrics["optim/grad_norm"] == pytest.approx(want["optim/grad_norm"], rel=1e-4)
        assert metrics["train/num_learned_tokens"] == want["train/num_learned_tokens"]
    weights = load_model(one / "state" / "model").state_dict()
    for folder in (two, mixed):
        for name, tensor in load_model(folder / "state" / "model").state_dict().items():
            assert torch.allclose(tensor, weights[name], atol=1e-5), name

"""Program of each process of `test_fsdp.py`: FOLDER. Gradients of a batch in contexts of one, two and
four processes.

The test computes `gradients` itself too, alone, and compares.
"""

from __future__ import annotations

import math
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
from two_processes import SMALL, samples

from repairgym.config.learning import AlgorithmConfig, ComputeConfig, OptimizerConfig
from repairgym.config.loading import load_config
from repairgym.errors import ConfigError
from repairgym.inference.loading import create_model
from repairgym.learning.distributed.context_parallel import ContextGroup
from repairgym.learning.distributed.fsdp import check_processes, process_group, shards_in_order, whole
from repairgym.learning.packing.batching import pack
from repairgym.learning.packing.forward import Scorer
from repairgym.learning.rl import PolicyTrainer
from repairgym.learning.samples import Sample

FOUR_HEADS = SMALL.model_copy(update={"num_kv_heads": 4})
CASES = {
    "gspo": ["loss.type=gspo"],
    "ppo": ["loss.type=ppo", "advantage.type=gae", "compute.is_checkpointing=true"],
    "lora": ["trained.type=lora", "trained.rank=4"],
}
"""A loss over whole sequences; one with a value head, recomputed backwards; adapters."""
LONG = 512


def gradients(case: str, context_parallel: int) -> dict[str, Any]:
    """Metrics of an update and what AdamW saw: its first moments after one step are the gradients times 1 - beta."""
    config = load_config(
        AlgorithmConfig,
        None,
        [
            *CASES[case],
            f"compute.context_parallel={context_parallel}",
            "compute.micro_batch_tokens=150",
            "compute.head_chunk_tokens=16",
            "compute.head_chunk_vocab=50",
            "optimizer.max_grad_norm=1e9",
            "optimizer.betas=[0.0, 0.999]",
        ],
    )
    made = [
        replace(sample, advantage=(-1.0) ** at, reward=float(at % 2), group_id=f"g{at % 3}")
        for at, sample in enumerate(samples())
    ]
    trainer = PolicyTrainer(create_model(FOUR_HEADS), config)
    metrics = trainer.update(made)
    state = trainer.learner.optimizer.state_tensors()
    moments = [whole(value) for name, value in state.items() if name.endswith("exp_avg")]
    return {"metrics": metrics, "gradients": moments}


def activation_bytes(context: ContextGroup) -> int:
    """Bytes that the forward of one long sequence stores for its backward in this process, parameters left out."""
    scorer = Scorer(create_model(FOUR_HEADS), context=context)
    weight = np.ones(LONG, np.float32)
    weight[0] = 0.0
    (batch,) = pack([Sample(np.arange(LONG, dtype=np.int32) % 120, weight, np.zeros(LONG, np.float32))], LONG)
    parameters = {parameter.untyped_storage().data_ptr() for parameter in scorer.parameters()}
    kept: dict[int, int] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in parameters:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        scores = scorer(batch, ComputeConfig())
    assert len(scores[0]) == LONG - 1
    return sum(kept.values())


def rejections() -> list[str]:
    """Errors of impossible settings for four processes."""
    results = []
    for optimizer, compute in (
        (OptimizerConfig(type="muon"), ComputeConfig()),
        (OptimizerConfig(), ComputeConfig(context_parallel=3)),
    ):
        try:
            check_processes(optimizer, compute)
        except ConfigError as error:
            results.append(str(error))
    try:
        PolicyTrainer(create_model(SMALL), AlgorithmConfig(compute=ComputeConfig(context_parallel=4)))
    except ConfigError as error:
        results.append(str(error))
    return results


def uneven_shards(shape: tuple[int, ...]) -> bool:
    """A tensor whose rows are no multiple of the processes comes to the leader whole and in order."""
    tensor = torch.arange(math.prod(shape)).view(shape)
    parts = list(shards_in_order(distribute_tensor(tensor, init_device_mesh("cpu", (4,)), [Shard(0)])))
    return torch.equal(torch.cat(parts), tensor) if dist.get_rank() == 0 else parts == []


def main(folder: Path) -> None:
    with process_group() as world:
        results: dict[str, Any] = {
            f"{case}-{size}": gradients(case, size) for case in CASES for size in (1, 2, world.size)
        }
        groups = {1: ContextGroup(), 2: ContextGroup(dist.new_subgroups(2)[0]), 4: ContextGroup(dist.group.WORLD)}
        results["activation_bytes"] = {size: max(world.gather(activation_bytes(groups[size]))) for size in groups}
        results["rejections"] = rejections()
        results["shards"] = [all(world.gather(uneven_shards(shape))) for shape in ((7, 3), (2, 5), (9,), (8, 1))]
        if world.is_leader:
            torch.save(results, folder / "found.pt")


if __name__ == "__main__":
    main(Path(sys.argv[1]))

"""Several processes (gloo, on a CPU) make the steps of one: losses, gradients, weights, checkpoints that both can read.

They share out batches, the tokens of a context, or whole recipes. The processes are started by torchrun itself, so this
also tests that its environment is understood.
"""

from __future__ import annotations

import importlib.util
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from repairgym.config.learning import ComputeConfig, OptimizerConfig
from repairgym.config.models import ModelConfig
from repairgym.errors import ConfigError, InputError
from repairgym.inference.loading import create_model, load_model, save_checkpoint
from repairgym.inference.tokenizer import train_tokenizer
from repairgym.learning.checkpoints import STATE_FILE, load_training_state
from repairgym.learning.distributed.context_parallel import check_divisible
from repairgym.learning.distributed.fsdp import World, check_processes
from repairgym.learning.learner import Learner
from repairgym.learning.sft import SftTrainer
from repairgym.rollout.store import RunStore

HERE = Path(__file__).parent


def test_batches_are_shared_out_evenly_and_all_make_equally_many() -> None:
    batches, sizes = list("abcde"), [5, 9, 4, 1, 3]
    shares = [World(rank, 2).share(batches, sizes) for rank in range(2)]
    assert sorted(batch for share in shares for batch, is_counted in share if is_counted) == batches
    assert len(shares[0]) == len(shares[1])
    assert [batch for share in shares for batch, is_counted in share if not is_counted] == ["d"]
    assert World().share(batches, sizes) == [(batch, True) for batch in batches]
    # Processes of one context get the same, and one of them counts.
    contexts = [World(rank, 4, context_size=2) for rank in range(4)]
    assert [world.share(batches, sizes) for world in contexts] == [shares[0], shares[0], shares[1], shares[1]]
    assert [world.is_counting for world in contexts] == [True, False, True, False]


def test_a_context_that_cannot_be_shared_out_is_rejected() -> None:
    model = create_model(ModelConfig(hidden_size=32, num_layers=1, num_heads=6, num_kv_heads=2, head_dim=8))
    check_divisible(model, 2)
    with pytest.raises(ConfigError, match=r"6 attention heads and 2 key-value heads; possible: \[1, 2\]"):
        check_divisible(model, 3)
    model._supports_attention_backend = False
    with pytest.raises(ConfigError, match=r"Qwen3ForCausalLM brings its own attention"):
        check_divisible(model, 2)
    with pytest.raises(ConfigError, match=r"there are 1; start a multiple of it: torchrun --nproc-per-node 2"):
        check_processes(OptimizerConfig(), ComputeConfig(context_parallel=2))


def start(
    num_processes: int, script: str, *arguments: Path | str, place: tuple[str, ...] = ("--standalone",)
) -> subprocess.Popen[str]:
    """A script of this folder under torchrun, with freed memory given back at once; ``place`` joins several nodes."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join([str(HERE), *sys.path])}
    environment |= {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "0", "MALLOC_ARENA_MAX": "1"}
    launch = [sys.executable, "-m", "torch.distributed.run", *place, f"--nproc-per-node={num_processes}"]
    return subprocess.Popen(
        [*launch, str(HERE / script), *map(str, arguments)],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process: subprocess.Popen[str]) -> None:
    try:
        _, errors = process.communicate(timeout=900)
    except subprocess.TimeoutExpired:
        process.terminate()  # torchrun ends its processes
        raise
    assert process.returncode == 0, errors[-3000:]


def load_worker(name: str) -> ModuleType:
    specification = importlib.util.spec_from_file_location(name, HERE / f"{name}.py")
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    sys.modules[name] = module
    specification.loader.exec_module(module)
    return module


@pytest.mark.slow
def test_two_processes_make_the_steps_of_one(tmp_path: Path) -> None:
    finish(start(2, "two_processes.py", tmp_path / "two"))
    results: dict[str, Any] = json.loads((tmp_path / "two" / "metrics.json").read_text())
    worker = load_worker("two_processes")
    for kind in worker.KINDS:
        want = worker.supervise(tmp_path / "one" / kind, kind, 2)
        assert_like(results[kind], want, ("sft/nll", "train/num_learned_tokens"), kind)
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
        assert_like(results[name], want, ("policy/entropy",), name)


def assert_like(
    results: dict[str, float], want: dict[str, float], metrics: tuple[str, ...], name: str, tolerance: float = 1e-3
) -> None:
    for metric in ("train/loss", "optim/grad_norm", *metrics):
        assert results[metric] == pytest.approx(want[metric], rel=tolerance, abs=1e-6), (name, metric)


@pytest.mark.slow
def test_contexts_of_several_processes_have_the_gradients_of_one(tmp_path: Path) -> None:
    """Alone, four batches at a time, two contexts of two, one context of four; all of them sharded."""
    finish(start(4, "four_processes.py", tmp_path))
    results: dict[str, Any] = torch.load(tmp_path / "found.pt", weights_only=True)
    load_worker("two_processes")
    worker = load_worker("four_processes")
    for case in worker.CASES:
        want = worker.gradients(case, 1)
        assert len(want["gradients"]) > 20
        for size in (1, 2, 4):
            got = results[f"{case}-{size}"]
            for metric, value in want["metrics"].items():
                if not metric.endswith("_s"):
                    assert got["metrics"][metric] == pytest.approx(value, rel=1e-5, abs=1e-6), (case, size, metric)
            for item, other in zip(want["gradients"], got["gradients"], strict=True):
                assert torch.allclose(item, other, rtol=1e-5, atol=1e-7), (
                    case,
                    size,
                    float((item - other).abs().max()),
                )
    kept = results["activation_bytes"]
    assert kept[1] > 1.8 * kept[2] > 3.2 * kept[4]
    assert results["shards"] == [True] * 4
    muon, processes, heads = results["rejections"]
    assert "optimizer.type='muon'" in muon
    assert "compute.context_parallel=3" in processes
    assert "possible: [1, 2]" in heads


@pytest.mark.slow
def test_recipes_of_several_stages_run_in_two_processes_and_go_on_after_ctrl_c(tmp_path: Path) -> None:
    worker = load_worker("recipe_processes")
    script = worker.load_script()
    tokenizer = train_tokenizer(script.TEXTS, 420, 40)
    model = create_model(script.MODEL.model_copy(update={"vocab_size": len(tokenizer)}))
    base, folder = tmp_path / "base", tmp_path / "runs"
    save_checkpoint(model, tokenizer, base / "checkpoints" / "base")
    process = start(2, "recipe_processes.py", folder, base)
    deadline = time.monotonic() + 600
    while process.poll() is None and num_stored(folder / "three" / "run.db", "stage-1") < 6:
        if time.monotonic() > deadline:
            process.terminate()
            pytest.fail("stage 1 has not begun after ten minutes")
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    errors = process.communicate(timeout=300)[1]
    assert process.returncode != 0, "it was over before it could be stopped"
    assert num_stored(folder / "three" / "run.db", "stage-1") >= 6, errors[-3000:]
    stored = stored_at(folder / "three" / "run.db")
    assert stored
    finish(start(2, "recipe_processes.py", folder, base))
    assert stored.items() <= stored_at(folder / "three" / "run.db").items()
    assert num_stored(folder / "three" / "run.db", "stage-1") == 2 * 4 * 6
    assert num_stored(folder / "one" / "run.db", "grpo") == 2 * 4 * 6
    assert num_stored(folder / "two" / "run.db", "rollout") == 48
    with RunStore.open(folder / "four" / "run.db") as store:
        gaps = dict(store.metrics("served", "sync/log_prob_gap"))
    assert set(gaps) == {0, 1, 2}
    assert max(gaps.values()) < 1e-4  # the probe is measured by both processes, the leader pushes
    made = [
        folder / name
        for name in ("one/checkpoints/grpo", "two/checkpoints/rft", "three/checkpoints/stage-2", "step_dpo")
    ]
    weights = [load_model(path).state_dict() for path in (base / "checkpoints" / "base", *made)]
    for before, after in pairwise(weights):
        assert any(not torch.equal(before[name], after[name]) for name in before)


def num_stored(path: Path, phase: str) -> int:
    return sum(name.startswith(f"{phase}/") for name in stored_at(path))


def stored_at(path: Path) -> dict[str, str]:
    """Id of each stored trajectory -> when it was stored; empty before there is a store."""
    try:
        with RunStore.open(path, is_read_only=True) as store:
            return {row.id: row.created_at for row in store.rows()}
    except InputError:
        return {}


# --- models that no process holds whole -------------------------------------------------------------------------------

SCRIPT = "sharded_processes.py"


@pytest.fixture
def worker() -> ModuleType:
    load_worker("two_processes")
    return load_worker("sharded_processes")


@pytest.mark.slow
def test_a_state_of_four_processes_goes_on_with_two_and_one_bit_for_bit(tmp_path: Path, worker: ModuleType) -> None:
    worker.make_start(tmp_path / "start")
    finish(start(4, SCRIPT, tmp_path, "train"))
    shutil.copytree(tmp_path / "many", tmp_path / "kept")
    finish(start(2, SCRIPT, tmp_path, "resume"))
    results: dict[str, Any] = json.loads((tmp_path / "train.json").read_text())
    for kind in worker.KINDS:
        alone = worker.train(tmp_path / "start", tmp_path / "one" / kind, kind, 4)
        for got, want in zip(results[kind], alone, strict=True):
            assert_like(got, want, ("sft/nll",), kind, 0.05 if kind == "bf16" else 1e-3)
        four, two = (
            {name: tensor.clone() for name, tensor in trained(worker, tmp_path, tmp_path / place / kind, kind).items()}
            for place in ("kept", "many")
        )
        assert len(four) > 40
        assert all(torch.equal(four[name], two[name]) for name in four)
        written = [load_model(tmp_path / "many" / kind / name).state_dict() for name in ("model", "again")]
        assert all(torch.equal(written[0][name], written[1][name]) for name in written[0])
        if kind != "bf16":
            expected = load_model(tmp_path / "one" / kind / "model").state_dict()
            assert max(float((written[0][name] - expected[name]).abs().max()) for name in expected) < 1e-5
    assert_like(results["reference"], worker.with_reference(tmp_path / "start"), ("policy/entropy",), "reference")


def trained(worker: ModuleType, folder: Path, state: Path, kind: str) -> dict[str, torch.Tensor]:
    """Weights and moments of a state, read by one process."""
    learner: Learner = SftTrainer(worker.open_model(folder / "start" / kind), worker.config_of(kind)).learner
    assert load_training_state(learner, state) == {"num_done": 4 if state.parent.name == "kept" else 0}
    return dict(learner.model.state_dict()) | learner.optimizer.state_tensors()


@pytest.mark.slow
def test_the_bytes_of_a_process_fall_with_their_number(tmp_path: Path, worker: ModuleType) -> None:
    worker.make_start(tmp_path / "start")
    model = worker.make_big(tmp_path)
    weights = 4 * sum(parameter.numel() for parameter in model.parameters())
    layer = 4 * sum(parameter.numel() for parameter in model.model.layers[0].parameters())
    largest = 4 * max(parameter.numel() for parameter in model.parameters())
    for size in (2, 4):
        finish(start(size, SCRIPT, tmp_path, "bytes"))
        found = json.loads((tmp_path / "bytes.json").read_text())["bytes"]
        worst = {name: max(values) for name, values in found.items()}
        share = weights / size
        assert worst["load-peak"] < 1.1 * share + largest
        # Weights and two moments; a gradient while it steps, and the layers of the moment.
        assert worst["step"] < 1.1 * 3 * share
        assert worst["step-peak"] < 1.1 * 4 * share + 6 * layer
        assert worst["save-peak"] < 1.1 * 3 * share
        assert worst["export-peak"] < 1.1 * 3 * share


@pytest.mark.slow
def test_a_kill_during_a_save_loses_nothing(tmp_path: Path, worker: ModuleType) -> None:
    worker.make_start(tmp_path / "start")
    generator = random.Random(0)
    for _ in range(3):
        (tmp_path / "done").unlink(missing_ok=True)
        process = start(2, SCRIPT, tmp_path, "save")
        while not (tmp_path / "done").exists():
            assert process.poll() is None, process.communicate()[1][-3000:]
            time.sleep(0.01)
        time.sleep(generator.uniform(0.0, 1.0))
        # One of the two, as when a node is lost; torchrun ends the other.
        os.kill(int((tmp_path / f"pid-{generator.randrange(2)}").read_text()), signal.SIGKILL)
        process.communicate(timeout=120)
        learner = SftTrainer(worker.open_model(tmp_path / "start" / "untied"), worker.config_of("untied")).learner
        number = load_training_state(learner, tmp_path / "state")["number"]
        assert number - int((tmp_path / "done").read_text()) in (0, 1)
        assert all(bool((parameter == number).all()) for parameter in learner.model.parameters())


@pytest.mark.slow
def test_processes_of_two_nodes_meet(tmp_path: Path, worker: ModuleType) -> None:
    worker.make_start(tmp_path / "start")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    place = ("--nnodes=2", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}", "--rdzv-id=test")
    for node in [start(1, SCRIPT, tmp_path, "train", place=place) for _ in range(2)]:
        finish(node)
    results = json.loads((tmp_path / "train.json").read_text())
    alone = worker.train(tmp_path / "start", tmp_path / "one", "untied", 4)
    for got, want in zip(results["untied"], alone, strict=True):
        assert_like(got, want, ("sft/nll",), "untied")
    assert (tmp_path / "many" / "untied" / STATE_FILE).is_file()


def test_host_memory_needs_several_gpus() -> None:
    with pytest.raises(ConfigError, match=r"compute.is_offloaded .* number of processes is 1"):
        check_processes(OptimizerConfig(), ComputeConfig(is_offloaded=True))

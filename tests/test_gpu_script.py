"""The script for GPUs prints the commands that the presets expect."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from repairgym.config.loading import load_config
from repairgym.config.recipes import RlCommandConfig

ROOT = Path(__file__).parents[1]


def run(*arguments: str, **settings: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", ROOT / "scripts/gpu_first_curve", "runs/x", *arguments],
        env=os.environ | {"DRY_RUN": "1", "PATH": "/usr/bin:/bin"} | settings,
        capture_output=True,
        text=True,
        check=False,
    )


def commands(*arguments: str, **settings: str) -> list[str]:
    done = run(*arguments, **settings)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_the_script_starts_the_servers_of_its_preset():
    lines = commands()
    endpoint = load_config(RlCommandConfig, ROOT / "src/repairgym/data/presets/qwen3_8b_8gpu.toml").rl.sampler.endpoint
    ports = [line.partition("--port ")[2].split()[0] for line in lines if "vllm serve" in line]
    assert [f"http://127.0.0.1:{port}/v1" for port in ports] == [endpoint.base_url, *endpoint.replicas]
    assert all(f"--served-model-name {endpoint.model}" in line for line in lines if "vllm serve" in line)
    (training,) = (line for line in lines if "torchrun" in line)
    assert "CUDA_VISIBLE_DEVICES=4,5,6,7 torchrun --nproc-per-node 4" in training


def test_two_gpus_make_one_server_and_one_gpu_is_shared_in_time():
    lines = commands("M", "qwen3_32b_8gpu", GPUS_PER_SERVER="2", SERVER_OPTIONS="--enable-lora")
    servers = [line for line in lines if "vllm serve" in line]
    assert ["CUDA_VISIBLE_DEVICES=0,1" in servers[0], "CUDA_VISIBLE_DEVICES=2,3" in servers[1]] == [True, True]
    assert all("--tensor-parallel-size 2" in line and line.endswith("--enable-lora &") for line in servers)
    shared = commands(SAMPLING_GPUS="0", LEARNING_GPUS="0", MEMORY_SHARE="0.35")
    assert "--gpu-memory-utilization 0.35" in "\n".join(shared)
    assert any("replicas=[]" in line and "CUDA_VISIBLE_DEVICES=0 torchrun" in line for line in shared)


def test_a_dry_run_checks_the_configuration_of_the_training(tmp_path):
    program = tmp_path / "repairgym"
    program.write_text('#!/bin/sh\n[ "$6" = --preset ] || exit 3\necho "$@" | grep -q rl.seed=1 && echo "# checked"\n')
    program.chmod(0o755)
    path = f"{tmp_path}:/usr/bin:/bin"
    assert "# checked" in run("M", "P", "rl.seed=1", PATH=path).stdout
    assert run("M", "P", PATH=path).returncode != 0
    said = commands("M", "P", "rl.seed=1")
    assert "repairgym is not installed here: the configuration is not checked" in said
    (training,) = (line for line in said if "torchrun" in line)
    assert '\'rl.sampler.endpoint.replicas=["http://127.0.0.1:8001/v1",' in training


@pytest.mark.slow
@pytest.mark.skipif(Path("/dev/nvidiactl").exists(), reason="there is a GPU, which would be measured")
def test_without_a_gpu_the_benchmark_says_what_it_would_do(tmp_path):
    page = tmp_path / "page.md"
    done = subprocess.run(
        [sys.executable, ROOT / "benchmarks/gpu.py", "--write", page], capture_output=True, text=True, check=True
    )
    assert "nothing is measured" in done.stdout
    assert [line.split()[0] for line in done.stdout.splitlines()[1:]] == ["embedded", "vllm", "contexts", "state"]
    assert sum(int(limit) for limit in re.findall(r"at most +(\d+) s", done.stdout)) <= 600
    assert not page.exists()

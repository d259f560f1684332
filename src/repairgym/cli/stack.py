"""Checks of `repairgym doctor` that need torch, uv, the index, sandboxes or the layer store.

Reads the installed stack and the store; makes `Finding` records. Guarantee: only `collect_layers` removes files.
"""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import JsonValue

from repairgym.cli.machine import GIB, Finding, Status
from repairgym.config.sandbox import LayersConfig
from repairgym.errors import IndexUnavailableError, PackageNotFoundError, install_hint
from repairgym.tasks.layers.gc import collect, list_layers
from repairgym.tasks.layers.inventory import find_damage, manifest_path

if TYPE_CHECKING:
    from repairgym.sandbox.probe import BackendProbe

PROBE_NAME, PROBE_VERSION = "iniconfig", "2.3.0"
"""A source distribution of a few kilobytes to test the index with."""
PROBE_SHA256 = "c76315c77db068650d49c5b56314774a7804df16fee4402c1f19d6d15d8c4730"
NVIDIA_DEVICE = Path("/dev/nvidiactl")


def check_torch() -> list[Finding]:
    """Check torch: its version, CPU kernels and GPU."""
    try:
        import torch
    except ModuleNotFoundError:
        summary = "not installed: tasks, grade and view work; no local model, training or demo"
        return [Finding(id="torch", status="skip", summary=summary, remedy=install_hint("train"))]
    except (ImportError, OSError) as error:
        return [Finding(id="torch", status="fail", summary=f"torch cannot be imported: {error}", remedy="make setup")]
    bf16 = cpu_bf16()
    capability = torch.backends.cpu.get_cpu_capability()
    summary = f"torch {torch.__version__}, CPU kernels {capability}, bf16 on the CPU: {bf16}"
    facts: dict[str, JsonValue] = {"version": torch.__version__, "cpu_capability": capability, "cpu_bf16": bf16}
    return [Finding(id="torch", status="ok", summary=summary, facts=facts), _check_gpu()]


def cpu_bf16(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """Return the bfloat16 support of the CPU: ``amx``, ``avx512``, ``arm`` or ``emulated``."""
    try:
        flags = set(cpuinfo.read_text().split())
    except OSError:
        flags = set()
    ways = {"amx_bf16": "amx", "avx512_bf16": "avx512", "bf16": "arm"}
    return next((way for flag, way in ways.items() if flag in flags), "emulated")


def _check_gpu() -> Finding:
    import torch

    if not torch.cuda.is_available():
        return explain_no_gpu(has_device=NVIDIA_DEVICE.exists(), is_cuda_build=torch.version.cuda is not None)
    devices: list[JsonValue] = []
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        devices.append({"name": properties.name, "memory_bytes": properties.total_memory})
    summary = f"{len(devices)} x {torch.cuda.get_device_name(0)} (CUDA {torch.version.cuda})"
    facts: dict[str, JsonValue] = {"devices": devices, "cuda": torch.version.cuda}
    return Finding(id="gpu", status="ok", summary=summary, facts=facts)


def explain_no_gpu(*, has_device: bool, is_cuda_build: bool) -> Finding:
    """Report why torch has no GPU: none is present (fine), the driver does not fit, or torch is a CPU build."""
    facts: dict[str, JsonValue] = {"devices": [], "has_nvidia_device": has_device, "is_cuda_build": is_cuda_build}
    if not has_device:
        return Finding(id="gpu", status="skip", summary="none; the small models train on the CPU", facts=facts)
    if is_cuda_build:
        remedy = "update the NVIDIA driver, or install the torch build for the CUDA version that it supports"
    else:
        remedy = "this torch is a CPU build: make clean setup on an index with CUDA wheels"
    return Finding(id="gpu", status="warn", summary="a GPU is there, torch cannot use it", remedy=remedy, facts=facts)


def check_uv() -> list[Finding]:
    """Check uv, which resolves and installs environments."""
    try:
        from uv import find_uv_bin

        done = subprocess.run([find_uv_bin(), "--version"], capture_output=True, text=True, timeout=30, check=True)
    except (ImportError, OSError, subprocess.SubprocessError) as error:
        return [Finding(id="uv", status="fail", summary=f"uv does not run: {error}", remedy="pip install uv")]
    version = done.stdout.split()[1]
    return [Finding(id="uv", status="ok", summary=f"uv {version}", facts={"version": version})]


def check_index() -> list[Finding]:
    """Check the package index by fetching a small source distribution."""
    from repairgym.tasks.layers.package_index import PackageIndex, Sdist

    sdist = Sdist(name=PROBE_NAME, version=PROBE_VERSION, sha256=PROBE_SHA256)
    try:
        with tempfile.TemporaryDirectory(prefix="repairgym-doctor-") as folder:
            PackageIndex(sleep=lambda _: None).fetch(sdist, Path(folder))
    except PackageNotFoundError as error:
        remedy = "the index answers but is no full mirror; set another in PIP_INDEX_URL"
        return [Finding(id="index", status="warn", summary=str(error), remedy=remedy)]
    except IndexUnavailableError as error:
        remedy = "check the network, or set your index in PIP_INDEX_URL; built layers work offline"
        return [Finding(id="index", status="warn", summary=str(error), remedy=remedy)]
    return [Finding(id="index", status="ok", summary="the package index answers and serves source distributions")]


def check_sandbox() -> list[Finding]:
    """Check each sandbox back end by making a sandbox; at least one that isolates is required."""
    from repairgym.sandbox.probe import probe_backends

    probes = probe_backends()
    has_isolation = any(probe.is_available and probe.is_isolating for probe in probes)
    return [describe_backend(probe, has_isolation=has_isolation) for probe in probes]


def describe_backend(probe: BackendProbe, *, has_isolation: bool) -> Finding:
    """Return the finding of a probe; ``has_isolation``: some back end of this machine isolates."""
    summary = probe.reason or "works: isolated, without network and capabilities"
    if not probe.is_available:
        summary = f"does not work here{' (optional)' if has_isolation else ''}: {probe.reason}"
    return Finding(
        id=f"sandbox.{probe.name}",
        status="ok" if probe.is_available else "skip" if has_isolation else "fail",
        summary=summary,
        remedy=probe.remedy,
        facts={
            "is_available": probe.is_available,
            "is_isolating": probe.is_isolating,
            "missing_walls": [*probe.missing_walls],
            "duration_s": probe.duration_s,
        },
    )


_NUM_NAMED_PATHS = 5


def check_layers(root: Path, config: LayersConfig) -> list[Finding]:
    """Compare the size of the store with its bound."""
    layers = list_layers(root)
    num_bytes = sum(layer.num_bytes for layer in layers)
    status: Status = "ok" if num_bytes <= config.max_bytes else "warn"
    summary = f"{len(layers)} layers, {num_bytes / GIB:.1f} of {config.max_bytes / GIB:.1f} GiB in {root}"
    return [
        Finding(
            id="layers",
            status=status,
            summary=summary,
            remedy="" if status == "ok" else "repairgym doctor --collect-layers",
            facts={"num_layers": len(layers), "num_bytes": num_bytes, "max_bytes": config.max_bytes},
        )
    ]


def verify_layers(root: Path) -> list[Finding]:
    """Compare every layer with its manifest; return a finding per damaged layer and a summary."""
    findings, num_sound, num_unknown = [], 0, 0
    for layer in list_layers(root):
        if not manifest_path(layer.path).exists():
            num_unknown += 1
            continue
        damage = find_damage(layer.path)
        if damage:
            findings.append(_describe_damage(layer.path, root, damage))
        else:
            num_sound += 1
    unknown = f"; {num_unknown} of an older version have no manifest" if num_unknown else ""
    summary = f"{num_sound} layers are intact, {len(findings)} are damaged{unknown}"
    facts = {"num_sound": num_sound, "num_damaged": len(findings), "num_without_manifest": num_unknown}
    return [Finding(id="layers.verified", status="ok", summary=summary, facts=dict(facts)), *findings]


def _describe_damage(layer: Path, root: Path, damage: tuple[str, ...]) -> Finding:
    named = "; ".join(damage[:_NUM_NAMED_PATHS])
    more = f"; and {len(damage) - _NUM_NAMED_PATHS} more" if len(damage) > _NUM_NAMED_PATHS else ""
    return Finding(
        id="layers.damaged",
        status="fail",
        summary=f"{layer.relative_to(root)}: {named}{more}",
        remedy=f"remove the folder {layer}: its next use builds it again",
        facts={"path": str(layer), "damage": [*damage]},
    )


def collect_layers(root: Path, config: LayersConfig) -> list[Finding]:
    """Remove the least recently used layers until the store is within its bound."""
    done = collect(root, config)
    freed = done.num_bytes_before - done.num_bytes_after
    is_within = done.num_bytes_after <= config.max_bytes
    summary = (
        f"{len(done.removed)} layers removed, {freed / GIB:.1f} GiB freed, {done.num_bytes_after / GIB:.1f} GiB left"
    )
    reason = f"{done.num_in_use} are in use, others were used in the last {config.min_idle_s / 3600:.1f} hours"
    return [
        Finding(
            id="layers.collected",
            status="ok" if is_within else "warn",
            summary=summary if is_within else f"{summary}, more than its bound: {reason}",
            remedy=""
            if is_within
            else "collect again later, or lower min_idle_s: repairgym doctor --collect-layers min_idle_s=0",
            facts={
                "num_removed": len(done.removed),
                "num_bytes_freed": freed,
                "num_bytes": done.num_bytes_after,
                "num_in_use": done.num_in_use,
            },
        )
    ]

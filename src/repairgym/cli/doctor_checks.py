"""Checks of `repairgym doctor`: hardware, interpreter, installed packages, index, sandboxes and the layer store.

Invariants: absence of a checked part is a finding, not an exception; each finding that is not ok names its fix; only
`collect_layers` removes files.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import psutil
from packaging.requirements import Requirement
from pydantic import JsonValue

from repairgym.config.sandbox import LayersConfig
from repairgym.errors import IndexUnavailableError, PackageNotFoundError, install_hint
from repairgym.records import Record
from repairgym.sizing.workers import cgroup_cores, cgroup_memory_bytes, cpu_bf16
from repairgym.tasks.layers.gc import collect, list_layers
from repairgym.tasks.layers.inventory import find_damage, manifest_path

if TYPE_CHECKING:
    from repairgym.sandbox.probe import BackendProbe

GIB = 1 << 30
OLDEST_PYTHON = (3, 11)
NEEDED_MEMORY_BYTES = 8 * GIB
"""Needed by the demo; half of it is the minimum for any command."""
NEEDED_DISK_BYTES = 6 * GIB
"""Environments, layers and one run folder with its checkpoints; a sixth of it is the minimum."""
PROBE_NAME, PROBE_VERSION = "iniconfig", "2.3.0"
"""A source distribution of a few kilobytes to test the index with."""
PROBE_SHA256 = "c76315c77db068650d49c5b56314774a7804df16fee4402c1f19d6d15d8c4730"
NVIDIA_DEVICE = Path("/dev/nvidiactl")
_NUM_NAMED_PATHS = 5

Status = Literal["ok", "skip", "warn", "fail"]
"""``skip``: an optional part is missing."""


class Finding(Record):
    """Result of one check."""

    id: str
    """Stable name, e.g. ``memory`` or ``sandbox.namespace``."""
    status: Status
    """``fail``: a required part is missing; ``warn``: works, but slower, smaller or less safely."""
    summary: str
    remedy: str = ""
    """The fix; empty when there is nothing to fix."""
    facts: dict[str, JsonValue] = {}
    """Measured values; the keys are listed per id in ``docs/reference/doctor.md``."""


def _finding(name: str, status: Status, summary: str, remedy: str = "", /, **facts: JsonValue) -> Finding:
    """Return a finding; the remedy is left out when the status is ok."""
    return Finding(id=name, status=status, summary=summary, remedy="" if status == "ok" else remedy, facts=facts)


def _grade(value: float, wanted: float, least: float) -> Status:
    return "ok" if value >= wanted else "warn" if value >= least else "fail"


# --- hardware ------------------------------------------------------------------------------------------------------


def check_cores() -> list[Finding]:
    """Check the cores of this process: its affinity, bounded by a cgroup quota."""
    num_cores, quota = len(os.sched_getaffinity(0)), cgroup_cores()
    usable = num_cores if quota is None else min(num_cores, quota)
    remedy = "the demo is sized for 2 cores; give it more minutes: make demo ARGS='--minutes 30'"
    status = _grade(usable, 2, 0)
    return [_finding("cores", status, f"{usable:g} usable cores", remedy, num_cores=num_cores, cgroup_cores=quota)]


def check_memory() -> list[Finding]:
    """Check the memory of this process: the machine's, bounded by a cgroup."""
    machine, bound = psutil.virtual_memory(), cgroup_memory_bytes()
    total = machine.total if bound is None else min(machine.total, bound)
    return [
        _finding(
            "memory",
            _grade(total, NEEDED_MEMORY_BYTES, NEEDED_MEMORY_BYTES // 2),
            f"{total / GIB:.1f} GiB of memory, {min(total, machine.available) / GIB:.1f} GiB free",
            "the demo wants 8 GiB: close other programs or raise the container's limit",
            total_bytes=machine.total,
            available_bytes=machine.available,
            cgroup_bytes=bound,
        )
    ]


def check_disk(folders: Iterable[Path]) -> list[Finding]:
    """Check disk space for layers and runs; for a missing folder, that of its nearest parent."""
    findings = []
    for folder in folders:
        place = next(parent for parent in (folder, *folder.parents) if parent.exists())
        free = shutil.disk_usage(place).free
        status = _grade(free, NEEDED_DISK_BYTES, NEEDED_DISK_BYTES // 6)
        remedy = "free some space, or move the layer store with REPAIRGYM_CACHE=FOLDER"
        if not os.access(place, os.W_OK):
            status, remedy = "fail", f"make {place} writable, or set REPAIRGYM_CACHE to a folder that is"
        summary = f"{free / GIB:.1f} GiB free for {folder}"
        findings.append(_finding("disk", status, summary, remedy, path=str(folder), free_bytes=free))
    return findings


def check_torch() -> list[Finding]:
    """Check torch: its version, CPU kernels and GPU."""
    try:
        import torch
    except ModuleNotFoundError:
        summary = "not installed: tasks, grade and view work; no local model, training or demo"
        return [_finding("torch", "skip", summary, install_hint("train"))]
    except (ImportError, OSError) as error:
        return [_finding("torch", "fail", f"torch cannot be imported: {error}", "make setup")]
    bf16 = cpu_bf16()
    capability = torch.backends.cpu.get_cpu_capability()
    summary = f"torch {torch.__version__}, CPU kernels {capability}, bf16 on the CPU: {bf16}"
    return [
        _finding("torch", "ok", summary, version=torch.__version__, cpu_capability=capability, cpu_bf16=bf16),
        _check_gpu(),
    ]


def _check_gpu() -> Finding:
    import torch

    if not torch.cuda.is_available():
        return explain_no_gpu(has_device=NVIDIA_DEVICE.exists(), is_cuda_build=torch.version.cuda is not None)
    devices: list[JsonValue] = []
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        devices.append({"name": properties.name, "memory_bytes": properties.total_memory})
    summary = f"{len(devices)} x {torch.cuda.get_device_name(0)} (CUDA {torch.version.cuda})"
    return _finding("gpu", "ok", summary, devices=devices, cuda=torch.version.cuda)


def explain_no_gpu(*, has_device: bool, is_cuda_build: bool) -> Finding:
    """Report why torch has no GPU: none is present (fine), the driver does not fit, or torch is a CPU build."""
    facts: dict[str, JsonValue] = {"devices": [], "has_nvidia_device": has_device, "is_cuda_build": is_cuda_build}
    if not has_device:
        return _finding("gpu", "skip", "none; the small models train on the CPU", **facts)
    if is_cuda_build:
        remedy = "update the NVIDIA driver, or install the torch build for the CUDA version that it supports"
    else:
        remedy = "this torch is a CPU build: make clean setup on an index with CUDA wheels"
    return _finding("gpu", "warn", "a GPU is there, torch cannot use it", remedy, **facts)


# --- software ------------------------------------------------------------------------------------------------------


def check_python() -> list[Finding]:
    """Check version and kind of the interpreter."""
    version, system, machine = platform.python_version(), platform.system(), platform.machine()
    summary = f"Python {version} ({platform.python_implementation()}) on {system} {machine}"
    is_fine, remedy = sys.version_info[:2] >= OLDEST_PYTHON, "install Python {}.{} or newer".format(*OLDEST_PYTHON)
    if system != "Linux":
        is_fine, remedy = False, "run on Linux"
    status: Status = "ok" if is_fine else "fail"
    return [_finding("python", status, summary, remedy, version=version, system=system, machine=machine)]


def check_bytecode() -> list[Finding]:
    """Check that modules are compiled once, and not by every process when it starts."""
    spec = importlib.util.find_spec("torch")
    compiled = Path(spec.cached) if spec and spec.cached else None
    return [describe_bytecode(is_written=not sys.dont_write_bytecode, is_there=bool(compiled and compiled.is_file()))]


def describe_bytecode(*, is_written: bool, is_there: bool) -> Finding:
    """Return the finding on compiled modules: ``is_written`` as they are imported, or ``is_there`` already."""
    summary = "compiled modules are kept"
    if not (is_written or is_there):
        summary = "compiled modules are neither there nor written: each process compiles some 5,000 when it starts"
    remedy = "unset PYTHONDONTWRITEBYTECODE, or compile once: python -m compileall -q -j 0 .venv"
    status: Status = "ok" if is_written or is_there else "warn"
    return _finding("bytecode", status, summary, remedy, is_written=is_written, is_there=is_there)


def check_packages() -> list[Finding]:
    """Check the packages of RepairGym and of each extra against its metadata."""
    try:
        own = metadata.distribution("repairgym")
    except metadata.PackageNotFoundError:
        return [_finding("packages", "warn", "repairgym is imported, not installed", "make setup, or pip install -e .")]
    requirements = [Requirement(text) for text in own.requires or ()]
    missing = [str(item) for item in requirements if _is_wanted(item, "") and not _is_met(item)]
    summary = f"missing or too old: {', '.join(missing)}" if missing else "all needed packages are installed"
    needed = _finding("packages", "fail" if missing else "ok", summary, "make setup", missing=[*missing])
    extras = own.metadata.get_all("Provides-Extra") or []
    return [needed, *(_check_extra(name, requirements) for name in extras)]


def _check_extra(name: str, requirements: list[Requirement]) -> Finding:
    own = [item for item in requirements if _is_wanted(item, name) and not _is_wanted(item, "")]
    missing = [item.name for item in own if not _is_met(item)]
    summary = f"not installed (optional): {', '.join(missing)}" if missing else "installed"
    status: Status = "skip" if missing else "ok"
    return _finding(f"extra.{name}", status, summary, install_hint(name), is_installed=not missing, missing=[*missing])


def _is_wanted(item: Requirement, extra: str) -> bool:
    return item.marker is None or item.marker.evaluate({"extra": extra})


def _is_met(item: Requirement) -> bool:
    try:
        return item.specifier.contains(metadata.version(item.name), prereleases=True)
    except metadata.PackageNotFoundError:
        return False


def check_uv() -> list[Finding]:
    """Check uv, which resolves and installs environments."""
    try:
        from uv import find_uv_bin

        done = subprocess.run([find_uv_bin(), "--version"], capture_output=True, text=True, timeout=30, check=True)
    except (ImportError, OSError, subprocess.SubprocessError) as error:
        return [_finding("uv", "fail", f"uv does not run: {error}", "pip install uv")]
    version = done.stdout.split()[1]
    return [_finding("uv", "ok", f"uv {version}", version=version)]


def check_index() -> list[Finding]:
    """Check the package index by fetching a small source distribution."""
    from repairgym.tasks.layers.package_index import PackageIndex, Sdist

    sdist = Sdist(name=PROBE_NAME, version=PROBE_VERSION, sha256=PROBE_SHA256)
    try:
        with tempfile.TemporaryDirectory(prefix="repairgym-doctor-") as folder:
            PackageIndex(sleep=lambda _: None).fetch(sdist, Path(folder))
    except PackageNotFoundError as error:
        remedy = "the index answers but is no full mirror; set another in PIP_INDEX_URL"
        return [_finding("index", "warn", str(error), remedy)]
    except IndexUnavailableError as error:
        remedy = "check the network, or set your index in PIP_INDEX_URL; built layers work offline"
        return [_finding("index", "warn", str(error), remedy)]
    return [_finding("index", "ok", "the package index answers and serves source distributions")]


def check_sandbox() -> list[Finding]:
    """Check each sandbox back end by making a sandbox; at least one that isolates is required."""
    from repairgym.sandbox.probe import probe_backends

    probes = probe_backends()
    has_isolation = any(probe.is_available and probe.is_isolating for probe in probes)
    return [*(describe_backend(probe, has_isolation=has_isolation) for probe in probes), describe_view()]


def describe_view() -> Finding:
    """Return the finding of what sandboxes show of this machine, with the defaults and this interpreter."""
    from repairgym.sandbox.system_view import SystemPaths

    prefix = str(Path(sys.base_prefix).resolve())
    view = SystemPaths().view(() if prefix.startswith("/usr") else (prefix,))
    hidden = [path for path in view.hidden if path.startswith(("/usr/", f"{prefix}/"))]
    summary = f"sandboxes show {len(view.binds)} folders and files of this machine, no installed packages; "
    summary += f"hidden in /usr and {prefix}: {len(hidden)} (all of them: --json)"
    return _finding("sandbox.view", "ok", summary, shown=[*view.binds], hidden=[*hidden])


def describe_backend(probe: BackendProbe, *, has_isolation: bool) -> Finding:
    """Return the finding of a probe; ``has_isolation``: some back end of this machine isolates."""
    summary = probe.reason or "works: isolated, without network and capabilities"
    if not probe.is_available:
        summary = f"does not work here{' (optional)' if has_isolation else ''}: {probe.reason}"
    return _finding(
        f"sandbox.{probe.name}",
        "ok" if probe.is_available else "skip" if has_isolation else "fail",
        summary,
        probe.remedy,
        is_available=probe.is_available,
        is_isolating=probe.is_isolating,
        missing_walls=[*probe.missing_walls],
        duration_s=probe.duration_s,
    )


# --- layers --------------------------------------------------------------------------------------------------------


def check_layers(root: Path, config: LayersConfig) -> list[Finding]:
    """Compare the size of the store with its bound."""
    layers = list_layers(root)
    num_bytes = sum(layer.num_bytes for layer in layers)
    status: Status = "ok" if num_bytes <= config.max_bytes else "warn"
    summary = f"{len(layers)} layers, {num_bytes / GIB:.1f} of {config.max_bytes / GIB:.1f} GiB in {root}"
    remedy = "repairgym doctor --collect-layers"
    facts: dict[str, JsonValue] = {"num_layers": len(layers), "num_bytes": num_bytes, "max_bytes": config.max_bytes}
    return [_finding("layers", status, summary, remedy, **facts)]


def verify_layers(root: Path) -> list[Finding]:
    """Compare every layer with its manifest; return a finding per damaged layer and a summary."""
    findings, num_sound, num_unknown = [], 0, 0
    for layer in list_layers(root):
        if not manifest_path(layer.path).exists():
            num_unknown += 1
        elif damage := find_damage(layer.path):
            findings.append(_describe_damage(layer.path, root, damage))
        else:
            num_sound += 1
    unknown = f"; {num_unknown} of an older version have no manifest" if num_unknown else ""
    summary = f"{num_sound} layers are intact, {len(findings)} are damaged{unknown}"
    facts = {"num_sound": num_sound, "num_damaged": len(findings), "num_without_manifest": num_unknown}
    return [_finding("layers.verified", "ok", summary, **facts), *findings]


def _describe_damage(layer: Path, root: Path, damage: tuple[str, ...]) -> Finding:
    named = "; ".join(damage[:_NUM_NAMED_PATHS])
    more = f"; and {len(damage) - _NUM_NAMED_PATHS} more" if len(damage) > _NUM_NAMED_PATHS else ""
    summary = f"{layer.relative_to(root)}: {named}{more}"
    remedy = f"remove the folder {layer}: its next use builds it again"
    return _finding("layers.damaged", "fail", summary, remedy, path=str(layer), damage=[*damage])


def collect_layers(root: Path, config: LayersConfig) -> list[Finding]:
    """Remove the least recently used layers until the store is within its bound."""
    done = collect(root, config)
    freed, left = done.num_bytes_before - done.num_bytes_after, done.num_bytes_after
    is_within = left <= config.max_bytes
    summary = f"{len(done.removed)} layers removed, {freed / GIB:.1f} GiB freed, {left / GIB:.1f} GiB left"
    if not is_within:
        idle = f"others were used in the last {config.min_idle_s / 3600:.1f} hours"
        summary += f", more than its bound: {done.num_in_use} are in use, {idle}"
    return [
        _finding(
            "layers.collected",
            "ok" if is_within else "warn",
            summary,
            "collect again later, or lower min_idle_s: repairgym doctor --collect-layers min_idle_s=0",
            num_removed=len(done.removed),
            num_bytes_freed=freed,
            num_bytes=left,
            num_in_use=done.num_in_use,
        )
    ]

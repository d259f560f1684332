"""Checks of `repairgym doctor` on hardware, interpreter and installed packages.

Reads ``/proc``, ``/sys`` and package metadata; makes `Finding` records. Invariants: absence of a
checked part is a finding, not an exception; each finding that is not ok names its fix.
"""

import os
import platform
import shutil
import sys
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path
from typing import Literal

import psutil
from packaging.requirements import Requirement
from pydantic import JsonValue

from repairgym.errors import install_hint
from repairgym.records import Record

GIB = 1 << 30
OLDEST_PYTHON = (3, 11)
NEEDED_MEMORY_BYTES = 8 * GIB
"""Needed by the demo; half of it is the minimum for any command."""
NEEDED_DISK_BYTES = 6 * GIB
"""Environments, layers and one run folder with its checkpoints; a sixth of it is the minimum."""
CGROUP = Path("/sys/fs/cgroup")

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


def check_python() -> list[Finding]:
    """Check version and kind of the interpreter."""
    version = platform.python_version()
    is_new_enough = sys.version_info[:2] >= OLDEST_PYTHON
    summary = f"Python {version} ({platform.python_implementation()}) on {platform.system()} {platform.machine()}"
    facts: dict[str, JsonValue] = {"version": version, "system": platform.system(), "machine": platform.machine()}
    if platform.system() != "Linux":
        return [Finding(id="python", status="fail", summary=summary, remedy="run on Linux", facts=facts)]
    remedy = "" if is_new_enough else f"install Python {OLDEST_PYTHON[0]}.{OLDEST_PYTHON[1]} or newer"
    return [Finding(id="python", status="ok" if is_new_enough else "fail", summary=summary, remedy=remedy, facts=facts)]


def check_cores() -> list[Finding]:
    """Check the cores of this process: its affinity, bounded by a cgroup quota."""
    num_cores = len(os.sched_getaffinity(0))
    quota = cgroup_cores()
    usable = num_cores if quota is None else min(num_cores, quota)
    facts: dict[str, JsonValue] = {"num_cores": num_cores, "cgroup_cores": quota}
    status: Status = "ok" if usable >= 2 else "warn"
    remedy = (
        "" if status == "ok" else "the demo is sized for 2 cores; give it more minutes: make demo ARGS='--minutes 30'"
    )
    return [Finding(id="cores", status=status, summary=f"{usable:g} usable cores", remedy=remedy, facts=facts)]


def check_memory() -> list[Finding]:
    """Check the memory of this process: the machine's, bounded by a cgroup."""
    machine = psutil.virtual_memory()
    bound = cgroup_memory_bytes()
    total = machine.total if bound is None else min(machine.total, bound)
    facts: dict[str, JsonValue] = {
        "total_bytes": machine.total,
        "available_bytes": machine.available,
        "cgroup_bytes": bound,
    }
    summary = f"{total / GIB:.1f} GiB of memory, {min(total, machine.available) / GIB:.1f} GiB free"
    status = _grade(total, NEEDED_MEMORY_BYTES, NEEDED_MEMORY_BYTES // 2)
    remedy = "" if status == "ok" else "the demo wants 8 GiB: close other programs or raise the container's limit"
    return [Finding(id="memory", status=status, summary=summary, remedy=remedy, facts=facts)]


def check_disk(folders: Iterable[Path]) -> list[Finding]:
    """Check disk space for layers and runs; for a missing folder, that of its nearest parent."""
    findings = []
    for folder in folders:
        place = next(parent for parent in (folder, *folder.parents) if parent.exists())
        free = shutil.disk_usage(place).free
        status = _grade(free, NEEDED_DISK_BYTES, NEEDED_DISK_BYTES // 6)
        remedy = "" if status == "ok" else "free some space, or move the layer store with REPAIRGYM_CACHE=FOLDER"
        if not os.access(place, os.W_OK):
            status, remedy = "fail", f"make {place} writable, or set REPAIRGYM_CACHE to a folder that is"
        facts: dict[str, JsonValue] = {"path": str(folder), "free_bytes": free}
        summary = f"{free / GIB:.1f} GiB free for {folder}"
        findings.append(Finding(id="disk", status=status, summary=summary, remedy=remedy, facts=facts))
    return findings


def check_packages() -> list[Finding]:
    """Check the packages of RepairGym and of each extra against its metadata."""
    try:
        own = metadata.distribution("repairgym")
    except metadata.PackageNotFoundError:
        remedy = "make setup, or pip install -e ."
        return [Finding(id="packages", status="warn", summary="repairgym is imported, not installed", remedy=remedy)]
    requirements = [Requirement(text) for text in own.requires or ()]
    missing = [str(item) for item in requirements if _is_wanted(item, "") and not _is_met(item)]
    needed = Finding(
        id="packages",
        status="fail" if missing else "ok",
        summary=f"missing or too old: {', '.join(missing)}" if missing else "all needed packages are installed",
        remedy="make setup" if missing else "",
        facts={"missing": [*missing]},
    )
    extras = own.metadata.get_all("Provides-Extra") or []
    return [needed, *(_check_extra(name, requirements) for name in extras)]


def _check_extra(name: str, requirements: list[Requirement]) -> Finding:
    own = [item for item in requirements if _is_wanted(item, name) and not _is_wanted(item, "")]
    missing = [item.name for item in own if not _is_met(item)]
    return Finding(
        id=f"extra.{name}",
        status="skip" if missing else "ok",
        summary=f"not installed (optional): {', '.join(missing)}" if missing else "installed",
        remedy=install_hint(name) if missing else "",
        facts={"is_installed": not missing, "missing": [*missing]},
    )


def _is_wanted(item: Requirement, extra: str) -> bool:
    return item.marker is None or item.marker.evaluate({"extra": extra})


def _is_met(item: Requirement) -> bool:
    try:
        return item.specifier.contains(metadata.version(item.name), prereleases=True)
    except metadata.PackageNotFoundError:
        return False


def _grade(value: float, wanted: float, least: float) -> Status:
    return "ok" if value >= wanted else "warn" if value >= least else "fail"


# --- cgroups -------------------------------------------------------------------------------------------------------


def cgroup_cores(root: Path = CGROUP) -> float | None:
    """Return the cores granted by the cgroup (v2 or v1) mounted at ``root``; None when unbounded."""
    quota, _, period = _read(root / "cpu.max").partition(" ")
    if not quota:
        quota, period = _read(root / "cpu/cpu.cfs_quota_us"), _read(root / "cpu/cpu.cfs_period_us")
    is_bound = quota.isdigit() and period.isdigit() and int(period) > 0
    return int(quota) / int(period) if is_bound else None


def cgroup_memory_bytes(root: Path = CGROUP) -> int | None:
    """Return the bytes granted by the cgroup (v2 or v1) mounted at ``root``; None when unbounded."""
    text = _read(root / "memory.max") or _read(root / "memory/memory.limit_in_bytes")
    # v1 writes "unbounded" as the largest multiple of the page size.
    return int(text) if text.isdigit() and int(text) < 1 << 60 else None


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""

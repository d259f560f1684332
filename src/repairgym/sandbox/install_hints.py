"""Advice for a machine on which a back end does not start.

Reads the reason from a probe and the kernel settings that often explain it; makes a text. Settings only choose the
words; a trial decides whether a back end works.
"""

from __future__ import annotations

import os
from pathlib import Path

from repairgym.records import Record

_SETTINGS = {
    "apparmor_restrict_unprivileged_userns": "kernel/apparmor_restrict_unprivileged_userns",
    "unprivileged_userns_clone": "kernel/unprivileged_userns_clone",
    "max_user_namespaces": "user/max_user_namespaces",
}
_CONTAINER_MARKS = ("/.dockerenv", "/run/.containerenv")
_INSTALL = "install it: 'apt install {0}', 'dnf install {0}' or 'pacman -S {0}'"


class Machine(Record):
    """Facts about this machine that explain a failed start."""

    settings: dict[str, str] = {}
    """Kernel settings about user namespaces, without those that this kernel lacks."""
    is_in_container: bool = False
    has_seccomp_filter: bool = False
    """This process runs under a seccomp filter that others installed."""

    @classmethod
    def inspect(cls, root: Path = Path("/")) -> Machine:
        """Inspect this machine, or the one whose files lie below ``root``."""
        values = {name: _read(root / "proc/sys" / path) for name, path in _SETTINGS.items()}
        return cls(
            settings={name: value for name, value in values.items() if value},
            is_in_container=any((root / mark.lstrip("/")).exists() for mark in _CONTAINER_MARKS),
            has_seccomp_filter="Seccomp:\t2" in _read(root / "proc/self/status"),
        )


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def find_remedy(backend: str, reason: str, machine: Machine) -> str:
    """Return the commands or settings that would make ``backend`` work, given the reason why it does not."""
    reason = reason.lower()
    if backend == "container":
        return _repair_engine(reason)
    if backend == "degraded":
        return "build the environment again; this back end needs only a writable temporary folder"
    if backend == "bubblewrap" and "not installed" in reason:
        return _INSTALL.format("bubblewrap")
    if backend == "bubblewrap" and "expected 0.5" in reason:
        return "install bubblewrap 0.5 or newer"
    return _allow_user_namespaces(machine)


def _allow_user_namespaces(machine: Machine) -> str:
    """Return what makes the kernel give user namespaces to an ordinary process; the likely causes only."""
    settings, steps = machine.settings, []
    if machine.is_in_container or machine.has_seccomp_filter:
        steps.append(
            "this is a container: start it with '--security-opt seccomp=unconfined --security-opt "
            "systempaths=unconfined' (podman: '--security-opt unmask=ALL')"
        )
    if settings.get("apparmor_restrict_unprivileged_userns", "0") != "0":
        steps.append("'sudo sysctl kernel.apparmor_restrict_unprivileged_userns=0' (AppArmor, Ubuntu 23.10 or newer)")
    if settings.get("unprivileged_userns_clone") == "0":
        steps.append("'sudo sysctl kernel.unprivileged_userns_clone=1' (Debian)")
    if settings.get("max_user_namespaces") == "0":
        steps.append("'sudo sysctl user.max_user_namespaces=10000' (Red Hat)")
    if not steps:
        steps.append(
            "Linux 5.12 or newer with user namespaces and overlayfs is needed; run as root, or ask its administrator"
        )
    return "; ".join(steps)


def _repair_engine(reason: str) -> str:
    user = os.environ.get("USER") or "$USER"
    causes = {
        "permission denied while trying to connect": "'sudo usermod -aG docker $USER' and log in again",
        "cannot connect to the docker daemon": "'sudo systemctl start docker'",
        "hybrid": "set sandbox.container.runtime=runc: this runtime does not know mixed cgroup hierarchies",
        "subuid": f"'sudo usermod --add-subuids 100000-165535 --add-subgids 100000-165535 {user}'",
        "newuidmap": _INSTALL.format("uidmap"),
        "rlimit": "the engine may not raise limits here: run it with CAP_SYS_RESOURCE",
        "did not end in": "raise sandbox.container.start_timeout_s, or look why the engine does not answer",
    }
    steps = [step for cause, step in causes.items() if cause in reason]
    if "podman is not installed" in reason and not steps:
        steps.append(_INSTALL.format("podman"))
    return "; ".join(steps) or "make 'podman run --network none' (or docker) work on this machine"

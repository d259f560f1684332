"""Trials of the back ends on this machine, the choice of the configured one, and advice where one does not start.

Reads :class:`~repairgym.config.sandbox.SandboxConfig`, makes :class:`BackendProbe` and back ends. Guarantees: a back
end counts as available only after a sandbox was made, ran a program and isolated it, whatever the kernel's settings
say; those only choose the words of the advice.
"""

import asyncio
import logging
import os
import socket
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Literal, Self

from repairgym.config.sandbox import SandboxConfig
from repairgym.errors import ConfigError, RepairGymError, SandboxError, SandboxUnavailableError
from repairgym.records import Record
from repairgym.sandbox.backends.bubblewrap import BubblewrapBackend
from repairgym.sandbox.backends.container import ContainerBackend
from repairgym.sandbox.backends.degraded import DegradedBackend
from repairgym.sandbox.backends.namespace import NamespaceBackend
from repairgym.sandbox.base import Sandbox, SandboxBackend, SandboxSpec
from repairgym.sandbox.branching import DEFAULT_BYTES
from repairgym.sandbox.conformance.site import make_environment
from repairgym.sandbox.system_view import SystemPaths

BACKENDS: dict[str, Callable[[SandboxConfig], SandboxBackend]] = {
    "namespace": lambda config: NamespaceBackend(
        config.max_zygotes, config.max_snapshot_bytes or DEFAULT_BYTES, _paths(config)
    ),
    "bubblewrap": lambda config: BubblewrapBackend(config.bubblewrap, _paths(config)),
    "container": lambda config: ContainerBackend(config.container, _paths(config)),
    "degraded": lambda config: DegradedBackend(config.max_snapshot_bytes or DEFAULT_BYTES, _paths(config)),
}
"""name -> maker, best first."""


def _paths(config: SandboxConfig) -> SystemPaths:
    return SystemPaths(config.shown_paths, config.hidden_paths)


Purpose = Literal["work", "evaluation"]
"""Use of a back end: building tasks and training, or published numbers."""
ISOLATING_BACKENDS = frozenset({"namespace", "bubblewrap", "container"})
BRANCHING_BACKENDS = frozenset({"namespace", "degraded"})
"""Back ends with snapshots and forks; the others raise ``SandboxError``."""

_LOG = logging.getLogger(__name__)
_NO_ISOLATION = "does not isolate: no namespaces, so processes and the disk of the host are in reach"
_CONNECT = (
    "import socket, sys\n"
    "try: socket.create_connection(('127.0.0.1', int(sys.argv[1])), 2)\n"
    "except OSError: sys.exit(0)\n"
    "sys.exit(1)"
)


class BackendProbe(Record):
    """Result of the trial of one back end on this machine."""

    name: str
    is_available: bool
    is_isolating: bool
    reason: str = ""
    """The reason why it is not available, or does not isolate."""
    remedy: str = ""
    """Changes by a person that would make it available."""
    missing_walls: tuple[str, ...] = ()
    """Protections that this kernel lacks, for an available back end."""
    duration_s: float = 0.0
    """Seconds that the trial took; 0 when it failed."""


async def _check_confined(sandbox: Sandbox) -> None:
    result = await sandbox.exec(("cat", "/proc/self/status"), timeout_s=20)
    if result.exit_status != 0:
        raise SandboxError(f"'cat' ended with {result.exit_status} in the sandbox: {result.stderr.decode()}")
    if b"CapEff:\t0000000000000000" not in result.stdout or b"NoNewPrivs:\t1" not in result.stdout:
        raise SandboxError("code in the sandbox kept capabilities")


async def _check_walls(sandbox: Sandbox) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        argv = ("python", "-c", _CONNECT, str(server.getsockname()[1]))
        if (await sandbox.exec(argv, timeout_s=20)).exit_status != 0:
            raise SandboxError("code in the sandbox reached a port of the host")


async def _try(backend: SandboxBackend, is_isolating: bool) -> None:
    """Make a sandbox and check its isolation; raise when there is none, or it has a hole."""
    with tempfile.TemporaryDirectory(prefix="repairgym-probe-") as folder:
        # The process inside may be another user.
        Path(folder).chmod(0o755)
        environment, tree = make_environment(Path(folder, "environment")), Path(folder, "tree")
        tree.mkdir()
        try:
            sandbox = await backend.create(SandboxSpec(environment=environment, tree=tree))
            await _check_confined(sandbox)
            if is_isolating:
                await _check_walls(sandbox)
            await sandbox.close()
        finally:
            await backend.close()


async def _probe(name: str, config: SandboxConfig) -> BackendProbe:
    is_isolating = name in ISOLATING_BACKENDS
    backend = BACKENDS[name](config)
    start_s = time.monotonic()
    try:
        await _try(backend, is_isolating)
    except (RepairGymError, OSError) as error:
        reason = next(iter(str(error).splitlines()), repr(error))
        remedy = find_remedy(name, str(error), Machine.inspect())
        return BackendProbe(name=name, is_available=False, is_isolating=is_isolating, reason=reason, remedy=remedy)
    missing = backend.missing_walls if isinstance(backend, DegradedBackend) else ()
    reason = "" if is_isolating else _NO_ISOLATION
    if missing:
        reason += f"; this kernel also leaves open: {', '.join(missing)}"
    duration_s = round(time.monotonic() - start_s, 3)
    return BackendProbe(
        name=name,
        is_available=True,
        is_isolating=is_isolating,
        reason=reason,
        missing_walls=missing,
        duration_s=duration_s,
    )


def probe_backend(name: str, config: SandboxConfig | None = None) -> BackendProbe:
    """Try the back end ``name``; takes about a second."""
    # A thread of its own: the caller may already be inside an event loop.
    with ThreadPoolExecutor(max_workers=1) as pool:
        return pool.submit(lambda: asyncio.run(_probe(name, config or SandboxConfig()))).result()


def probe_backends(config: SandboxConfig | None = None) -> list[BackendProbe]:
    """Try each back end, best first; takes a few seconds."""
    return [probe_backend(name, config) for name in BACKENDS]


def create_backend(config: SandboxConfig, purpose: Purpose = "work") -> SandboxBackend:
    """Make the back end that ``config`` names; ``auto`` probes.

    Raises:
        ConfigError: ``degraded`` is configured but not allowed for this purpose, or an option has no effect.
        SandboxUnavailableError: no allowed back end works on this machine.
    """
    name = choose_backend(config, purpose)
    if config.max_snapshot_bytes is not None and name not in BRANCHING_BACKENDS:
        raise ConfigError(
            f"got sandbox.max_snapshot_bytes = {config.max_snapshot_bytes}, but the back end {name!r} has no "
            "snapshots; leave it out, or choose 'namespace'"
        )
    return BACKENDS[name](config)


def choose_backend(config: SandboxConfig, purpose: Purpose = "work") -> str:
    """Return the name of the back end that `create_backend` makes; raises like it."""
    missing = _missing_permission(config, purpose)
    if config.backend == "degraded" and missing:
        raise ConfigError(f"got sandbox.backend = 'degraded', which does not isolate; {missing}")
    if config.backend != "auto":
        return config.backend
    failed = []
    for name in BACKENDS:
        if name in ISOLATING_BACKENDS:
            probe = probe_backend(name, config)
            if probe.is_available:
                return name
            failed.append(f"{name}: {probe.reason} (to fix it: {probe.remedy})")
    if not missing:
        _LOG.warning("sandboxes do not isolate: no isolating back end works here. %s", ". ".join(failed))
        return "degraded"
    raise SandboxUnavailableError(f"no isolating sandbox works here: {'. '.join(failed)}. Or: {missing}")


def require_isolation(config: SandboxConfig) -> None:
    """Check that an evaluation may use the back end that `create_backend` makes for other work; raise if not."""
    # In every other case an evaluation has the same choice as other work: no probe is needed.
    if config.is_degraded_allowed and not config.is_degraded_evaluation_allowed:
        choose_backend(config, "evaluation")


def _missing_permission(config: SandboxConfig, purpose: Purpose) -> str:
    """Return the setting that ``degraded`` still needs for ``purpose``; empty when it is allowed."""
    if not config.is_degraded_allowed:
        return "set sandbox.is_degraded_allowed = true to accept running without isolation"
    if purpose == "evaluation" and not config.is_degraded_evaluation_allowed:
        return (
            "an evaluation rejects it, because its outcomes do not compare with those of isolated runs; "
            "set sandbox.is_degraded_evaluation_allowed = true to accept that"
        )
    return ""


# --- advice -----------------------------------------------------------------------------------------------------------

_SETTINGS = {
    "apparmor_restrict_unprivileged_userns": "kernel/apparmor_restrict_unprivileged_userns",
    "unprivileged_userns_clone": "kernel/unprivileged_userns_clone",
    "max_user_namespaces": "user/max_user_namespaces",
}
_CONTAINER_MARKS = (".dockerenv", "run/.containerenv")
_INSTALL = "install it: 'apt install {0}', 'dnf install {0}' or 'pacman -S {0}'"


class Machine(Record):
    """Facts about this machine that explain a failed start."""

    settings: dict[str, str] = {}
    """Kernel settings about user namespaces, without those that this kernel lacks."""
    is_in_container: bool = False
    """True also when this process runs under a seccomp filter that others installed."""

    @classmethod
    def inspect(cls, root: Path = Path("/")) -> Self:
        """Inspect this machine, or the one whose files lie below ``root``."""
        values = {name: _read(root / "proc/sys" / path) for name, path in _SETTINGS.items()}
        is_marked = any((root / mark).exists() for mark in _CONTAINER_MARKS)
        return cls(
            settings={name: value for name, value in values.items() if value},
            is_in_container=is_marked or "Seccomp:\t2" in _read(root / "proc/self/status"),
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
    settings = machine.settings
    causes = {
        "this is a container: start it with '--security-opt seccomp=unconfined --security-opt "
        "systempaths=unconfined' (podman: '--security-opt unmask=ALL')": machine.is_in_container,
        "'sudo sysctl kernel.apparmor_restrict_unprivileged_userns=0' (AppArmor, Ubuntu 23.10 or newer)": (
            settings.get("apparmor_restrict_unprivileged_userns", "0") != "0"
        ),
        "'sudo sysctl kernel.unprivileged_userns_clone=1' (Debian)": settings.get("unprivileged_userns_clone") == "0",
        "'sudo sysctl user.max_user_namespaces=10000' (Red Hat)": settings.get("max_user_namespaces") == "0",
    }
    unknown = "Linux 5.12 or newer with user namespaces and overlayfs is needed; run as root, or ask its administrator"
    return "; ".join(step for step, is_likely in causes.items() if is_likely) or unknown


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

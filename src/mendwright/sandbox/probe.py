"""Which back ends work on this machine, found by doing, and the one that a configuration asks for.

Reads :class:`~mendwright.config.sandbox.SandboxConfig`, makes :class:`BackendProbe` and back ends. Invariant: no
setting of the kernel is believed; a back end is available when a sandbox was made, ran a program and kept its walls.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from mendwright.config.sandbox import SandboxConfig
from mendwright.errors import ConfigError, MendError, SandboxError, SandboxUnavailableError
from mendwright.records import Record
from mendwright.sandbox.base import Sandbox, SandboxBackend, SandboxSpec
from mendwright.sandbox.bubblewrap import BubblewrapBackend
from mendwright.sandbox.container import ContainerBackend
from mendwright.sandbox.degraded import DegradedBackend
from mendwright.sandbox.namespace import NamespaceBackend

BACKENDS: dict[str, Callable[[SandboxConfig], SandboxBackend]] = {
    "namespace": lambda config: NamespaceBackend(max_zygotes=config.max_zygotes),
    "bubblewrap": lambda config: BubblewrapBackend(config.bubblewrap),
    "container": lambda config: ContainerBackend(config.container),
    "degraded": lambda config: DegradedBackend(),
}
"""name -> maker, best first."""
ISOLATING_BACKENDS = frozenset({"namespace", "bubblewrap", "container"})

_REMEDY = (
    "allow unprivileged user namespaces: 'sysctl kernel.apparmor_restrict_unprivileged_userns=0' (Ubuntu), "
    "'sysctl kernel.unprivileged_userns_clone=1' (older Debian), 'sysctl user.max_user_namespaces=10000' (Red Hat); "
    "in a container start it with '--security-opt seccomp=unconfined --security-opt systempaths=unconfined'; "
    "Linux 5.12 or newer is needed"
)
_CONNECT = (
    "import socket, sys\n"
    "try: socket.create_connection(('127.0.0.1', int(sys.argv[1])), 2)\n"
    "except OSError: sys.exit(0)\n"
    "sys.exit(1)"
)


class BackendProbe(Record):
    """What one back end can do on this machine."""

    name: str
    is_available: bool
    is_isolating: bool
    reason: str = ""
    """Why it is not available, or what it does not do."""
    remedy: str = ""
    """What a person can change."""


async def _check_runs(sandbox: Sandbox) -> None:
    result = await sandbox.exec(("true",), timeout_s=20)
    if result.exit_status != 0:
        raise SandboxError(f"'true' ended with {result.exit_status} in the sandbox: {result.stderr.decode()}")


async def _check_walls(sandbox: Sandbox) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        argv = ("python", "-c", _CONNECT, str(server.getsockname()[1]))
        if (await sandbox.exec(argv, timeout_s=20)).exit_status != 0:
            raise SandboxError("code in the sandbox reached a port of the host")
    status = (await sandbox.exec(("cat", "/proc/self/status"), timeout_s=20)).stdout
    if b"CapEff:\t0000000000000000" not in status or b"NoNewPrivs:\t1" not in status:
        raise SandboxError("code in the sandbox kept capabilities")


async def _probe(name: str) -> BackendProbe:
    is_isolating = name in ISOLATING_BACKENDS
    backend = BACKENDS[name](SandboxConfig())
    with tempfile.TemporaryDirectory(prefix="mend-probe-") as folder:
        binaries, tree = Path(folder, "environment", "bin"), Path(folder, "tree")
        binaries.mkdir(parents=True)
        tree.mkdir()
        (binaries / "python").symlink_to(os.path.realpath(sys.executable))
        try:
            sandbox = await backend.create(SandboxSpec(environment=binaries.parent, tree=tree))
            await _check_runs(sandbox)
            if is_isolating:
                await _check_walls(sandbox)
        except (MendError, OSError) as error:
            reason = str(error).splitlines()[0]
            return BackendProbe(name=name, is_available=False, is_isolating=is_isolating, reason=reason, remedy=_REMEDY)
        finally:
            await backend.close()
    reason = "" if is_isolating else "does not isolate: files, network and processes of the host are in reach"
    return BackendProbe(name=name, is_available=True, is_isolating=is_isolating, reason=reason)


def probe_backend(name: str) -> BackendProbe:
    """What the back end ``name`` can do here; takes about a second."""
    # A thread of its own: the caller may already be inside an event loop.
    with ThreadPoolExecutor(max_workers=1) as pool:
        return pool.submit(lambda: asyncio.run(_probe(name))).result()


def probe_backends() -> list[BackendProbe]:
    """What each back end can do here, best first; takes about a second."""
    return [probe_backend(name) for name in BACKENDS]


def create_backend(config: SandboxConfig) -> SandboxBackend:
    """The back end that ``config`` asks for; ``auto`` probes.

    Raises:
        ConfigError: ``degraded`` is asked for and not allowed.
        SandboxUnavailableError: nothing that is allowed works on this machine.
    """
    if config.backend == "degraded" and not config.is_degraded_allowed:
        raise ConfigError(
            "got sandbox.backend = 'degraded', which does not isolate; "
            "set sandbox.is_degraded_allowed = true to accept that"
        )
    if config.backend != "auto":
        return BACKENDS[config.backend](config)
    probe = probe_backend("namespace")
    if probe.is_available:
        return BACKENDS["namespace"](config)
    if config.is_degraded_allowed:
        return BACKENDS["degraded"](config)
    raise SandboxUnavailableError(
        f"no isolating sandbox works here: {probe.reason}. To mend it: {probe.remedy}. "
        "Or set sandbox.is_degraded_allowed = true to run without isolation (never for evaluation)"
    )

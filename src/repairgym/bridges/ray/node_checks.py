"""Checks of a node, on nodes and on the driver: equal versions, a sandbox that starts. Each problem has a remedy."""

import hashlib
import platform
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Literal

import repairgym
from repairgym.config.sandbox import SandboxConfig
from repairgym.errors import ClusterError, SandboxUnavailableError, install_hint
from repairgym.records import Record
from repairgym.sandbox.probe import BACKENDS, ISOLATING_BACKENDS, BackendProbe, probe_backend
from repairgym.tasks.layers.environments import base_python

ProblemKind = Literal["sandbox", "version", "layer", "clock", "capacity", "answer"]


class Problem(Record):
    """One reason to reject a node."""

    kind: ProblemKind
    text: str
    """Actual and expected state."""
    remedy: str
    """Advice, with the command where there is one."""

    def __str__(self) -> str:
        """One sentence for an error message."""
        return f"{self.text}; {self.remedy}"


class Installation(Record):
    """Versions and paths that have to be equal on all nodes of a run."""

    python: str
    python_path: str
    """The interpreter that environments point at: they are sent unchanged."""
    repairgym: str
    code_digest: str
    """SHA-256 over the sources of repairgym: two checkouts may have one version."""
    ray: str


@cache
def describe_installation() -> Installation:
    """Return the installation of this machine."""
    return Installation(
        python=platform.python_version(),
        python_path=str(base_python()),
        repairgym=repairgym.__version__,
        code_digest=_code_digest(Path(repairgym.__file__).parent),
        ray=metadata.version("ray"),
    )


def _code_digest(folder: Path) -> str:
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        digest.update(f"{path.relative_to(folder)}\0".encode() + path.read_bytes())
    return digest.hexdigest()


def compare_installations(expected: Installation, actual: Installation) -> list[Problem]:
    """Return the differences of ``actual`` (a node) from ``expected`` (the driver)."""
    remedies = {
        "python": f"install Python {expected.python} there, for instance with the image of the driver",
        "python_path": f"put Python {expected.python} at {expected.python_path} there: environments point at it",
        "repairgym": f"{install_hint('ray')} there, version {expected.repairgym}",
        "code_digest": "install the driver's checkout there (pip install .)",
        "ray": f"pip install 'ray[client]=={expected.ray}' there",
    }
    return [
        Problem(
            kind="version",
            text=f"{name} is {getattr(actual, name)[:40]}, expected {getattr(expected, name)[:40]}",
            remedy=remedy,
        )
        for name, remedy in remedies.items()
        if getattr(actual, name) != getattr(expected, name)
    ]


def try_sandbox(config: SandboxConfig) -> list[BackendProbe]:
    """Start the back end of ``config``; with ``auto`` each one in turn, up to the first that works."""
    tried: list[BackendProbe] = []
    names = [name for name in BACKENDS if name in ISOLATING_BACKENDS] if config.backend == "auto" else [config.backend]
    for name in names:
        tried.append(probe_backend(name, config))
        if tried[-1].is_available:
            break
    return tried


def judge_sandbox(tried: Sequence[BackendProbe]) -> list[Problem]:
    """Return the reasons why no sandbox starts; empty when a sandbox starts."""
    if any(probe.is_available and probe.is_isolating for probe in tried):
        return []
    reasons = ", ".join(f"{probe.name}: {probe.reason}" for probe in tried)
    remedies = dict.fromkeys(probe.remedy for probe in tried if probe.remedy)
    return [Problem(kind="sandbox", text=f"no sandbox starts ({reasons})", remedy=". Or: ".join(remedies))]


def find_problems(expected: Installation, sandbox: SandboxConfig) -> list[Problem]:
    """Return the problems of this node for a driver with the installation ``expected``."""
    return compare_installations(expected, describe_installation()) + judge_sandbox(try_sandbox(sandbox))


def raise_problems(problems_by_node: Mapping[str, Sequence[Problem]]) -> None:
    """Raise the problems of nodes, where there are any.

    Raises:
        SandboxUnavailableError: a node cannot make a sandbox.
        ClusterError: anything else.
    """
    rejected = {name: problems for name, problems in problems_by_node.items() if problems}
    if not rejected:
        return
    is_sandbox = any(problem.kind == "sandbox" for problems in rejected.values() for problem in problems)
    text = "; ".join(f"{name} is rejected: {'. '.join(map(str, problems))}" for name, problems in rejected.items())
    raise (SandboxUnavailableError if is_sandbox else ClusterError)(text)

"""Whether a node fits: equal versions, and a sandbox that really starts.

Reads this machine; makes `Installation` and `Problem` records. Runs on nodes and on the driver alike. Invariants: a
problem says what to do, command included; nothing here needs Ray to be there.
"""

from __future__ import annotations

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
    """One reason why a node is refused."""

    kind: ProblemKind
    text: str
    """What was got and what was expected."""
    remedy: str
    """What to do, with the command where there is one."""

    def __str__(self) -> str:
        """One sentence for an error message."""
        return f"{self.text}; {self.remedy}"


class Installation(Record):
    """What has to be equal on all nodes of a run."""

    python: str
    python_path: str
    """The interpreter that environments point at: they travel as they are."""
    repairgym: str
    code_digest: str
    """SHA-256 over the sources of repairgym: versions alone do not tell two checkouts apart."""
    ray: str


@cache
def describe_installation() -> Installation:
    """What is installed on this machine."""
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


def compare_installations(expected: Installation, found: Installation) -> list[Problem]:
    """What of ``found`` (a node) is not what ``expected`` (the driver) has."""
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
            text=f"{name} is {getattr(found, name)[:40]}, expected {getattr(expected, name)[:40]}",
            remedy=remedy,
        )
        for name, remedy in remedies.items()
        if getattr(found, name) != getattr(expected, name)
    ]


def try_sandbox(config: SandboxConfig) -> list[BackendProbe]:
    """Start the back end that ``config`` names; with ``auto`` one after the other, up to the first that works."""
    tried: list[BackendProbe] = []
    names = [name for name in BACKENDS if name in ISOLATING_BACKENDS] if config.backend == "auto" else [config.backend]
    for name in names:
        tried.append(probe_backend(name, config))
        if tried[-1].is_available:
            break
    return tried


def judge_sandbox(tried: list[BackendProbe]) -> list[Problem]:
    """Why no sandbox starts; empty when one does."""
    if any(probe.is_available and probe.is_isolating for probe in tried):
        return []
    reasons = ", ".join(f"{probe.name}: {probe.reason}" for probe in tried)
    remedies = dict.fromkeys(probe.remedy for probe in tried if probe.remedy)
    return [Problem(kind="sandbox", text=f"no sandbox starts ({reasons})", remedy=". Or: ".join(remedies))]


def find_problems(expected: Installation, sandbox: SandboxConfig) -> list[Problem]:
    """Why this node cannot run episodes for a driver with the installation ``expected``."""
    return compare_installations(expected, describe_installation()) + judge_sandbox(try_sandbox(sandbox))


def refuse(found: Mapping[str, Sequence[Problem]]) -> None:
    """End with the problems of nodes, by name; nothing happens when there are none.

    Raises:
        SandboxUnavailableError: a node cannot make a sandbox.
        ClusterError: anything else.
    """
    refused = {name: problems for name, problems in found.items() if problems}
    if not refused:
        return
    is_sandbox = any(problem.kind == "sandbox" for problems in refused.values() for problem in problems)
    text = "; ".join(f"{name} is refused: {'. '.join(map(str, problems))}" for name, problems in refused.items())
    raise (SandboxUnavailableError if is_sandbox else ClusterError)(text)

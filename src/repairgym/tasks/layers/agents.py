"""Layers with a command line agent of others, from the package index or from npm, each made once.

Reads pinned distributions and packages. Makes folders ``agents/<digest>`` of the layer store: a relocatable virtual
environment, ``node_modules`` next to it. Guarantees: no code of a package runs while it is installed (wheels only, no
install scripts); what was installed, dependencies included, is listed in ``agent.lock`` and ``package-lock.json``.
"""

import hashlib
import json
import platform
import shutil
import subprocess
import sysconfig
from importlib import metadata
from pathlib import Path

from packaging.utils import canonicalize_name

from repairgym.errors import IndexUnavailableError
from repairgym.tasks.layers.environments import UV_TIMEOUT_S, base_python, index_arguments, run_uv
from repairgym.tasks.layers.store import LayerStore


def agent_layer(store: LayerStore, requirements: tuple[str, ...], npm: tuple[str, ...]) -> Path:
    """Return the folder with these packages; install a missing one, if the store may use an index."""

    def build(place: Path) -> None:
        if not store.config.is_index_allowed:
            raise IndexUnavailableError("the agent is not on this machine, and layers.is_index_allowed is false")
        if requirements:
            _install_distributions(place, requirements)
        if npm:
            _install_npm(place, npm)

    return store.build_once("agents", layer_digest(requirements, npm), build)


def layer_digest(requirements: tuple[str, ...], npm: tuple[str, ...]) -> str:
    """Return the address of the layer with these packages, on this machine."""
    key = [sorted(requirements), sorted(npm), platform.python_version(), sysconfig.get_platform()]
    return hashlib.sha256(json.dumps(key).encode()).hexdigest()


def has_distribution(layer: Path, name: str) -> bool:
    """Return True when the layer's environment holds the distribution ``name``."""
    folders = [str(folder) for folder in layer.glob("lib/python*/site-packages")]
    wanted = canonicalize_name(name)
    return any(canonicalize_name(each.name) == wanted for each in metadata.distributions(path=folders))


def _install_distributions(place: Path, requirements: tuple[str, ...]) -> None:
    venv = ["venv", "--quiet", "--relocatable", "--allow-existing", "--no-project", "--python", str(base_python())]
    run_uv([*venv, str(place)])
    python = ["--python", str(place / "bin" / "python")]
    options = ["--quiet", "--compile-bytecode", "--link-mode", "copy", "--only-binary", ":all:"]
    run_uv(["pip", "install", *python, *options, *index_arguments(), *requirements])
    (place / "agent.lock").write_text(run_uv(["pip", "freeze", *python]), encoding="utf-8")


def _install_npm(place: Path, packages: tuple[str, ...]) -> None:
    npm = shutil.which("npm")
    if npm is None:
        raise IndexUnavailableError("agents from npm need the program npm, which is not on this machine")
    options = ["--ignore-scripts", "--no-audit", "--no-fund", "--loglevel", "error"]
    command = [npm, "install", "--prefix", str(place), *options, *packages]
    done = subprocess.run(command, capture_output=True, text=True, timeout=UV_TIMEOUT_S, cwd=place)
    if done.returncode != 0:
        raise IndexUnavailableError(f"npm install failed: {' '.join(done.stderr.split())[-1000:]}")

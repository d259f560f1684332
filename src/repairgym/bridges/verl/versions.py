"""Which versions this bridge was written for and tested with, and whether they are what is installed.

Reads the installed distributions; imports none of them. Invariant: a run with other versions is refused before anything
starts, with the command that fixes it.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version

from packaging.version import Version

from repairgym.config.verl import VerlConfig
from repairgym.errors import ConfigError

VERL = {"verl": "0.9.1", "ray": "2.60.0", "transformers": "5.10.4", "TransferQueue": "0.1.11"}
"""Of `requirements-verl.txt`, which the marked tests run with."""
VLLM = {"vllm": "0.24.0"}
"""Of verl 0.9.1's own extra for vLLM."""
_INSTALL = "make verl-env"
_INSTALL_GPU = "make verl-env GPU=1"


def check_versions(config: VerlConfig, installed: Mapping[str, str | None] | None = None) -> dict[str, str]:
    """The versions that a run with ``config`` would use.

    Args:
        config: Decides whether vLLM is needed.
        installed: Distribution -> version, None where there is none; by default those of this interpreter.

    Raises:
        ConfigError: one is missing or is another one than this bridge was tested with.
    """
    wanted = VERL | (VLLM if config.engine == "vllm" else {})
    found = {name: installed.get(name) if installed is not None else _version(name) for name in wanted}
    wrong = [
        f"{name} {found[name] or 'is not installed'}" for name in wanted if not _is_same(found[name], wanted[name])
    ]
    if wrong:
        expected = ", ".join(f"{name} {wanted[name]}" for name in wanted)
        command = _INSTALL_GPU if config.engine == "vllm" else _INSTALL
        raise ConfigError(
            f"got {', '.join(wrong)}; this bridge is made for {expected}. Make their environment with `{command}` and "
            "run this command from it (.venv-verl/bin/repairgym)"
        )
    return {name: text for name, text in found.items() if text is not None}


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _is_same(found: str | None, wanted: str) -> bool:
    # A build for another device has a local part: 0.24.0+cpu.
    return found is not None and Version(found).public == Version(wanted).public

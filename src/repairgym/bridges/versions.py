"""Versions of other people's packages that the bridges are tested with, read without importing them."""

from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Literal

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from repairgym.config.cluster import VerlConfig
from repairgym.errors import ConfigError, install_hint

SUPPORTED: dict[Literal["trl", "verifiers"], str] = {
    "trl": ">=1.16,<1.17",  # `rollout_func` is experimental and may change with any release
    "verifiers": ">=0.4,<0.5",  # the plugin API changes between minor versions
}
"""Package -> versions, as the extra of the same name has them."""
VERL = {"verl": "0.9.1", "ray": "2.60.0", "transformers": "5.10.4", "TransferQueue": "0.1.11"}
"""Of `requirements-verl.txt`, which the marked tests run with."""
VLLM = {"vllm": "0.24.0"}
"""Of verl 0.9.1's own extra for vLLM."""


def require_extra(package: Literal["trl", "verifiers"]) -> None:
    """Raise `ConfigError`, with the command to install one, unless a supported version of ``package`` is installed."""
    remedy = f"this bridge needs {package}{SUPPORTED[package]}; {install_hint(package)}"
    installed = _version(package)
    if installed is None:
        raise ConfigError(f"{package} is not installed; {remedy}")
    if not SpecifierSet(SUPPORTED[package]).contains(installed, prereleases=True):
        raise ConfigError(f"{package} {installed} is installed; {remedy}")


def check_verl_versions(config: VerlConfig, installed: Mapping[str, str | None] | None = None) -> dict[str, str]:
    """Return the versions that a verl run with ``config`` would use; ``installed`` replaces those of this interpreter.

    `ConfigError`: a package is missing or has another version than the tested one.
    """
    tested = VERL | (VLLM if config.engine == "vllm" else {})
    versions = {name: _version(name) if installed is None else installed.get(name) for name in tested}
    # A build for another device has a local part: 0.24.0+cpu.
    wrong = [
        f"{name} {text or 'is not installed'}"
        for name, text in versions.items()
        if text is None or Version(text).public != Version(tested[name]).public
    ]
    if wrong:
        expected = ", ".join(f"{name} {tested[name]}" for name in tested)
        command = "make verl-env GPU=1" if config.engine == "vllm" else "make verl-env"
        raise ConfigError(
            f"got {', '.join(wrong)}; this bridge needs {expected}. Make their environment with `{command}` and "
            "run this command from it (.venv-verl/bin/repairgym)"
        )
    return {name: text for name, text in versions.items() if text is not None}


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None

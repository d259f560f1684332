"""Versions of other people's packages that a bridge is made for, checked before anything runs.

Reads what is installed; makes nothing. Invariant: what a bridge was not tried with is refused, with the command that
fixes it, never run in the hope that nothing has changed.
"""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from typing import Literal

from packaging.specifiers import SpecifierSet

from repairgym.errors import ConfigError, install_hint

SUPPORTED: dict[Literal["trl", "verifiers"], str] = {
    "trl": ">=1.16,<1.17",  # `rollout_func` is experimental and may change with any release
    "verifiers": ">=0.4,<0.5",  # the plugin API changes between minor versions
}
"""Package -> versions, as the extra of the same name has them."""


def require_extra(package: Literal["trl", "verifiers"]) -> None:
    """Check that ``package`` is installed in a version that its bridge is made for.

    Raises:
        ConfigError: it is not; the message ends with the command that installs one.
    """
    remedy = f"this bridge needs {package}{SUPPORTED[package]}: {install_hint(package)}"
    try:
        found = version(package)
    except PackageNotFoundError:
        raise ConfigError(f"{package} is not installed; {remedy}") from None
    if not SpecifierSet(SUPPORTED[package]).contains(found, prereleases=True):
        raise ConfigError(f"{package} {found} is installed; {remedy}")

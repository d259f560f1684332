"""Bridges refuse versions that they were not tried with, and say how to get one that they were."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from repairgym.bridges.versions import SUPPORTED, VERL, VLLM, check_verl_versions, require_extra
from repairgym.config.cluster import VerlConfig
from repairgym.errors import ConfigError

ROOT = Path(__file__).parents[2]
CPU = VerlConfig(device="cpu", engine="embedded", gpus_per_node=2, rollout_tensor_parallel=1, sequence_parallel=1)


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Metadata of a distribution, found before any that is installed."""

    def install(name: str, version: str) -> None:
        folder = tmp_path / f"{name}-{version}.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        monkeypatch.syspath_prepend(tmp_path)

    return install


@pytest.mark.parametrize(("name", "version"), [("trl", "1.10.0"), ("trl", "1.17.0"), ("verifiers", "0.3.2")])
def test_another_version_is_rejected_with_the_command(install, name, version) -> None:
    install(name, version)
    with pytest.raises(ConfigError, match=rf"{name} {version} is installed; .*pip install 'repairgym\[{name}\] @ git"):
        require_extra(name)


@pytest.mark.parametrize(("name", "version"), [("trl", "1.16.0"), ("trl", "1.16.2"), ("verifiers", "0.4.0")])
def test_a_tested_version_passes(install, name, version) -> None:
    install(name, version)
    require_extra(name)


@pytest.mark.parametrize("name", sorted(SUPPORTED))
def test_the_extra_installs_a_supported_version(name) -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert f"{name}{SUPPORTED[name]}" in extras[name]
    pins = (ROOT / "requirements-trl.txt").read_text()
    assert f"\n{name}==" in pins


def test_the_tested_versions_are_those_of_the_requirements():
    pins = (ROOT / "requirements-verl.txt").read_text().splitlines()
    assert {f"{name}=={version}" for name, version in VERL.items()} <= set(pins)
    assert check_verl_versions(CPU, VERL) == VERL


@pytest.mark.parametrize(
    ("machine", "installed", "got", "command"),
    [
        (CPU, {**VERL, "verl": "0.10.0"}, "verl 0.10.0", "`make verl-env`"),
        (CPU, {**VERL, "transformers": "5.19.0"}, "transformers 5.19.0", "`make verl-env`"),
        (CPU, {}, "verl is not installed", "`make verl-env`"),
        (VerlConfig(), {**VERL, **VLLM, "vllm": "0.32.0"}, "vllm 0.32.0", "`make verl-env GPU=1`"),
        (VerlConfig(), {**VERL, **VLLM, "vllm": None}, "vllm is not installed", "`make verl-env GPU=1`"),
    ],
)
def test_other_versions_are_rejected_with_the_command_that_fixes_it(machine, installed, got, command):
    with pytest.raises(ConfigError) as caught:
        check_verl_versions(machine, {**dict.fromkeys([*VERL, *VLLM]), **installed})
    assert got in str(caught.value)
    assert command in str(caught.value)


def test_a_build_for_another_device_is_the_same_version():
    assert check_verl_versions(VerlConfig(), {**VERL, **VLLM, "vllm": f"{VLLM['vllm']}+cu130"})

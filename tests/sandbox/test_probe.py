"""Back ends are found by doing, degraded is never taken by accident, and failed starts bring advice."""

import asyncio
from pathlib import Path

import pytest
from pydantic import ValidationError

from repairgym.config.sandbox import ContainerConfig, SandboxConfig
from repairgym.errors import ConfigError, SandboxError
from repairgym.sandbox.probe import (
    BACKENDS,
    BRANCHING_BACKENDS,
    ISOLATING_BACKENDS,
    Machine,
    choose_backend,
    create_backend,
    find_remedy,
    probe_backend,
    require_isolation,
)

DEGRADED = SandboxConfig(backend="degraded", is_degraded_allowed=True)


def test_the_registry_is_what_a_config_can_name():
    names = SandboxConfig.model_json_schema()["properties"]["backend"]["enum"]
    assert names == [*BACKENDS, "auto"]
    assert {*BACKENDS} - {"degraded"} == ISOLATING_BACKENDS
    assert all(maker(SandboxConfig()).name == name for name, maker in BACKENDS.items())


@pytest.mark.parametrize("name", ["namespace", "degraded"])
def test_available_back_ends(name):
    probe = probe_backend(name)
    assert probe.is_available, probe
    assert probe.is_isolating == (name == "namespace")
    assert probe.duration_s > 0
    assert ("does not isolate" in probe.reason) == (name == "degraded")


def test_a_missing_program_is_reported():
    probe = probe_backend("bubblewrap", SandboxConfig(bubblewrap="no-such-bwrap"))
    assert not probe.is_available
    assert "no-such-bwrap is not installed" in probe.reason
    assert "apt install bubblewrap" in probe.remedy


def test_engines_that_are_missing_or_do_not_answer(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    probe = probe_backend("container")
    assert "podman is not installed; docker is not installed" in probe.reason
    assert "apt install podman" in probe.remedy
    docker = tmp_path / "docker"
    docker.write_text("#!/bin/sh\necho Cannot connect to the Docker daemon at unix:///x >&2; exit 1\n")
    docker.chmod(0o755)
    probe = probe_backend("container", SandboxConfig(container=ContainerConfig(engine="docker")))
    assert "Cannot connect to the Docker daemon" in probe.reason
    assert "systemctl start docker" in probe.remedy


def test_bounds_of_snapshots_are_rejected_by_back_ends_without_snapshots():
    config = DEGRADED.model_copy(update={"max_snapshot_bytes": 1 << 20})
    assert create_backend(config).name == "degraded"
    for name in BACKENDS.keys() - BRANCHING_BACKENDS:
        with pytest.raises(ConfigError, match="has no snapshots"):
            create_backend(config.model_copy(update={"backend": name}))
        assert create_backend(SandboxConfig(backend=name)).name == name


@pytest.mark.asyncio
async def test_bounds_of_snapshots_reach_the_back_end(bare_spec):
    for name in BRANCHING_BACKENDS:
        config = DEGRADED.model_copy(update={"backend": name, "max_snapshot_bytes": 1 << 20})
        backend = create_backend(config)
        sandbox = await backend.create(bare_spec)
        await sandbox.write_file("large", b"x" * (2 << 20))
        await sandbox.snapshot()
        with pytest.raises(SandboxError, match="at most 1048576 are allowed"):
            await sandbox.snapshot()
        await backend.close()


def test_degraded_has_to_be_allowed():
    with pytest.raises(ConfigError, match="is_degraded_allowed"):
        create_backend(SandboxConfig(backend="degraded"))
    assert create_backend(DEGRADED).name == "degraded"


def test_evaluation_rejects_degraded_unless_allowed():
    with pytest.raises(ConfigError, match="is_degraded_evaluation_allowed"):
        create_backend(DEGRADED, "evaluation")
    with pytest.raises(ConfigError, match="is_degraded_evaluation_allowed"):
        require_isolation(DEGRADED)
    told = DEGRADED.model_copy(update={"is_degraded_evaluation_allowed": True})
    require_isolation(told)
    assert choose_backend(told, "evaluation") == "degraded"
    require_isolation(SandboxConfig())


@pytest.mark.asyncio
async def test_auto_prefers_isolation():
    # Inside an event loop, where a probe cannot start one of its own.
    backend = create_backend(SandboxConfig(is_degraded_allowed=True), "evaluation")
    await asyncio.gather(backend.close(), backend.close())
    assert backend.name == "namespace"


def test_auto_says_why_it_does_not_isolate(tmp_path, caplog):
    """An empty PATH and a folder that is none: no isolating back end works."""
    config = SandboxConfig(is_degraded_allowed=True, shown_paths=(str(tmp_path / "missing"),))
    assert choose_backend(config) == "degraded"
    assert "no isolating back end works here" in caplog.text


@pytest.mark.parametrize(
    "values", [{"backend": "docker"}, {"limits": {"memory_bytes": 0}}, {"unknown": 1}, {"container": {"engine": "lxc"}}]
)
def test_wrong_configurations_are_rejected(values):
    with pytest.raises(ValidationError):
        SandboxConfig.model_validate(values)


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"proc/sys/kernel/apparmor_restrict_unprivileged_userns": "1\n"}, "apparmor_restrict_unprivileged_userns=0"),
        ({"proc/sys/kernel/unprivileged_userns_clone": "0\n"}, "kernel.unprivileged_userns_clone=1"),
        ({"proc/sys/user/max_user_namespaces": "0\n"}, "user.max_user_namespaces=10000"),
        ({".dockerenv": ""}, "seccomp=unconfined"),
        ({"run/.containerenv": ""}, "unmask=ALL"),
        ({"proc/self/status": "Name:\tx\nSeccomp:\t2\n"}, "seccomp=unconfined"),
        ({}, "Linux 5.12"),
        ({"proc/sys/kernel/apparmor_restrict_unprivileged_userns": "0\n"}, "Linux 5.12"),
    ],
)
@pytest.mark.parametrize("backend", ["namespace", "bubblewrap"])
def test_denied_namespaces(tmp_path: Path, backend, files, expected):
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    remedy = find_remedy(backend, "unshare 0x10020000: Operation not permitted", Machine.inspect(tmp_path))
    assert expected in remedy


@pytest.mark.parametrize(
    ("backend", "reason", "expected"),
    [
        ("bubblewrap", "the program bwrap is not installed", "apt install bubblewrap"),
        ("bubblewrap", "got bubblewrap 0.3.1, expected 0.5 or newer", "0.5 or newer"),
        ("container", "podman is not installed; docker is not installed", "apt install podman"),
        ("container", "docker ps failed: Cannot connect to the Docker daemon at unix:///x", "systemctl start docker"),
        ("container", "permission denied while trying to connect to the Docker daemon socket", "usermod -aG docker"),
        ("container", "crun: cgroups in hybrid mode not supported", "sandbox.container.runtime=runc"),
        ("container", "setrlimit RLIMIT_NPROC: Operation not permitted", "CAP_SYS_RESOURCE"),
        ("container", "podman ps did not end in 60 s", "start_timeout_s"),
        ("container", "no subuid ranges found for user", "--add-subuids"),
        ("container", "something new", "podman run --network none"),
    ],
)
def test_known_reasons_have_specific_advice(backend, reason, expected):
    assert expected in find_remedy(backend, reason, Machine())


def test_every_back_end_has_advice():
    assert all(find_remedy(name, "anything", Machine()) for name in BACKENDS)

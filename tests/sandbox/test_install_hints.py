"""A failed start comes with the command that would fix it."""

from pathlib import Path

import pytest

from repairgym.sandbox.install_hints import Machine, find_remedy
from repairgym.sandbox.probe import BACKENDS

PLAIN = Machine()


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
    assert expected in find_remedy(backend, reason, PLAIN)


def test_every_back_end_has_advice():
    assert all(find_remedy(name, "anything", PLAIN) for name in BACKENDS)

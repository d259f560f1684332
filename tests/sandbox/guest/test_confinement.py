import errno
import os
import re
import struct

import pytest

from repairgym.sandbox.guest import confinement

ALLOW, REFUSE = 0x7FFF0000, 0x00050000 | errno.EPERM


def evaluate(program, arch, number, *arguments):
    """Interpret the classic BPF program of a seccomp filter on one system call."""
    data = struct.pack("=IIQ6Q", number, arch, 0, *arguments, *[0] * (6 - len(arguments)))
    instructions = list(struct.iter_unpack("=HBBI", program))
    position, accumulator = 0, 0
    while True:
        code, if_true, if_false, value = instructions[position]
        position += 1
        if code == 0x06:
            return value
        if code == 0x20:
            accumulator = struct.unpack_from("=I", data, value)[0]
        else:
            test = {0x15: accumulator == value, 0x35: accumulator >= value, 0x45: bool(accumulator & value)}[code]
            position += if_true if test else if_false


MACHINES = {
    "x86_64": (0xC000003E, {"write": 1, "mount": 165, "clone": 56, "socket": 41, "socketpair": 53, "ioctl": 16}),
    "aarch64": (0xC00000B7, {"write": 64, "mount": 40, "clone": 220, "socket": 198, "socketpair": 199, "ioctl": 29}),
}


@pytest.mark.parametrize("machine", MACHINES)
def test_seccomp_filter(machine):
    program = confinement.build_filter(machine)
    arch, calls = MACHINES[machine]

    def answer(name, *arguments):
        return evaluate(program, arch, calls[name], *arguments)

    assert answer("write") == ALLOW
    assert answer("mount") == REFUSE
    assert answer("clone", 17) == ALLOW
    for namespace in (0x00020000, 0x02000000, 0x04000000, 0x08000000, 0x10000000, 0x20000000, 0x40000000):
        assert answer("clone", namespace | 17) == REFUSE
    allowed = {family for family in range(64) if answer("socket", family, 1) == ALLOW}
    assert allowed == {1, 2, 10, 16}
    assert {family for family in range(64) if answer("socketpair", family, 1) == ALLOW} == allowed
    assert [answer("ioctl", 0, request) for request in (0x5412, 0x541C, 0x5413)] == [REFUSE, REFUSE, ALLOW]
    assert answer("ioctl", 0, 0xFFFFFFFF00005412) == REFUSE
    assert evaluate(program, arch, 435) == 0x00050000 | errno.ENOSYS
    assert evaluate(program, 0x40000003, calls["write"]) == REFUSE
    assert evaluate(program, arch, calls["write"] | 0x40000000) == REFUSE


@pytest.mark.parametrize("machine", MACHINES)
def test_exactly_the_named_calls_are_denied(machine):
    program, (arch, calls) = confinement.build_filter(machine), MACHINES[machine]
    judged = {calls["clone"], calls["socket"], calls["socketpair"], 435}
    denied = {number for number in range(512) if evaluate(program, arch, number) != ALLOW} - judged
    assert denied == set(confinement.denied_calls(machine).values())
    assert len(program) // 8 <= 4096


@pytest.mark.parametrize(
    ("machine", "header"),
    [
        ("x86_64", "/usr/include/x86_64-linux-gnu/asm/unistd_64.h"),
        ("aarch64", "/usr/include/asm-generic/unistd.h"),
    ],
)
def test_numbers_are_the_kernels(machine, header):
    if not os.path.exists(header):
        pytest.skip(f"needs the kernel's headers ({header})")
    with open(header) as file:
        known = dict(re.findall(r"^#define __NR(?:3264)?_(\w+)\s+(\d+)$", file.read(), re.MULTILINE))
    for name, number in confinement.denied_calls(machine).items():
        assert name not in known or known[name] == str(number), name
    assert len(confinement.denied_calls(machine).keys() & known.keys()) > 30


@pytest.mark.parametrize(
    ("machine", "arch", "socket", "socketpair", "shmget"),
    [("x86_64", 0xC000003E, 41, 53, 29), ("aarch64", 0xC00000B7, 198, 199, 194)],
)
def test_seccomp_filter_in_the_namespaces_of_the_host(machine, arch, socket, socketpair, shmget):
    program = confinement.build_filter(machine, is_in_host_namespaces=True)
    allow, refuse = 0x7FFF0000, 0x00050000 | errno.EPERM
    for family in (1, 2, 10, 16, 40):
        assert evaluate(program, arch, socket, family) == refuse
    assert evaluate(program, arch, shmget) == refuse
    assert evaluate(program, arch, socketpair, 1) == allow
    assert evaluate(confinement.build_filter(machine), arch, shmget) == allow


def test_unknown_machines_have_no_filter():
    assert confinement.build_filter("riscv64") == b""

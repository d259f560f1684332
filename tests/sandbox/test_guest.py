"""Guest code that can be checked without a sandbox."""

import errno
import os
import re
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from repairgym.errors import InputError, SandboxError
from repairgym.sandbox.backends.interpreter import find_interpreter_folders
from repairgym.sandbox.guest import files, reaping, seccomp, sessions, streams, wire


@given(st.lists(st.binary(max_size=40)), st.integers(0, 60))
def test_bounded_buffer_keeps_head_and_tail(parts, limit):
    buffer, whole = streams.BoundedBuffer(limit), b"".join(parts)
    for part in parts:
        buffer.append(part)
    assert buffer.num_bytes == len(whole)
    assert buffer.is_truncated == (len(whole) > limit)
    if not buffer.is_truncated:
        assert buffer.value() == whole
    else:
        head, tail = whole[: limit // 2], whole[len(whole) - (limit - limit // 2) :]
        assert buffer.value().startswith(head)
        assert buffer.value().endswith(tail)
        assert len(buffer.value()) <= limit + 50


@given(st.dictionaries(st.text(), st.text() | st.integers()), st.lists(st.binary()))
def test_frames_come_back(header, blobs):
    header.pop("blobs", None)
    frame = wire.pack(header, blobs)
    num_header_bytes, num_body_bytes = wire.PREFIX.unpack(frame[: wire.PREFIX.size])
    text, body = frame[wire.PREFIX.size :][:num_header_bytes], frame[wire.PREFIX.size + num_header_bytes :]
    assert len(body) == num_body_bytes
    assert wire.unpack(text, body) == (header, blobs)


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
    program = seccomp.build_filter(machine)
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
def test_exactly_the_named_calls_are_refused(machine):
    program, (arch, calls) = seccomp.build_filter(machine), MACHINES[machine]
    judged = {calls["clone"], calls["socket"], calls["socketpair"], 435}
    refused = {number for number in range(512) if evaluate(program, arch, number) != ALLOW} - judged
    assert refused == set(seccomp.refused_calls(machine).values())
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
    for name, number in seccomp.refused_calls(machine).items():
        assert name not in known or known[name] == str(number), name
    assert len(seccomp.refused_calls(machine).keys() & known.keys()) > 30


@pytest.mark.parametrize(
    ("machine", "arch", "socket", "socketpair", "shmget"),
    [("x86_64", 0xC000003E, 41, 53, 29), ("aarch64", 0xC00000B7, 198, 199, 194)],
)
def test_seccomp_filter_in_the_namespaces_of_the_host(machine, arch, socket, socketpair, shmget):
    program = seccomp.build_filter(machine, is_in_host_namespaces=True)
    allow, refuse = 0x7FFF0000, 0x00050000 | errno.EPERM
    for family in (1, 2, 10, 16, 40):
        assert evaluate(program, arch, socket, family) == refuse
    assert evaluate(program, arch, shmget) == refuse
    assert evaluate(program, arch, socketpair, 1) == allow
    assert evaluate(seccomp.build_filter(machine), arch, shmget) == allow


def test_unknown_machines_have_no_filter():
    assert seccomp.build_filter("riscv64") == b""


def test_signals_never_reach_the_host():
    with pytest.raises(RuntimeError, match="processes of the host"):
        reaping.NamespaceReaper().signal_all(0)


def test_changes_are_bounded(tmp_path):
    for name in ("before", "now"):
        (tmp_path / name).mkdir()
    (tmp_path / "now" / "large").write_bytes(b"x" * 100)
    assert files.changed(str(tmp_path / "before"), str(tmp_path / "now"), (), 100) == {"large": b"x" * 100}
    with pytest.raises(files.TooLargeError):
        files.changed(str(tmp_path / "before"), str(tmp_path / "now"), (), 99)


def test_interpreter_folders(tmp_path):
    environment = tmp_path / "environment"
    (environment / "bin").mkdir(parents=True)
    with pytest.raises(InputError, match="bin/python"):
        find_interpreter_folders(environment)
    python = environment / "bin" / "python"
    python.symlink_to("/bin/sh")
    assert find_interpreter_folders(environment) == ()
    python.unlink()
    real = tmp_path / "opt" / "python" / "bin"
    real.mkdir(parents=True)
    (real / "python3").touch()
    python.symlink_to(os.path.relpath(real / "python3", python.parent))
    if str(tmp_path).startswith("/tmp/"):
        with pytest.raises(SandboxError, match="installed elsewhere"):
            find_interpreter_folders(environment)
    else:
        assert find_interpreter_folders(environment) == (str(tmp_path / "opt" / "python"),)


@given(
    st.binary(max_size=60).filter(lambda text: b"\0" not in text),
    st.binary(max_size=40).filter(lambda noise: b"repairgym" not in noise),
)
def test_the_last_whole_state_counts(text, noise):
    whole = b"\0repairgym-state\0/cwd\0" + text + b"\0repairgym-end\0"
    cut = b"\0repairgym-state\0/cut\0" + text
    assert sessions.parse_state(noise + whole + noise, False) == ("/cwd", text)
    assert sessions.parse_state(whole + cut, False) == ("/cwd", text)
    assert sessions.parse_state(cut, False) is None
    assert sessions.parse_state(whole, True) is None


def test_commands_are_quoted_for_the_new_bash():
    text = sessions.restoring_text(b"state\n", b"echo 'it'", 7)
    assert text.index(rb"REPAIRGYM_COMMAND='echo '\''it'\'''") < text.index(b"state") < text.index(b"return 7")
    with pytest.raises(ValueError, match="NUL"):
        sessions.split_request([b"", b"a\0b", b""])

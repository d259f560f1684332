"""Guest code that can be checked without a sandbox."""

import errno
import os
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mendwright.errors import InputError, SandboxError
from mendwright.sandbox.guest import files, reaping, seccomp, streams, wire
from mendwright.sandbox.interpreter import find_interpreter_folders


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


def evaluate(program, arch, number, argument=0):
    """Interpret the classic BPF program of a seccomp filter on one system call."""
    data = struct.pack("=IIQQ", number, arch, 0, argument)
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


@pytest.mark.parametrize(
    ("machine", "arch", "mount", "clone", "socket", "write"),
    [("x86_64", 0xC000003E, 165, 56, 41, 1), ("aarch64", 0xC00000B7, 40, 220, 198, 64)],
)
def test_seccomp_filter(machine, arch, mount, clone, socket, write):
    program = seccomp.build_filter(machine)
    allow, refuse = 0x7FFF0000, 0x00050000 | errno.EPERM
    assert evaluate(program, arch, write) == allow
    assert evaluate(program, arch, mount) == refuse
    assert evaluate(program, arch, clone, 17) == allow
    assert evaluate(program, arch, clone, 0x10000000 | 17) == refuse
    assert evaluate(program, arch, socket, 2) == allow
    assert evaluate(program, arch, socket, 40) == refuse
    assert evaluate(program, arch, 435) == 0x00050000 | errno.ENOSYS
    assert evaluate(program, 0x40000003, write) == refuse
    assert evaluate(program, arch, write | 0x40000000) == refuse


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
    assert files.changed(str(tmp_path / "before"), str(tmp_path / "now"), None, 100) == {"large": b"x" * 100}
    with pytest.raises(files.TooLargeError):
        files.changed(str(tmp_path / "before"), str(tmp_path / "now"), None, 99)


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

"""Frames survive the way through a socket; of the records, only what the recorder wrote counts."""

import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from repairgym.sandbox.guest import wire


@settings(max_examples=30, deadline=None)
@given(st.dictionaries(st.text(), st.text() | st.integers()), st.lists(st.binary()))
def test_frames_round_trip(header, blobs):
    header.pop("blobs", None)
    frame = wire.pack(header, blobs)
    num_header_bytes, num_body_bytes = wire.PREFIX.unpack(frame[: wire.PREFIX.size])
    text, body = frame[wire.PREFIX.size :][:num_header_bytes], frame[wire.PREFIX.size + num_header_bytes :]
    assert len(body) == num_body_bytes
    assert wire.unpack(text, body) == (header, blobs)


KEY = "ab" * 32


def written(records, key=KEY):
    read, write = os.pipe()
    sign = wire.record_writer(key, write)
    for record in records:
        sign(record)
    os.close(write)
    with open(read, "rb") as file:
        return file.read()


RECORDS = [{"id": "a", "outcome": "passed"}, {"id": "b", "outcome": "failed"}, {"finished": 1}]


def verified(data, key=KEY, size=7):
    reader = wire.RecordReader(key)
    got = [record for start in range(0, len(data), size) for record in reader.feed(data[start : start + size])]
    return [record for record in got if record is not None], got.count(None)


def test_written_records_are_read():
    assert verified(written(RECORDS)) == (RECORDS, 0)


def test_the_phases_of_a_test_are_written_with_its_teardown():
    read, write = os.pipe()
    os.set_blocking(read, False)
    sign = wire.record_writer(KEY, write)
    phases = [{"id": "a", "phase": phase} for phase in ("setup", "call", "teardown")]
    for record in phases[:2]:
        sign(record)
    with pytest.raises(BlockingIOError):
        os.read(read, 1)
    sign(phases[2])
    assert verified(os.read(read, 4096)) == (phases, 0)


def test_lines_without_the_key_are_forged():
    data = written(RECORDS)
    assert verified(data + b'{"id": "b", "outcome": "passed"}\n') == (RECORDS, 1)
    assert verified(written(RECORDS, "cd" * 32)) == ([], 3)


def test_lines_are_neither_repeated_nor_reordered_nor_changed():
    lines = written(RECORDS).splitlines(keepends=True)
    assert verified(lines[0] + lines[0]) == (RECORDS[:1], 1)
    assert verified(lines[1] + lines[0]) == (RECORDS[:1], 1)
    assert verified(lines[0] + lines[1].replace(b"failed", b"passed"))[1] == 1


def test_an_unfinished_last_line_is_not_forged():
    data = written(RECORDS)
    assert verified(data[:-5]) == (RECORDS[:2], 0)
    assert verified(b"") == ([], 0)


def test_lines_of_the_supervisor_that_do_not_parse_are_counted():
    assert wire.parse_records(b'{"id": "a"}\nnonsense\n[1]\n{"id": ') == ([{"id": "a"}], 2)

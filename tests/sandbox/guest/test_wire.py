"""Frames survive the way through a socket; of the records, only what the recorder wrote counts."""

import os

from hypothesis import given
from hypothesis import strategies as st

from repairgym.sandbox.guest import wire


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


def test_written_records_are_read():
    assert wire.verify_records(KEY, written(RECORDS)) == (RECORDS, 0)


def test_lines_without_the_key_are_forged():
    data = written(RECORDS)
    assert wire.verify_records(KEY, data + b'{"id": "b", "outcome": "passed"}\n') == (RECORDS, 1)
    assert wire.verify_records(KEY, written(RECORDS, "cd" * 32)) == ([], 3)


def test_lines_are_neither_repeated_nor_reordered_nor_changed():
    lines = written(RECORDS).splitlines(keepends=True)
    assert wire.verify_records(KEY, lines[0] + lines[0]) == (RECORDS[:1], 1)
    assert wire.verify_records(KEY, lines[1] + lines[0]) == (RECORDS[:1], 1)
    assert wire.verify_records(KEY, lines[0] + lines[1].replace(b"failed", b"passed"))[1] == 1


def test_an_unfinished_last_line_is_not_forged():
    data = written(RECORDS)
    assert wire.verify_records(KEY, data[:-5]) == (RECORDS[:2], 0)
    assert wire.verify_records(KEY, b"") == ([], 0)

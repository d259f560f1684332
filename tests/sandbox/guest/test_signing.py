"""Signed records: only what the recorder wrote counts."""

import os

from repairgym.sandbox.guest import signing

KEY = "ab" * 32


def written(records, key=KEY):
    read, write = os.pipe()
    sign = signing.writer(key, write)
    for record in records:
        sign(record)
    os.close(write)
    with open(read, "rb") as file:
        return file.read()


RECORDS = [{"id": "a", "outcome": "passed"}, {"id": "b", "outcome": "failed"}, {"finished": 1}]


def test_written_records_are_read():
    assert signing.verify(KEY, written(RECORDS)) == (RECORDS, 0)


def test_lines_without_the_key_are_forged():
    data = written(RECORDS)
    assert signing.verify(KEY, data + b'{"id": "b", "outcome": "passed"}\n') == (RECORDS, 1)
    assert signing.verify(KEY, written(RECORDS, "cd" * 32)) == ([], 3)


def test_lines_are_neither_repeated_nor_reordered_nor_changed():
    lines = written(RECORDS).splitlines(keepends=True)
    assert signing.verify(KEY, lines[0] + lines[0]) == (RECORDS[:1], 1)
    assert signing.verify(KEY, lines[1] + lines[0]) == (RECORDS[:1], 1)
    assert signing.verify(KEY, lines[0] + lines[1].replace(b"failed", b"passed"))[1] == 1


def test_an_unfinished_last_line_is_not_forged():
    data = written(RECORDS)
    assert signing.verify(KEY, data[:-5]) == (RECORDS[:2], 0)
    assert signing.verify(KEY, b"") == ([], 0)

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

from hypothesis import given
from hypothesis import strategies as st

from repairgym.sandbox.guest import process


@given(st.lists(st.binary(max_size=40)), st.integers(0, 60))
def test_bounded_buffer_keeps_head_and_tail(parts, limit):
    buffer, whole = process.BoundedBuffer(limit), b"".join(parts)
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

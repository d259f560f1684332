"""The text of an answer as it grows."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from repairgym.serving.text_stream import TextStream

TEXTS = st.lists(st.sampled_from(["a", "b", "<", "<t", "t>", "é", "日", "\n"]), max_size=12).map("".join)


def decode(token_ids: list[int]) -> str:
    """One token per byte."""
    return bytes(token_ids).decode("utf-8", "replace")


@given(text=TEXTS, stops=st.lists(st.sampled_from(["ab", "b<t", "é\n", "日"]), max_size=3, unique=True))
def test_pieces_are_the_answer_up_to_the_first_stop_text(text: str, stops: list[str]) -> None:
    stream = TextStream(decode, stops)
    pieces = []
    for byte in text.encode():
        stream.feed(byte)
        pieces.append(stream.release())
    pieces.append(stream.finish())
    # A stop text that is complete first ends the answer, even if another one began before it.
    ends = [text.index(stop) + len(stop) for stop in stops if stop in text]
    first = min(ends, default=None)
    expected = text if first is None else min((text[:first].partition(stop)[0] for stop in stops), key=len)
    assert "".join(pieces) == stream.text == expected
    assert (stream.stop_text in stops) == (first is not None)


def test_nothing_that_may_begin_a_stop_text_is_released() -> None:
    stream = TextStream(decode, ["stop"])
    released = []
    for byte in b"a st stop b":
        stream.feed(byte)
        released.append(stream.release())
    assert released == ["a", " ", "", "", "st ", "", "", "", "", "", ""]
    assert stream.stop_text == "stop"


def test_a_held_text_waits_for_the_end() -> None:
    for held, expected in (("<call>", ["a"]), ("", [])):
        stream = TextStream(decode, (), held)
        pieces = []
        for byte in b"a<call>b":
            stream.feed(byte)
            pieces += [piece] if (piece := stream.release()) else []
        assert pieces == expected
        assert "".join([*pieces, stream.finish()]) == "a<call>b"


def test_bytes_that_are_no_text_come_out_at_the_end() -> None:
    stream = TextStream(decode)
    for byte in b"a\xff\xe6":
        stream.feed(byte)
    assert stream.release() == "a"
    assert stream.finish() == decode(list(b"\xff\xe6"))

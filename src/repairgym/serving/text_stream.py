"""The text of an answer while its tokens arrive.

Guarantees: the released texts together are the decoded answer up to its stop text; a character is released when all of
its bytes are there, and nothing is that may turn out to be the start of a stop text or of a tool call.
"""

from collections.abc import Callable, Sequence


class TextStream:
    """Decodes one answer token by token."""

    def __init__(
        self, decode: Callable[[Sequence[int]], str], stop: Sequence[str] = (), held: str | None = None
    ) -> None:
        """``held``: text from which on nothing is released before `finish`; empty: nothing is at all."""
        self._decode = decode
        self._stop = stop
        self._held = held
        self._open_ids: list[int] = []
        self._longest = max(map(len, stop), default=0)
        self._num_released = 0
        self.text = ""
        """Decoded so far, up to the stop text."""
        self.stop_text: str | None = None
        """The stop text that ended the answer."""

    def feed(self, token_id: int) -> None:
        """Add a token; those behind a stop text are ignored."""
        if self.stop_text is not None:
            return
        self._open_ids.append(token_id)
        text = self._decode(self._open_ids)
        if not text.endswith("\ufffd"):  # a character may still be open
            self._open_ids = []
            self._extend(text)

    def release(self) -> str:
        """Return the text that is certain by now and was not returned before."""
        end = len(self.text) - self._num_open(self.text)
        if self._held is not None:
            start = self.text.find(self._held, self._num_released)
            end = min(end, start) if start >= 0 else end
        return self._release_to(end)

    def finish(self) -> str:
        """Return the rest of the text; no more tokens come."""
        if self._open_ids and self.stop_text is None:
            self._extend(self._decode(self._open_ids))
            self._open_ids = []
        return self._release_to(len(self.text))

    def _extend(self, text: str) -> None:
        begin = max(0, len(self.text) - self._longest + 1)
        self.text += text
        places = [(self.text.find(stop, begin), stop) for stop in self._stop]
        if reached := [(at, stop) for at, stop in places if at >= 0]:
            at, self.stop_text = min(reached)
            self.text = self.text[:at]

    def _num_open(self, text: str) -> int:
        """Length of the longest end of ``text`` that begins one of the awaited texts."""
        if self.stop_text is not None:
            return 0
        awaited = [*self._stop, *([self._held] if self._held else [])]
        longest = max(map(len, awaited), default=1) - 1
        tails = (text[-length:] for length in range(min(longest, len(text)), 0, -1))
        return next((len(tail) for tail in tails if any(other.startswith(tail) for other in awaited)), 0)

    def _release_to(self, end: int) -> str:
        released = self.text[self._num_released : end]
        self._num_released = max(self._num_released, end)
        return released

"""The text of an answer while its tokens arrive.

Guarantees: the released texts together are the decoded answer up to its stop text; a character is released when all of
its bytes are there, and nothing is that may turn out to be the start of a stop text or of a tool call. What a leading
thought says of calls is text.
"""

from collections.abc import Callable, Sequence

from repairgym.inference.chat_template import THOUGHT_END, THOUGHT_START


class TextStream:
    """Decodes one answer token by token."""

    def __init__(
        self,
        decode: Callable[[Sequence[int]], str],
        stop: Sequence[str] = (),
        held: str | None = None,
        *,
        is_thought: bool = False,
    ) -> None:
        """Hold text from ``held`` on until `finish`, empty: all text; never that of a thought.

        ``is_thought``: the answer begins within a thought, because its prompt has the mark already.
        """
        self._decode = decode
        self._stop = stop
        self._held = held
        self._is_thought = is_thought
        self._thought_end = 0
        self._open_ids: list[int] = []
        self._longest = max(map(len, stop), default=0)
        self._num_released = 0
        self.num_tokens = 0
        """Tokens of `text`, those with a part of the stop text included."""
        self.text = ""
        """Decoded so far, up to the stop text."""
        self.stop_text: str | None = None
        """The stop text that ended the answer."""

    def feed(self, token_id: int) -> None:
        """Add a token; those behind a stop text are ignored."""
        if self.stop_text is not None:
            return
        self.num_tokens += 1
        self._open_ids.append(token_id)
        text = self._decode(self._open_ids)
        if not text.endswith("\ufffd"):  # a character may still be open
            self._open_ids = []
            self._extend(text)

    def release(self) -> str:
        """Return the text that is certain by now and was not returned before."""
        end = len(self.text) - self._num_open(self.text)
        if self._held is not None and (behind := self._behind_thought()) is not None:
            start = self.text.find(self._held, max(behind, self._num_released))
            end = min(end, start) if start >= 0 else end
        return self._release_to(end)

    def _behind_thought(self) -> int | None:
        """Return where the answer's leading thoughts end; None within one."""
        while self._is_thought or self.text[self._thought_end :].lstrip().startswith(THOUGHT_START):
            self._is_thought = True
            end = self.text.find(THOUGHT_END, self._thought_end)
            if end < 0:
                return None
            self._is_thought, self._thought_end = False, end + len(THOUGHT_END)
        return self._thought_end

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

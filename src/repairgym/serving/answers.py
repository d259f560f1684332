"""Answers as messages: which of their text is said, and which is a call of a tool.

Reads the sampled tokens of an answer and its text; makes a message of Chat Completions. Guarantees: a call that stands
in a thought, which the model may have rejected, is text; the content is what stands before the first call, the thought
included, as a stream sends it.
"""

import re
import uuid
from collections.abc import Sequence
from typing import Any, NamedTuple

from repairgym.agent.formats import message_of_text
from repairgym.inference.renderer import ChatRenderer
from repairgym.inference.tool_calls import CallForm


class SplitAnswer(NamedTuple):
    """An answer, split into content and calls."""

    message: dict[str, Any]
    num_chars: int
    """Characters before the first call; without calls all."""
    is_open: bool
    """There is no call, or text behind the last one."""

    @property
    def has_calls(self) -> bool:
        """True where the message calls a tool."""
        return "tool_calls" in self.message


def split_answer(renderer: ChatRenderer, form: CallForm | None, token_ids: Sequence[int], text: str) -> SplitAnswer:
    """Split an answer.

    Args:
        renderer: Tells a thought from what counts.
        form: Of calls; None: the answer has none.
        token_ids: Of the answer, without its stop token; the last one may also hold a part of a stop text.
        text: Of the answer, up to its stop text.
    """
    plain = SplitAnswer({"role": "assistant", "content": text}, len(text), is_open=True)
    if form is None:
        return plain
    answer = renderer.read(token_ids)
    said = answer.text.removesuffix(renderer.text(token_ids)[len(text) :])
    num_calls = len(form.find(said)[0])
    opening = re.search(form.opening, said)
    if not num_calls or opening is None:
        return plain
    called = said[opening.start() :]
    start = len(text) - len(called)
    if not text.endswith(called):
        # The reader has joined several messages; they stand behind the tokens of the thought.
        num_thought_chars = len(renderer.text(token_ids[: answer.num_thought_tokens]))
        again = re.compile(form.opening).search(text, num_thought_chars)
        start = again.start() if again else len(text)
    message = message_of_text(said, [f"call_{uuid.uuid4().hex}" for _ in range(num_calls)], form)
    # Nothing stands behind a call that its last character completes.
    is_open = len(form.find(said.rstrip()[:-1])[0]) == num_calls
    return SplitAnswer(message | {"content": text[:start].strip() or None}, start, is_open)

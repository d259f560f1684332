"""How families of chat models write a conversation: which special tokens stand where.

Made of constants, read by the renderer. Invariant: `text_of` is what the templates that these models were published
with write for messages without tools and without white space at their ends.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import NamedTuple


class Message(NamedTuple):
    """One message of a conversation, as text."""

    role: str
    """``system``, ``user`` (the environment) or ``assistant`` (the policy)."""
    text: str


@dataclass(frozen=True)
class ChatFamily:
    """The frame around the messages of a conversation."""

    name: str
    role_start: str
    """Special token before the role."""
    message_end: str
    """Special token behind the text: what a model samples to end its message."""
    opening: str = ""
    """Special token before the first message."""
    role_end: str = ""
    """Special token behind the role, where there is one."""
    gap: str = "\n"
    """Plain text between role and text."""
    separator: str = "\n"
    """Plain text between messages."""
    answer_prefix: str = ""
    """Written behind the header of each answer, e.g. an empty thought."""

    def text_of(self, messages: Iterable[Message], *, is_open: bool = True) -> str:
        """The conversation as text; ``is_open``: with the header of the answer to come."""
        whole = "".join(f"{self._header(role)}{text}{self.message_end}{self.separator}" for role, text in messages)
        return self.opening + whole + (self._header("assistant") + self.answer_prefix if is_open else "")

    def _header(self, role: str) -> str:
        return f"{self.role_start}{role}{self.role_end}{self.gap}"


CHATML = ChatFamily("chatml", role_start="<|im_start|>", message_end="<|im_end|>")
"""Qwen2, Qwen3 that may think, Hermes, SmolLM and the shipped model."""
QWEN3_DIRECT = replace(CHATML, name="qwen3-direct", answer_prefix="<think>\n\n</think>\n\n")
"""Qwen3 told not to think (``enable_thinking=False``)."""
LLAMA3 = ChatFamily(
    "llama3",
    role_start="<|start_header_id|>",
    role_end="<|end_header_id|>",
    message_end="<|eot_id|>",
    opening="<|begin_of_text|>",
    gap="\n\n",
    separator="",
)
FAMILIES = {family.name: family for family in (CHATML, QWEN3_DIRECT, LLAMA3)}

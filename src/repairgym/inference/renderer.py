r"""Chat rendering by deltas: only the text of the environment is encoded, never the output of the model.

Token ids have the form of the model's `ChatFamily`, e.g. ``<|im_start|>role\n``. Guarantees: appending the deltas and
the sampled ids gives the rendering of the whole conversation; text of an observation never becomes a special token;
model output is never encoded again; `messages` is the inverse; `ChatFamily.text_of` equals the published templates for
messages without tools and without outer white space.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from repairgym.errors import ModelFolderError

if TYPE_CHECKING:  # grading, which renders for the judge, works without transformers
    from transformers import PreTrainedTokenizerFast


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
    """Special token after the text, which a model samples to end its message."""
    opening: str = ""
    """Special token before the first message."""
    role_end: str = ""
    """Special token after the role, if there is one."""
    gap: str = "\n"
    """Plain text between role and text."""
    separator: str = "\n"
    """Plain text between messages."""
    answer_prefix: str = ""
    """Text after the header of each answer, e.g. an empty thought."""

    def text_of(self, messages: Iterable[Message], *, is_open: bool = True) -> str:
        """Render the conversation as text; ``is_open``: with the header of the next answer."""
        whole = "".join(f"{self._header(role)}{text}{self.message_end}{self.separator}" for role, text in messages)
        return self.opening + whole + (self._header("assistant") + self.answer_prefix if is_open else "")

    def _header(self, role: str) -> str:
        return f"{self.role_start}{role}{self.role_end}{self.gap}"


CHATML = ChatFamily("chatml", role_start="<|im_start|>", message_end="<|im_end|>")
"""Qwen2, Qwen3 that may think, Hermes, SmolLM and the shipped model."""
QWEN3_DIRECT = replace(CHATML, name="qwen3-direct", answer_prefix="<think>\n\n</think>\n\n")
"""Qwen3 without thinking (``enable_thinking=False``)."""
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


MESSAGE_START = CHATML.role_start
MESSAGE_END = CHATML.message_end

CHAT_TEMPLATE = (
    "{%- for message in messages %}"
    "{{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"
)


class ChatRenderer:
    """Deltas of a conversation between ``user`` (the environment) and ``assistant`` (the policy)."""

    def __init__(
        self, tokenizer: PreTrainedTokenizerFast, *, system: str | None = None, family: ChatFamily | None = None
    ) -> None:
        """Look up the special tokens.

        ``system`` is the text of a system message that opens every conversation; ``family`` None: the first of ChatML
        and Llama 3 whose tokens the tokenizer has.

        Raises:
            ModelFolderError: the tokenizer lacks the tokens of the family as single tokens.
        """
        self._tokenizer = tokenizer
        # One text at a time needs no threads, which would print a warning at a later fork.
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
        tokenizer.backend_tokenizer.no_truncation()
        tokenizer.backend_tokenizer.no_padding()
        self.family = family or _family_of(tokenizer)
        special = {self.family.role_start, self.family.role_end, self.family.message_end, self.family.opening} - {""}
        self._special_ids = {token: self._special(token) for token in special}
        self._start_id = self._special_ids[self.family.role_start]
        self._end_id = self._special_ids[self.family.message_end]
        self._separator_ids = self._encode(self.family.separator)
        self._answer_ids = self._header("assistant") + self.prompt_ids(self.family.answer_prefix)
        self._opening_ids = [self._special_ids[self.family.opening]] if self.family.opening else []
        self._system = system

    @property
    def stop_token_ids(self) -> tuple[int, ...]:
        """Tokens that end an action."""
        return (self._end_id,)

    @property
    def vocab_size(self) -> int:
        """Upper bound (exclusive) of token ids."""
        return len(self._tokenizer)

    def open_ids(self, observation: str, system: str = "") -> list[int]:
        """Encode the first prompt: message ``system`` or the renderer's own, if any, user message, assistant header."""
        text = system or self._system
        opening = [] if text is None else [Message("system", text)]
        return self.conversation_ids([*opening, Message("user", observation)])

    def conversation_ids(self, messages: Iterable[Message]) -> list[int]:
        """Encode ``messages`` that came as text and the header of the answer; ids may differ from sampled ones."""
        ids = list(self._opening_ids)
        for role, text in messages:
            ids += self._message(role, text)
        return ids + self._answer_ids

    def observation_ids(self, text: str, is_stopped: bool) -> list[int]:
        """Encode the tokens after an action, up to the next one.

        ``is_stopped``: the model sampled the stop token itself; otherwise it is added here, as context.
        """
        return self.continuation_ids([Message("user", text)], is_stopped)

    def continuation_ids(self, messages: Sequence[Message], is_stopped: bool) -> list[int]:
        """Encode the tokens after an action for one or more messages."""
        ids = ([] if is_stopped else [self._end_id]) + self._separator_ids
        for role, text in messages:
            ids += self._message(role, text)
        return ids + self._answer_ids

    def prompt_ids(self, text: str) -> list[int]:
        """Encode text in the chat form with its special tokens, such as the ``<think>`` of an answer prefix."""
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False) if text else []
        return ids

    def action_ids(self, text: str) -> list[int]:
        """Encode an action that came as text, stop token included; never for text that a model sampled here."""
        return [*self._encode(text), self._end_id]

    def decode(self, token_ids: Sequence[int]) -> str:
        """Decode an action, without the stop token."""
        is_ended = bool(token_ids) and token_ids[-1] == self._end_id
        return self.text(token_ids[:-1] if is_ended else token_ids)

    def text(self, token_ids: Sequence[int]) -> str:
        """Decode any token ids, special tokens included."""
        text: str = self._tokenizer.backend_tokenizer.decode(token_ids, skip_special_tokens=False)
        return text

    def messages(self, token_ids: Sequence[int]) -> list[Message]:
        """Decode the complete messages in ``token_ids``; text before the first and an open message are left out.

        Messages are separated by ids: text that only looks like a special token stays text.
        """
        messages = []
        start: int | None = None
        for position, token_id in enumerate(token_ids):
            if token_id == self._start_id:
                start = position + 1
            elif token_id == self._end_id and start is not None:
                messages.append(self._read(self.text(token_ids[start:position])))
                start = None
        return messages

    def last_observation(self, token_ids: list[int]) -> str:
        """Return the text of the last user message in ``token_ids``, for scripted policies."""
        observations = [message.text for message in self.messages(token_ids) if message.role == "user"]
        return observations[-1] if observations else ""

    def _read(self, text: str) -> Message:
        role, _, rest = text.partition(self.family.role_end + self.family.gap)
        prefix = self.family.answer_prefix if role == "assistant" else ""
        return Message(role, rest.removeprefix(prefix))

    def _message(self, role: str, text: str) -> list[int]:
        return [*self._header(role, text), self._end_id, *self._separator_ids]

    def _header(self, role: str, text: str = "") -> list[int]:
        # The gap is encoded together with the text, as in the encoding of a whole conversation.
        if not self.family.role_end:
            return [self._start_id, *self._encode(f"{role}{self.family.gap}{text}")]
        end_id = self._special_ids[self.family.role_end]
        return [self._start_id, *self._encode(role), end_id, *self._encode(self.family.gap + text)]

    def _encode(self, text: str) -> list[int]:
        # The backend itself: the wrapper of transformers takes half as long again, several times per turn.
        # A batch, because only batches come without offsets, which take a quarter of the time.
        backend = self._tokenizer.backend_tokenizer
        backend.encode_special_tokens = True
        ids: list[int] = backend.encode_batch_fast([text], add_special_tokens=False)[0].ids
        return ids

    def _special(self, token: str) -> int:
        token_id = self._tokenizer.get_vocab().get(token)
        if token_id is None:
            raise ModelFolderError(f"the tokenizer has no token {token}; expected one of the {self.family.name} family")
        return int(token_id)


def _family_of(tokenizer: PreTrainedTokenizerFast) -> ChatFamily:
    vocabulary = tokenizer.get_vocab()
    for family in (CHATML, LLAMA3):
        if family.role_start in vocabulary:
            return family
    raise ModelFolderError(
        f"the tokenizer has no token {CHATML.role_start} (ChatML) and none {LLAMA3.role_start} (Llama 3); expected the "
        "tokenizer of a chat model of one of these families"
    )

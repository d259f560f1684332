r"""Chat rendering by deltas: only the text of the environment is encoded, never the output of the model.

Token ids have the form of the tokenizer's own chat template (`chat_template`). Guarantees: appending the deltas and the
sampled ids gives the rendering of the whole conversation, up to answers that the template itself would rewrite
(`ChatTemplate.rewrites_history`); text of an observation never becomes a special token; model output is never encoded
again; `messages` is the inverse.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from repairgym.errors import ModelFolderError
from repairgym.inference.answers import Answer, AnswerReader
from repairgym.inference.chat_template import PROBED_TOOL, ChatTemplate, Frame, Message, Piece, Tools
from repairgym.inference.tool_calls import CallForm

if TYPE_CHECKING:  # grading, which renders for the judge, works without transformers
    from transformers import PreTrainedTokenizerFast

_MARK = 0xD800
"""First of 2,048 code points that no decoded text holds (surrogates); they stand for special tokens."""
_MARKS = "[\ud800-\udfff]"


class ChatRenderer:
    """Deltas of a conversation between ``user`` (the environment) and ``assistant`` (the policy)."""

    def __init__(
        self, tokenizer: PreTrainedTokenizerFast, *, system: str | None = None, is_thinking: bool | None = None
    ) -> None:
        """Probe the tokenizer's chat template.

        ``system`` is the text of a system message that opens every conversation; ``is_thinking`` asks the model to
        think or not where its template has a switch for it, None leaves the template's default.

        Raises:
            ModelFolderError: the tokenizer has no template, or none that works message by message.
            ConfigError: the model always thinks, and ``is_thinking`` is False.
        """
        self._tokenizer = tokenizer
        # One text at a time needs no threads, which would print a warning at a later fork.
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
        tokenizer.backend_tokenizer.no_truncation()
        tokenizer.backend_tokenizer.no_padding()
        self.template = ChatTemplate(tokenizer, is_thinking)
        added = tokenizer.backend_tokenizer.get_added_tokens_decoder()
        self._special_ids = {token.content: number for number, token in added.items() if token.special}
        names = sorted(self._special_ids, key=len, reverse=True)
        self._split_special = re.compile("(" + "|".join(map(re.escape, names)) + ")") if names else re.compile("(?!)()")
        self._marks = {number: chr(_MARK + place) for place, number in enumerate(self._special_ids.values())}
        self._texts_of_marks = {self._marks[number]: text for text, number in self._special_ids.items()}
        self._answer_stop_ids, self._call_stop_ids = self._find_stops()
        self._closing_ids = self._ids([Piece(self.template.closing, is_template=True)])
        self._frames = self._marked_frames()
        headers = (re.escape(frame.header).replace(PROBED_TOOL, r"[\w.-]+") for frame in self._frames)
        self._headers = re.compile("|".join(f"({header})" for header in headers))
        self._reader = AnswerReader(self.template, tokenizer.get_vocab(), self.text)
        self._system = system
        self._check_parts()

    @property
    def call_form(self) -> CallForm | None:
        """Form of the model's tool calls; None where its template has none."""
        return self.template.call_form

    @property
    def stop_token_ids(self) -> tuple[int, ...]:
        """Tokens that end an action, that of an answer without a call first."""
        return tuple(dict.fromkeys(self._answer_stop_ids + self._call_stop_ids))

    @property
    def serialized_tokenizer(self) -> str:
        """The tokenizer as JSON, for libraries that build an index of its tokens."""
        text: str = self._tokenizer.backend_tokenizer.to_str()
        return text

    @property
    def vocab_size(self) -> int:
        """Upper bound (exclusive) of token ids."""
        return len(self._tokenizer)

    def open_ids(self, observation: str, system: str = "", tools: Tools = ()) -> list[int]:
        """Encode the first prompt: message ``system`` or the renderer's own, if any, user message, assistant header."""
        text = system or self._system
        opening = [] if text is None else [Message("system", text)]
        return self.conversation_ids([*opening, Message("user", observation)], tools)

    def conversation_ids(self, messages: Iterable[Message], tools: Tools = ()) -> list[int]:
        """Encode ``messages`` that came as text and the header of the answer; ids may differ from sampled ones."""
        return self._ids(self.template.opening(list(messages), tools))

    def observation_ids(self, text: str, stop_id: int | None) -> list[int]:
        """Encode the tokens after an action, up to the next one, for one message of the environment."""
        return self.continuation_ids([Message("user", text)], stop_id)

    def continuation_ids(self, messages: Sequence[Message], stop_id: int | None) -> list[int]:
        """Encode the tokens after an action, up to the next one, for one or more messages.

        ``stop_id`` is the stop token that the model sampled; None: it was cut off, and the message ends here.
        """
        rest = self._ids(self.template.continuation(messages))
        if stop_id is None:
            return self._closing_ids + rest
        if self._closing_ids:
            return self._closing_ids[1:] + rest
        # In GLM's form the model ends its answer with the first token of the next message.
        return rest[1:] if rest[:1] == [stop_id] else rest

    def prompt_ids(self, text: str) -> list[int]:
        """Encode text in the chat form with its special tokens."""
        ids: list[int] = self._tokenizer.encode(_paired(text), add_special_tokens=False) if text else []
        return ids

    def action_ids(self, text: str) -> list[int]:
        """Encode an action that came as text, stop token included; never for text that a model sampled here."""
        is_call = self.call_form is not None and bool(self.call_form.find(text)[0])
        stop_id = (self._call_stop_ids if is_call else self._answer_stop_ids)[0]
        if not self.template.has_channels:
            return [*self._encode(text), stop_id]
        # The channels of such an answer are special tokens.
        framed = text if text.lstrip().startswith("<|channel|>") else f"<|channel|>final<|message|>{text}"
        return [*self._ids([Piece(framed, is_template=True)]), stop_id]

    def decode(self, token_ids: Sequence[int]) -> str:
        """Decode an action, without the stop token."""
        return self.text(self._without_stop(token_ids))

    def read(self, token_ids: Sequence[int]) -> Answer:
        """Split a sampled action into its thought and what counts."""
        return self._reader.read(self._without_stop(token_ids))

    def text(self, token_ids: Sequence[int]) -> str:
        """Decode any token ids, special tokens included."""
        text: str = self._tokenizer.backend_tokenizer.decode(token_ids, skip_special_tokens=False)
        return text

    def messages(self, token_ids: Sequence[int]) -> list[Message]:
        """Decode the complete messages in ``token_ids``; text before the first and an open message are left out.

        Messages are separated by ids: text that only looks like a special token stays text.
        """
        text = self._marked_ids(token_ids)
        headers = list(self._headers.finditer(text))
        messages = []
        for number, header in enumerate(headers):
            is_last = number + 1 == len(headers)
            frame = self._frames[(header.lastindex or 1) - 1]
            content = text[header.end() : len(text) if is_last else headers[number + 1].start()]
            if (body := self._body(frame, content, is_followed=not is_last)) is not None:
                messages.append(Message(frame.role, re.sub(_MARKS, lambda mark: self._texts_of_marks[mark[0]], body)))
        return messages

    def last_observation(self, token_ids: list[int]) -> str:
        """Return the text of the last message of the environment in ``token_ids``, for scripted policies."""
        observations = [message.text for message in self.messages(token_ids) if message.role in ("user", "tool")]
        return observations[-1] if observations else ""

    def _body(self, frame: Frame, content: str, *, is_followed: bool) -> str | None:
        """Return the text of a message in ``content``, None where it is still open."""
        if frame.role != "assistant":
            end = re.search(_MARKS, content)
            is_ended = is_followed or end is not None or not re.search(_MARKS, frame.footer)
            body = (content[: end.start()] if end else content).removesuffix(re.split(_MARKS, frame.footer)[0])
            if frame.header.endswith('"') and frame.footer.startswith('"'):
                body = str(json.loads(f'"{body}"'))
            return body if is_ended else None
        stops = tuple(self._marks[number] for number in self.stop_token_ids if number in self._marks)
        separator = re.split(_MARKS, frame.footer)[-1]
        for ending in (frame.footer, *(stop + separator for stop in stops), *stops):
            if ending and content.endswith(ending):
                return content.removesuffix(ending)
        return content if is_followed else None

    def _without_stop(self, token_ids: Sequence[int]) -> Sequence[int]:
        return token_ids[:-1] if token_ids and token_ids[-1] in self.stop_token_ids else token_ids

    def _check_parts(self) -> None:
        """Raise where the tokenizer encodes a part otherwise than within a whole, such as with a space before it."""
        ids = self.open_ids("a question")
        ids += self.action_ids("an answer")
        ids += self.observation_ids("a result", ids[-1])
        if ids != self.prompt_ids(self.text(ids)) or self.text(self._encode("an answer")) != "an answer":
            raise ModelFolderError(
                "the tokenizer encodes the messages of a conversation otherwise than the whole; expected one that "
                "works byte by byte, as those of Qwen, Llama 3, GLM and gpt-oss do"
            )

    def _find_stops(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Tokens that end an answer, and those that end one with a call."""
        template, eos_id = self.template, self._tokenizer.eos_token_id
        answer = self._first_special(template.last_closing) or self._first_special(template.closing)
        call = self._first_special(template.last_call_closing)
        if not answer:
            # No token closes an answer: it ends where another message begins.
            answer = self._first_special(template.continuation([Message("user", "u")])[0].text)
            if template.call_form:
                call = self._first_special(template.continuation([Message("tool", "t", PROBED_TOOL)])[0].text)
            call += () if eos_id is None else (eos_id,)
        answer = answer or (() if eos_id is None else (eos_id,))
        if not answer:
            raise ModelFolderError("the chat template ends an answer with no special token, nor has the tokenizer any")
        return answer, call or answer

    def _first_special(self, text: str) -> tuple[int, ...]:
        match = self._split_special.search(text)
        return (self._special_ids[match[1]],) if match else ()

    def _ids(self, pieces: Iterable[Piece]) -> list[int]:
        """Encode pieces. Text between two special tokens is encoded at once, as in the encoding of a whole."""
        ids: list[int] = []
        plain = ""
        for piece in pieces:
            parts = self._split_special.split(piece.text) if piece.is_template else [piece.text]
            for place, part in enumerate(parts):
                if place % 2:
                    ids += [*self._encode(plain), self._special_ids[part]]
                    plain = ""
                else:
                    plain += part
        return ids + self._encode(plain)

    def _encode(self, text: str) -> list[int]:
        if not text:
            return []
        # The backend itself: the wrapper of transformers takes half as long again, several times per turn.
        # A batch, because only batches come without offsets, which take a quarter of the time.
        backend = self._tokenizer.backend_tokenizer
        backend.encode_special_tokens = True
        ids: list[int] = backend.encode_batch_fast([_paired(text)], add_special_tokens=False)[0].ids
        return ids

    def _marked_frames(self) -> list[Frame]:
        """Frames with marks, longer headers first; a system message may also stand behind others, such as tools."""
        frames = [Frame(role, *map(self._marked, texts)) for role, *texts in self.template.frames]
        tails = (re.search(f"{_MARKS}[^\ud800-\udfff]*$", frame.header) for frame in frames if frame.role == "system")
        frames += [Frame("system", tail[0], "") for tail in tails if tail]
        return sorted((frame for frame in frames if frame.header), key=lambda frame: -len(frame.header))

    def _marked(self, text: str) -> str:
        parts = self._split_special.split(text)
        return "".join(self._marks[self._special_ids[part]] if place % 2 else part for place, part in enumerate(parts))

    def _marked_ids(self, token_ids: Sequence[int]) -> str:
        """Decode ids with special tokens as marks."""
        parts: list[str] = []
        plain: list[int] = []
        for token_id in token_ids:
            if token_id in self._marks:
                parts += [self.text(plain) if plain else "", self._marks[token_id]]
                plain = []
            else:
                plain.append(token_id)
        return "".join(parts) + (self.text(plain) if plain else "")


def _paired(text: str) -> str:
    """Return ``text`` with lone surrogates, which no tokenizer takes, as U+FFFD; JSON escapes of a model make some."""
    if text.isascii() or not re.search(_MARKS, text):
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")

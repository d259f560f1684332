"""The exact token ledger of an episode whose agent speaks text.

Reads the requests of a black-box agent, which send a conversation as text each time, and the tokens that were sampled
for them. Makes the prompts and a :class:`~repairgym.ledger.LedgerBuilder`. Guarantees:

- Sampled ids are never encoded again: where the agent sends back an answer of the policy, by its content, the prompt
  has the ids that were sampled.
- A conversation that continues the latest answer extends the ledger. Any other one (a second conversation, a history
  that the agent has compacted, cut or edited) forks it, and each sampled token is an action in one branch only.
- Every prompt equals the tokens that stand before its answer in the ledger.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from repairgym.inference.base import Generation
from repairgym.inference.chat_template import Message
from repairgym.inference.renderer import ChatRenderer
from repairgym.inference.tool_calls import HERMES
from repairgym.ledger import LedgerBuilder, Span
from repairgym.serving.memory import call_values, message_key
from repairgym.serving.records import UNSUPPORTED, ChatRequest, RequestError, TextRequest, to_conversation

_NUM_EDIT_CHARS = 40
Piece = list[int] | Span
"""Encoded tokens of the environment, or a sampled answer that is copied from elsewhere in the ledger."""


@dataclass(frozen=True)
class Sample:
    """One sampled answer."""

    number: int
    parent: "Sample | None"
    """The answer that its conversation continues; None: it begins a history of its own."""
    spans: tuple[Span, ...]
    """Tokens between the parent's answer and this one."""
    action: Span
    stop_id: int | None
    """The stop token that ended it; None: it was cut off."""

    @property
    def history(self) -> list[Span]:
        """Tokens from the start of the conversation to the end of the answer."""
        before = self.parent.history if self.parent else []
        return [*before, *self.spans, self.action]


@dataclass(frozen=True)
class Prompt:
    """The tokens of a request."""

    token_ids: list[int]
    parent: Sample | None
    pieces: tuple[Piece, ...]
    """Tokens behind the parent's answer."""
    observation: str = ""
    """Text of the messages behind it."""
    foreign: tuple[Mapping[str, Any], ...] = ()
    """Messages of the assistant in it that no policy sampled here."""


@dataclass
class HistoryCounts:
    """Counts of an episode's requests."""

    num_answers: int = 0
    num_forks: int = 0
    """Branches of the ledger beyond the first."""
    num_spliced_answers: int = 0
    """Answers whose sampled ids were copied into a history that the agent had rewritten."""
    num_foreign_answers: int = 0
    """Messages of the assistant that no policy sampled here: the agent wrote or changed them. They are context."""
    edits: list[str] = field(default_factory=list)
    """Changes of the agent to arguments of sampled calls, told by the ids of the calls; see `_describe_edits`."""


@dataclass
class EpisodeHistories:
    """The conversations of one episode."""

    renderer: ChatRenderer
    ledger: LedgerBuilder = field(default_factory=LedgerBuilder)
    counts: HistoryCounts = field(default_factory=HistoryCounts)
    _latest: Sample | None = None
    _by_prefix: dict[bytes, Sample] = field(default_factory=dict)
    """Digest of a conversation that ends with an answer -> the answer."""
    _by_content: dict[bytes, Sample] = field(default_factory=dict)
    _samples: list[Sample] = field(default_factory=list)
    _calls: dict[str, tuple[int, Mapping[str, Any]]] = field(default_factory=dict)
    """Id of a sampled call -> the number of its answer, and the call as the agent got it."""

    def prompt(self, request: ChatRequest) -> Prompt:
        """Return the prompt of a conversation; `RequestError` for tools of a model whose chat template has none."""
        form = self.renderer.call_form
        if request.tools and form is None:
            raise RequestError("tools: the chat template of this model has none", code=UNSUPPORTED)
        conversation = to_conversation(request.messages, form or HERMES)
        digests = _prefix_digests(request)
        begin, parent = 0, None
        for end in range(len(conversation) - 1, 0, -1):
            if conversation[end - 1].role == "assistant" and (parent := self._by_prefix.get(digests[end])):
                begin = end
                break
        pieces, foreign = self._splice(request, conversation, begin, parent)
        observation = "\n".join(message.text for message in conversation[begin:]) if parent else ""
        return self._join(parent, pieces, observation, foreign)

    def _splice(
        self, request: ChatRequest, conversation: Sequence[Message], begin: int, last: Sample | None
    ) -> tuple[list[Piece], list[Mapping[str, Any]]]:
        """Return the tokens from message ``begin`` on, with the sampled ids of known answers, and the other answers."""
        pieces: list[Piece] = []
        foreign = []
        for place in range(begin, len(conversation)):
            if conversation[place].role != "assistant":
                continue
            known = self._by_content.get(message_key(request.messages[place]))
            if known is None or place == begin:  # two answers in a row have no tokens between them
                foreign.append(request.messages[place])
                continue
            pieces += [self._encode(request, conversation[begin:place], last), known.action]
            begin, last = place + 1, known
        return [*pieces, self._encode(request, conversation[begin:], last)], foreign

    def _note_edits(self, message: Mapping[str, Any]) -> None:
        for call in message.get("tool_calls") or ():
            number, sampled = self._calls.get(call.get("id"), (0, call))
            edits = _describe_edits(number, sampled["function"], call["function"])
            self.counts.edits += [edit for edit in edits if edit not in self.counts.edits]

    def _encode(self, request: ChatRequest, part: Sequence[Message], last: Sample | None) -> list[int]:
        if last is None:
            return self.renderer.conversation_ids(part, request.tools)
        return self.renderer.continuation_ids(part, last.stop_id)

    def text_prompt(self, text: str | Sequence[int]) -> Prompt:
        """Return a prompt that came as one text or as token ids; it continues the answer whose history begins it."""
        for sample in reversed(self._samples):
            ids = self._slices(sample.history)
            if isinstance(text, str):
                known = self.renderer.text(ids)
                if text.startswith(known):
                    return self._join(sample, [self.renderer.prompt_ids(text[len(known) :])], text[len(known) :])
            elif list(text[: len(ids)]) == ids:
                rest = list(text[len(ids) :])
                return self._join(sample, [rest], self.renderer.text(rest))
        return self._join(None, [self.renderer.prompt_ids(text) if isinstance(text, str) else list(text)], "")

    def _join(
        self,
        parent: Sample | None,
        pieces: list[Piece],
        observation: str,
        foreign: Sequence[Mapping[str, Any]] = (),
    ) -> Prompt:
        ids = self._slices(parent.history) if parent else []
        for piece in pieces:
            ids += self.ledger.slice(piece) if isinstance(piece, tuple) else piece
        return Prompt(ids, parent, tuple(pieces), observation, tuple(foreign))

    def _slices(self, spans: Sequence[Span]) -> list[int]:
        return [token_id for span in spans for token_id in self.ledger.slice(span)]

    def record(
        self,
        request: ChatRequest | TextRequest,
        prompt: Prompt,
        generation: Generation,
        answer: Mapping[str, Any],
        stop_id: int | None,
    ) -> Sample:
        """Append an answer, as tokens and as the message that the agent gets, behind its prompt."""
        self.counts.num_spliced_answers += sum(isinstance(piece, tuple) for piece in prompt.pieces)
        self.counts.num_foreign_answers += len(prompt.foreign)
        for message in prompt.foreign:
            self._note_edits(message)
        if prompt.parent is not self._latest:
            self.ledger.fork()
            self.counts.num_forks += 1
            for span in prompt.parent.history if prompt.parent else ():
                self.ledger.copy(span)
        spans = [self._append(piece) for piece in prompt.pieces]
        action = self.ledger.append_action(generation.token_ids, generation.log_probs, generation.versions)
        sample = Sample(len(self._samples), prompt.parent, tuple(spans), action, stop_id)
        self.counts.num_answers += 1
        self._samples.append(sample)
        self._latest = sample
        if isinstance(request, ChatRequest):
            whole = ChatRequest(request.sampling, (*request.messages, answer), request.tools)
            self._by_prefix[_prefix_digests(whole)[-1]] = sample
            self._by_content[message_key(answer)] = sample
            self._calls |= {call["id"]: (sample.number, call) for call in answer.get("tool_calls") or ()}
        return sample

    def _append(self, piece: Piece) -> Span:
        if isinstance(piece, tuple):
            self.ledger.copy(piece)
            return piece
        return self.ledger.append_context(piece)


def _prefix_digests(request: ChatRequest) -> list[bytes]:
    """Return the digest of each prefix of the conversation, the empty one first."""
    digests = [hashlib.sha256(repr(request.tools).encode("utf-8", "surrogatepass")).digest()]
    for message in request.messages:
        digests.append(hashlib.sha256(digests[-1] + message_key(message)).digest())
    return digests


def _describe_edits(number: int, sampled: Mapping[str, Any], sent: Mapping[str, Any]) -> list[str]:
    """Return a line for each argument of a call that came back changed, with both texts around the difference."""
    before, after = (call_values(function) for function in (sampled, sent))
    edits = []
    for name in sorted({*before, *after}):
        was, now = ("absent" if name not in values else _as_text(values[name]) for values in (before, after))
        if was != now:
            pairs = enumerate(zip(was, now, strict=False))
            same = next((place for place, (old, new) in pairs if old != new), min(len(was), len(now)))
            part = slice(max(0, same - _NUM_EDIT_CHARS // 2), same + _NUM_EDIT_CHARS // 2)
            place = f"answer {number}, {sampled['name']}.{name}, character {same}"
            edits.append(f"{place}: {was[part]!r} came back as {now[part]!r}")
    return edits


def _as_text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)

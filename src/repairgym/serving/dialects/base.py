"""Base of all dialects: protocols of HTTP clients, read into one record of a request and written from its events.

A dialect knows nothing of models, connections and queues, so another server can use it as well. Guarantee: a field that
would change the answer is honoured or rejected by name; fields that only concern a provider are ignored.
"""

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

from pydantic import ValidationError

from repairgym.serving.records import (
    UNSUPPORTED,
    AnyRequest,
    Delta,
    ModelReply,
    RequestError,
    SamplingRequest,
)

JSON = dict[str, Any]
OF_OTHER_SERVERS: dict[str, tuple[Any, ...]] = {
    "allowed_token_ids": (),
    "bad_words": ([],),
    "chat_template_kwargs": ({},),
    "continue_final_message": (False,),
    "guided_choice": (),
    "guided_grammar": (),
    "guided_json": (),
    "guided_regex": (),
    "ignore_eos": (False,),
    "length_penalty": (1,),
    "min_p": (0,),
    "min_tokens": (0,),
    "repetition_penalty": (1,),
    "structured_outputs": ({},),
    "truncate_prompt_tokens": (),
    "use_beam_search": (False,),
}
"""Fields of vLLM's that change an answer -> the values that do not."""
PLAIN_TEXT = {"type": "text"}


def encode_json(data: Mapping[str, Any]) -> bytes:
    """Return the JSON text of ``data``; half of a surrogate pair, which is no UTF-8, becomes a question mark."""
    return json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode("utf-8", "replace")


class Frame(NamedTuple):
    """One server-sent event."""

    data: Mapping[str, Any] | str
    event: str = ""

    def encode(self) -> bytes:
        """Return its lines."""
        name = f"event: {self.event}\n" if self.event else ""
        data = self.data.encode() if isinstance(self.data, str) else encode_json(self.data)
        return b"%sdata: %s\n\n" % (name.encode(), data)


@dataclass(frozen=True)
class Exchange:
    """A request that is being answered."""

    request: AnyRequest
    id: str
    created: int
    model: str
    prompts: Sequence[Sequence[int]]
    spell: Callable[[Sequence[int]], str]
    """Decodes token ids."""
    body: Mapping[str, Any] = field(default_factory=dict)
    """As received, for replies that repeat their settings."""

    def prompt_of(self, number: int) -> Sequence[int]:
        """Return the prompt of answer ``number``."""
        return self.prompts[number // self.request.sampling.num_choices]

    @property
    def num_prompt_tokens(self) -> int:
        """Each prompt counts once, however many answers it has."""
        return sum(map(len, self.prompts))


class Writer(ABC):
    """Writes the stream of one exchange."""

    def start(self) -> Sequence[Frame]:
        """Begin, before anything is sampled."""
        return ()

    @abstractmethod
    def grow(self, delta: Delta) -> Sequence[Frame]:
        """Write what an answer has got."""

    @abstractmethod
    def end_reply(self, reply: ModelReply) -> Sequence[Frame]:
        """Write the end of one answer, its tool calls included."""

    @abstractmethod
    def end(self, replies: Sequence[ModelReply]) -> Sequence[Frame]:
        """Write the end of the stream."""


class Dialect(ABC):
    """A protocol of clients."""

    path: ClassVar[str]

    @abstractmethod
    def read(self, body: Mapping[str, Any]) -> AnyRequest:
        """Check a request; `RequestError` where something is missing, of the wrong kind or not supported."""

    @abstractmethod
    def document(self, exchange: Exchange, replies: Sequence[ModelReply]) -> JSON:
        """Return the whole answer."""

    @abstractmethod
    def writer(self, exchange: Exchange) -> Writer:
        """Return what writes the answer as a stream."""

    def error(self, error: RequestError) -> JSON:
        """Return the body of an error; OpenAI's form."""
        kind = "invalid_request_error" if error.status < 500 else "server_error"
        return {"error": {"message": str(error), "type": kind, "param": None, "code": error.code}}

    def error_frame(self, error: RequestError) -> Frame:
        """Return the end of a stream that fails."""
        return Frame(self.error(error))


def read_sampling(body: Mapping[str, Any], names: Mapping[str, str], **values: Any) -> SamplingRequest:
    """Read the fields ``names`` (the dialect's name -> the record's); ``values`` are read already."""
    given = {ours: body[theirs] for theirs, ours in names.items() if body.get(theirs) is not None}
    try:
        return SamplingRequest.model_validate(given | values)
    except ValidationError as error:
        first = error.errors()[0]
        theirs = next((name for name, ours in names.items() if ours == first["loc"][0]), str(first["loc"][0]))
        raise RequestError(f"{theirs}: got {repr(first['input'])[:200]}; {first['msg']}") from None


def reject_changes(body: Mapping[str, Any], neutral: Mapping[str, tuple[Any, ...]]) -> None:
    """Raise for fields that would change the answer and have another value than a ``neutral`` one."""
    for name, values in neutral.items():
        if body.get(name) is not None and body[name] not in values:
            raise RequestError(f"{name}={str(body[name])[:200]} is not supported; leave it out", code=UNSUPPORTED)


def read_flag(body: Mapping[str, Any], name: str) -> bool:
    """Return a field that is true or false; absent: false."""
    value = body.get(name)
    if value is not None and not isinstance(value, bool):
        raise RequestError(f"{name}: expected true or false")
    return bool(value)


def read_items(body: Mapping[str, Any], name: str) -> list[Any]:
    """Return a field that is a list; absent: empty."""
    value = body.get(name)
    if value is not None and not isinstance(value, list):
        raise RequestError(f"{name}: expected a list")
    return value or []


def token_fields(exchange: Exchange, reply: ModelReply) -> JSON:
    """Return what was sampled, for requests that ask for token ids in a dialect that has no place for them."""
    generation = reply.generation
    if not exchange.request.sampling.has_token_ids:
        return {}
    return {
        "prompt_token_ids": list(reply.prompt_ids),
        "token_ids": list(generation.token_ids),
        "token_log_probs": list(generation.log_probs),
        "policy_version": generation.policy_version,
    }

"""The record of a request that every dialect is read into, and the events of its answer that every dialect writes.

Guarantee: the token ids and log-probabilities in events are those that were sampled.
"""

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictInt, field_validator

from repairgym.agent.formats import text_of_message
from repairgym.inference.base import Generation
from repairgym.inference.chat_template import Message
from repairgym.inference.engine.shaping import TopTokens
from repairgym.inference.tool_calls import CallForm

UNSUPPORTED = "unsupported_parameter"
_MAX_SEED = 1 << 31
Number = Annotated[float, Field(strict=True, allow_inf_nan=False)]
StopText = Annotated[str, Field(min_length=1, max_length=1000, strict=True)]


class RequestError(Exception):
    """A request that is answered with an error; clients read its ``code``."""

    def __init__(self, message: str, *, status: int = 400, code: str = "invalid_request_error") -> None:
        super().__init__(message)
        self.status = status
        self.code = code


class SamplingRequest(BaseModel):
    """Sampling settings: the part that all requests share."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    model: Annotated[str, Field(strict=True)] = ""
    temperature: Number = Field(1.0, ge=0, le=100)
    top_p: Number = Field(1.0, gt=0, le=1)
    top_k: StrictInt = Field(0, ge=-1)
    """0 and -1: all tokens."""
    presence_penalty: Number = Field(0.0, ge=-2, le=2)
    frequency_penalty: Number = Field(0.0, ge=-2, le=2)
    logit_bias: Mapping[Annotated[int, Field(ge=0)], Annotated[Number, Field(ge=-100, le=100)]] = {}
    max_tokens: StrictInt | None = Field(None, ge=1)
    """None: the client sets no bound."""
    seed: StrictInt = Field(default_factory=lambda: secrets.randbelow(_MAX_SEED))
    stop: tuple[StopText, ...] = Field((), max_length=16)
    """Texts at which the answer ends; they are not part of it."""
    stop_token_ids: tuple[StrictInt, ...] = ()
    num_choices: StrictInt = Field(1, ge=1, le=128)
    """Answers to each prompt."""
    has_log_probs: StrictBool = False
    num_top_log_probs: StrictInt = Field(0, ge=0, le=20)
    has_token_ids: StrictBool = False
    is_stream: StrictBool = False

    @field_validator("stop", mode="before")
    @classmethod
    def _read_stop(cls, value: object) -> object:
        return [value] if isinstance(value, str) else value


@dataclass(frozen=True)
class ChatRequest:
    """A conversation that asks for the next message."""

    sampling: SamplingRequest
    messages: tuple[Mapping[str, Any], ...]
    """In the form of Chat Completions, checked."""
    tools: tuple[Mapping[str, Any], ...] = ()
    """JSON schemas of the functions that the model may call."""
    required: tuple[str, ...] = ()
    """Names of the functions of which the answer must call one; empty: it need not."""
    schema: Mapping[str, Any] | None = None
    """JSON schema of the answer, where that is no free text."""
    is_usage_streamed: bool = False
    """A stream ends with the counts of tokens, where the dialect leaves that to the client."""

    @property
    def num_replies(self) -> int:
        """Answers that the request asks for."""
        return self.sampling.num_choices


@dataclass(frozen=True)
class TextRequest:
    """Prompts to continue, each as text or as token ids."""

    sampling: SamplingRequest
    prompts: tuple[str | tuple[int, ...], ...]
    is_echo: bool = False
    """The answer begins with the prompt's text."""
    is_usage_streamed: bool = False

    @property
    def num_replies(self) -> int:
        """Answers that the request asks for; those to one prompt are next to each other."""
        return len(self.prompts) * self.sampling.num_choices


AnyRequest = ChatRequest | TextRequest


def changes_of(request: AnyRequest) -> list[str]:
    """Return the names of the settings by which ``request`` does not sample from the model's own distribution."""
    asked = request.sampling
    names = ("temperature", "top_p", "presence_penalty", "frequency_penalty", "logit_bias")
    changed = [name for name in names if getattr(asked, name) != SamplingRequest.model_fields[name].default]
    changed += ["top_k"] * (asked.top_k > 0)
    if isinstance(request, ChatRequest):
        changed += ["tool_choice"] * bool(request.required) + ["response_format"] * (request.schema is not None)
    return changed


def check_exact(request: AnyRequest) -> None:
    """Raise unless ``request`` samples from the model's own distribution, as RL must."""
    if changed := changes_of(request):
        raise RequestError(
            f"{', '.join(changed)}: this server is strict and samples at temperature 1 without changes",
            code="not_exact",
        )


@dataclass(frozen=True)
class Delta:
    """Growth of an answer since the last event."""

    number: int
    """Of the answer within the request."""
    text: str
    token_ids: Sequence[int]
    """May run ahead of the text, which waits for whole characters."""
    log_probs: Sequence[float]
    top_tokens: Sequence[TopTokens] = ()


@dataclass(frozen=True)
class ModelReply:
    """An answer with its tokens; as an event, the end of the answer."""

    number: int
    text: str
    message: Mapping[str, Any]
    """The text as a message with separate tool calls; of chat requests."""
    prompt_ids: tuple[int, ...]
    generation: Generation
    finish: Literal["stop", "length", "tool_calls"]
    stop_text: str | None = None
    """The text of the request at which it ended."""
    top_tokens: tuple[TopTokens, ...] = ()


Event = Delta | ModelReply
Report = Callable[[Delta], None]


def to_conversation(messages: Sequence[Mapping[str, Any]], form: CallForm) -> list[Message]:
    """Convert messages of the protocol to those that a chat template renders; calls become text in ``form``."""
    conversation: list[Message] = []
    names: dict[object, str] = {}
    for message in messages:
        role = str(message["role"])
        text = content_text(message)
        if role == "assistant":
            text = text_of_message({**message, "content": text}, form)
            names |= {call.get("id"): call["function"]["name"] for call in message.get("tool_calls") or ()}
        tool = names.get(message.get("tool_call_id"), "") or "tool" if role == "tool" else ""
        conversation.append(Message("system" if role == "developer" else role, text, tool))
    return conversation


def content_text(message: Mapping[str, Any]) -> str:
    """Return the text of a message, whose content may be text, parts of text or nothing."""
    content = message.get("content")
    if isinstance(content, list):
        return "".join(str(part["text"]) for part in content)
    return content or ""

"""A policy and a text model behind any server with OpenAI's protocol, as text; streaming is off.

Guarantees: a reply is encoded once and marked `UNKNOWN_VERSION`, so RL rejects it; all attempts of a request have one
idempotency key, so that none is sampled or billed twice.
"""

from collections.abc import Mapping
from typing import Any
from uuid import uuid4

from repairgym.config.models import EndpointConfig
from repairgym.inference.base import Generation, SamplingParams
from repairgym.inference.chat_template import THOUGHT_END, THOUGHT_START, Message
from repairgym.inference.endpoint import EndpointClient
from repairgym.inference.renderer import ChatRenderer
from repairgym.inference.replies import Reply, read_chat_reply, read_text_reply
from repairgym.ledger import UNKNOWN_VERSION
from repairgym.records import storable

MAX_SEED = (1 << 31) - 1
"""Largest seed that servers accept."""
_CHARS_PER_TOKEN = 3
"""Estimate for prompts of an unknown tokenizer, for the rate limit."""


class OpenAIPolicy:
    """A policy over a text-only server: a teacher or a baseline."""

    def __init__(self, client: EndpointClient, renderer: ChatRenderer) -> None:
        """``renderer`` turns prompts into messages and replies into tokens of the record."""
        self.id = client.config.model
        self._client = client
        self._config = client.config
        self._renderer = renderer

    async def generate(self, session_id: str, prompt_ids: list[int], sampling: SamplingParams) -> Generation:
        """Return the server's next message; raises as `EndpointClient.ask`."""
        path, body = self._request(prompt_ids, sampling)
        num_tokens = len(self._renderer.text(prompt_ids)) // _CHARS_PER_TOKEN + sampling.max_tokens
        key = {"Idempotency-Key": uuid4().hex}
        answer = await self._client.ask(path, body, lambda reply: self._read(reply, sampling), num_tokens, key)
        reply = answer.reply
        ids = self._renderer.action_ids(self._text(reply))
        ids = ids if reply.is_stopped else ids[:-1]
        return Generation(
            token_ids=tuple(ids),
            log_probs=(0.0,) * len(ids),
            is_stopped=reply.is_stopped,
            policy_version=UNKNOWN_VERSION,
            cost_usd=answer.cost_usd,
            queue_s=answer.queue_s,
        )

    async def end_session(self, session_id: str) -> None:
        """Do nothing: the server keeps no session."""

    def _request(self, prompt_ids: list[int], sampling: SamplingParams) -> tuple[str, dict[str, Any]]:
        body = request_fields(self._config, sampling)
        if self._config.api == "completions":
            stop = [self._renderer.text([stop_id]) for stop_id in self._renderer.stop_token_ids]
            return "completions", body | {"prompt": self._renderer.text(prompt_ids), "stop": stop}
        # A result without the call's id is no message of the protocol: it goes as text, in the form of Hermes.
        messages = [
            {"role": "user", "content": f"<tool_response>\n{message.text}\n</tool_response>"}
            if message.role == "tool"
            else {"role": message.role, "content": self._shown(message)}
            for message in self._renderer.messages(prompt_ids)
        ]
        return "chat/completions", body | {"messages": messages}

    def _read(self, body: Mapping[str, Any], sampling: SamplingParams) -> Reply:
        read = read_chat_reply if self._config.api == "chat" else read_text_reply
        return read(body, sampling.max_tokens)

    def _text(self, reply: Reply) -> str:
        """Return the answer as the model of the tokenizer writes it, whose prompt may have opened the thought."""
        thought = "" if self._config.reasoning == "dropped" else reply.reasoning.strip()
        if not self._renderer.template.opens_thought:
            return f"<think>\n{thought}\n</think>\n\n{reply.text}" if thought else reply.text
        if self._config.api == "completions":
            return reply.text
        text = reply.text
        if text.lstrip().startswith(THOUGHT_START):
            text = text.lstrip().removeprefix(THOUGHT_START).removeprefix("\n")
        # A server that keeps thoughts apart, or to itself, sends none; without their end, a cut-off text may be one.
        is_apart = bool(reply.reasoning) or (reply.is_stopped and THOUGHT_END not in text)
        return f"{thought}\n{THOUGHT_END}\n\n{text}" if is_apart else text

    def _shown(self, message: Message) -> str:
        """Return a message as the server's model would have written it, its thought opened in it."""
        thought, end, rest = message.text.partition(THOUGHT_END)
        if message.role != "assistant" or not end or not self._renderer.template.opens_thought:
            return message.text
        return f"{THOUGHT_START}\n{message.text}" if thought.strip() else rest.lstrip("\n")


class OpenAITextModel:
    """A model behind a text-only server that answers questions in the server's own chat form: a judge."""

    def __init__(self, client: EndpointClient, *, temperature: float = 0.0) -> None:
        self.id = client.config.model
        self._client = client
        self._temperature = temperature

    async def reply(self, question: str, *, max_tokens: int, seed: int) -> str:
        """Return the server's answer without a thought that came separately; raises as `EndpointClient.ask`."""
        sampling = SamplingParams(temperature=self._temperature, max_tokens=max_tokens, stop_token_ids=(), seed=seed)
        body = request_fields(self._client.config, sampling)
        is_chat = self._client.config.api == "chat"
        text = storable(question)  # a patch may name files whose names are no UTF-8, which no request can hold
        body |= {"messages": [{"role": "user", "content": text}]} if is_chat else {"prompt": text}
        read = read_chat_reply if is_chat else read_text_reply
        answer = await self._client.ask(
            "chat/completions" if is_chat else "completions",
            body,
            lambda reply: read(reply, max_tokens),
            len(question) // _CHARS_PER_TOKEN + max_tokens,
            {"Idempotency-Key": uuid4().hex},
        )
        return answer.reply.text


def request_fields(config: EndpointConfig, sampling: SamplingParams) -> dict[str, Any]:
    """Return the fields of every completion request."""
    body: dict[str, Any] = {
        "model": config.model,
        "temperature": sampling.temperature,
        config.max_tokens_name: sampling.max_tokens,
        "stream": False,
    }
    if config.has_seed:
        body["seed"] = sampling.seed & MAX_SEED
    return body | config.extra

"""Models behind the server: a policy that samples, or a script that answers.

Guarantees: a prompt that leaves no room is rejected before any computation; the tokens of an answer are those that were
sampled, also where a stop text cuts its text; a call that a thought only mentions is no call; a script's answers are
marked as having no log-probabilities.
"""

import asyncio
import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from repairgym.errors import ConfigError
from repairgym.inference.base import Generation, SamplingParams
from repairgym.inference.chat_template import Message
from repairgym.inference.embedded import Watch
from repairgym.inference.engine.requests import Request
from repairgym.inference.engine.shaping import Shaping, TopTokens
from repairgym.inference.grammar import GrammarCompiler, GrammarMask, call_grammar, json_grammar
from repairgym.inference.renderer import ChatRenderer
from repairgym.inference.tool_calls import HERMES
from repairgym.ledger import UNKNOWN_VERSION
from repairgym.serving.answers import split_answer
from repairgym.serving.memory import ConversationMemory
from repairgym.serving.records import (
    UNSUPPORTED,
    AnyRequest,
    ChatRequest,
    Delta,
    ModelReply,
    Report,
    RequestError,
    SamplingRequest,
    to_conversation,
)
from repairgym.serving.text_stream import TextStream

Answer = Callable[[Sequence[Message], Sequence[Mapping[str, Any]]], str]
"""A script: (whole conversation, tools) -> next message."""


class Sampler(Protocol):
    """A policy whose tokens can be watched as they are sampled."""

    async def generate_shaped(
        self,
        session_id: str,
        prompt_ids: list[int],
        sampling: SamplingParams,
        shaping: Shaping | None,
        watch: Watch | None,
    ) -> Generation:
        """Continue ``prompt_ids`` from a distribution changed by ``shaping``, while ``watch`` sees each token."""
        ...

    async def end_session(self, session_id: str) -> None:
        """Free what the session holds."""
        ...


class Growth:
    """Reports one answer while it grows."""

    def __init__(self, number: int, stream: TextStream, report: Report, stop_ids: Sequence[int]) -> None:
        self._number = number
        self._stream = stream
        self._report = report
        self._stop_ids = stop_ids
        self._num_seen = 0
        self.top_tokens: Sequence[TopTokens] = ()

    @property
    def is_cut(self) -> bool:
        """True once the answer has reached a stop text of its request."""
        return self._stream.stop_text is not None

    def watch(self, request: Request) -> bool:
        """Report what a running request has got; True when it has reached a stop text."""
        self.top_tokens = request.top_tokens
        self.add(request.token_ids, request.log_probs, request.top_tokens, is_stopped=request.is_stopped)
        return self.is_cut

    def add(
        self,
        token_ids: Sequence[int],
        log_probs: Sequence[float],
        top_tokens: Sequence[TopTokens],
        *,
        is_stopped: bool,
    ) -> None:
        """Report those of the answer's tokens, given from the start, that are new."""
        new = slice(self._num_seen, len(token_ids))
        self._num_seen = len(token_ids)
        for place in range(*new.indices(len(token_ids))):
            is_end = is_stopped and place + 1 == len(token_ids) and token_ids[place] in self._stop_ids
            if not is_end:
                self._stream.feed(token_ids[place])
        if token_ids[new]:
            self._report(Delta(self._number, self._stream.release(), token_ids[new], log_probs[new], top_tokens[new]))


class ServedModel(ABC):
    """A model that answers requests, or raises `RequestError`."""

    def __init__(
        self, renderer: ChatRenderer, *, max_len_tokens: int | None = None, max_remembered: int = 4096
    ) -> None:
        """``max_len_tokens`` bounds prompt plus completion (None: no bound), ``max_remembered`` the conversations."""
        self.renderer = renderer
        self.max_len_tokens = max_len_tokens
        self._memory = ConversationMemory(renderer, max_remembered)

    def prompts(self, request: AnyRequest) -> list[list[int]]:
        """Return the prompts of ``request``, after the tokens of the conversation so far."""
        return self._encode_prompts(request)

    def count(self, request: AnyRequest) -> int:
        """Return the tokens of the first prompt of ``request``, whatever the limits; it changes nothing."""
        return len(self._encode_prompts(request)[0])

    def _encode_prompts(self, request: AnyRequest) -> list[list[int]]:
        if isinstance(request, ChatRequest):
            return [self._memory.prompt_ids(request)]
        return [self.renderer.prompt_ids(text) if isinstance(text, str) else list(text) for text in request.prompts]

    async def reply(self, request: AnyRequest, number: int, prompt_ids: list[int], report: Report) -> ModelReply:
        """Return answer ``number`` to ``request``; ``report`` sees it grow."""
        has_calls = isinstance(request, ChatRequest) and bool(request.tools)
        form = self.renderer.call_form if has_calls else None
        stream = TextStream(
            self.renderer.text,
            request.sampling.stop,
            form.start if form else None,
            is_thought=self.renderer.template.opens_thought,
        )
        growth = Growth(number, stream, report, self.renderer.stop_token_ids)
        generation = await self._generate(request, number, prompt_ids, growth)
        growth.add(generation.token_ids, generation.log_probs, growth.top_tokens, is_stopped=generation.is_stopped)
        rest = stream.finish()
        split = split_answer(self.renderer, form, generation.token_ids[: stream.num_tokens], stream.text)
        rest = rest[: max(0, len(rest) - len(stream.text) + split.num_chars)]
        if rest.strip() or (rest and not split.has_calls):
            report(Delta(number, rest, (), ()))
        if isinstance(request, ChatRequest):
            # Its own token closed the message; any other stop token leaves it open.
            stop_id = next((last for last in generation.token_ids[-1:] if last in self.renderer.stop_token_ids), None)
            self._memory.remember(request, split.message, [*prompt_ids, *generation.token_ids], stop_id)
        is_stopped = generation.is_stopped or stream.stop_text is not None
        return ModelReply(
            number,
            stream.text,
            split.message,
            tuple(prompt_ids),
            generation,
            "length" if split.is_open and not is_stopped else "tool_calls" if split.has_calls else "stop",
            stream.stop_text,
            tuple(growth.top_tokens),
        )

    @abstractmethod
    async def _generate(self, request: AnyRequest, number: int, prompt_ids: list[int], growth: Growth) -> Generation:
        """Continue ``prompt_ids``; tells ``growth`` of the tokens."""


class SampledModel(ServedModel):
    """A model that samples within a context of known length."""

    def __init__(self, renderer: ChatRenderer, max_len_tokens: int, default_reply_tokens: int = 512) -> None:
        """``default_reply_tokens`` bounds the replies to requests that set no bound."""
        super().__init__(renderer, max_len_tokens=max_len_tokens)
        self._context_tokens = max_len_tokens
        self._default_reply_tokens = default_reply_tokens

    def prompts(self, request: AnyRequest) -> list[list[int]]:
        """Return the prompts of ``request``, after the tokens of the conversation so far; each leaves room."""
        prompts = super().prompts(request)
        if beyond := [token_id for token_id in request.sampling.logit_bias if token_id >= self.renderer.vocab_size]:
            raise RequestError(f"logit_bias: token id {beyond[0]} is not below {self.renderer.vocab_size}")
        for prompt_ids in prompts:
            self._check_prompt(prompt_ids)
        return prompts

    def _check_prompt(self, prompt_ids: Sequence[int]) -> None:
        if not prompt_ids:
            raise RequestError("prompt: expected at least one token")
        if len(prompt_ids) >= self._context_tokens:
            raise RequestError(
                f"this model's maximum context length is {self._context_tokens} tokens, and the prompt alone has "
                f"{len(prompt_ids)}; shorten it",
                code="context_length_exceeded",
            )
        if max(prompt_ids) >= self.renderer.vocab_size:
            raise RequestError(
                f"prompt: token id {max(prompt_ids)} is not below this model's {self.renderer.vocab_size}"
            )

    def _sampling(self, asked: SamplingRequest, number: int, num_prompt_tokens: int) -> SamplingParams:
        """Return the settings of answer ``number``."""
        return SamplingParams(
            temperature=asked.temperature,
            max_tokens=min(asked.max_tokens or self._default_reply_tokens, self._context_tokens - num_prompt_tokens),
            stop_token_ids=tuple(dict.fromkeys((*self.renderer.stop_token_ids, *asked.stop_token_ids))),
            seed=asked.seed + number,
        )

    def _grammar(self, request: AnyRequest) -> str:
        """Return the Lark term of what ``request`` allows; empty: any text."""
        if not isinstance(request, ChatRequest):
            return ""
        form = self.renderer.call_form
        functions = [tool["function"] for tool in request.tools]
        terms = [json_grammar(request.schema)] if request.schema is not None and not request.required else []
        try:
            if request.required:
                terms = [call_grammar(form, [each for each in functions if each["name"] in request.required])]
            elif terms and functions:
                terms.append(call_grammar(form, functions))
        except ConfigError as error:
            raise RequestError(str(error), code=UNSUPPORTED) from None
        return " | ".join(terms)


class PolicyModel(SampledModel):
    """A policy of this process."""

    def __init__(
        self, policy: Sampler, renderer: ChatRenderer, max_len_tokens: int, default_reply_tokens: int = 512
    ) -> None:
        """Serve ``policy``; ``default_reply_tokens`` bounds the replies to requests that set no bound."""
        super().__init__(renderer, max_len_tokens, default_reply_tokens)
        self._policy = policy
        self._compiler: GrammarCompiler | None = None
        self._numbers = itertools.count()

    async def _generate(self, request: AnyRequest, number: int, prompt_ids: list[int], growth: Growth) -> Generation:
        shaping = await self._shaping(request)
        session_id = f"serve/{next(self._numbers)}"
        sampling = self._sampling(request.sampling, number, len(prompt_ids))
        try:
            return await self._policy.generate_shaped(session_id, prompt_ids, sampling, shaping, growth.watch)
        finally:
            await self._policy.end_session(session_id)

    async def _shaping(self, request: AnyRequest) -> Shaping | None:
        asked = request.sampling
        shaping = Shaping(
            mask=await asyncio.to_thread(self._mask, self._grammar(request)),
            logit_bias=asked.logit_bias,
            presence_penalty=asked.presence_penalty,
            frequency_penalty=asked.frequency_penalty,
            top_k=max(asked.top_k, 0),
            top_p=asked.top_p,
            num_top=asked.num_top_log_probs,
        )
        return None if shaping == Shaping() else shaping

    def _mask(self, grammar: str) -> GrammarMask | None:
        """Return a mask at the start of ``grammar``; None: any text."""
        if not grammar:
            return None
        try:
            if self._compiler is None:
                self._compiler = GrammarCompiler(self.renderer)
            return self._compiler.compile(grammar)
        except ConfigError as error:
            raise RequestError(str(error), code=UNSUPPORTED) from None


class ScriptModel(ServedModel):
    """A script that gets the whole conversation each time and keeps no state; text clients ignore its tokens."""

    def __init__(self, answer: Answer, renderer: ChatRenderer) -> None:
        super().__init__(renderer, max_remembered=0)
        self._answer = answer

    async def _generate(self, request: AnyRequest, number: int, prompt_ids: list[int], growth: Growth) -> Generation:
        if isinstance(request, ChatRequest):
            if request.schema is not None:
                raise RequestError("a script's answers keep to no schema", code=UNSUPPORTED)
            conversation, tools = to_conversation(request.messages, HERMES), request.tools
        else:
            conversation, tools = self.renderer.messages(prompt_ids), ()
        whole = self.renderer.action_ids(self._answer(conversation, tools))
        ids = whole[: request.sampling.max_tokens]
        return Generation(
            token_ids=tuple(ids),
            log_probs=(0.0,) * len(ids),
            is_stopped=len(ids) == len(whole),
            policy_version=UNKNOWN_VERSION,
        )

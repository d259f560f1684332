"""A model on another server of token ids, vLLM, behind our dialects.

Reads requests; asks the server's ``completions`` for a stream of tokens behind the exact prompt. Guarantees: ids and
log-probabilities are those that the server reports; the server stops when the client goes away or a stop text is
reached; an answer whose log-probabilities may not be those of the sampled distribution has no version of the weights.
"""

from typing import Any

from repairgym.errors import ModelServerError, PromptTooLongError, ServerDownError, ServerRejectedError
from repairgym.inference.base import Generation
from repairgym.inference.engine.shaping import TopTokens
from repairgym.inference.grammar import bound_schema
from repairgym.inference.renderer import ChatRenderer
from repairgym.inference.vllm.server import TokenServer
from repairgym.ledger import UNKNOWN_VERSION
from repairgym.serving.models import Growth, SampledModel
from repairgym.serving.records import AnyRequest, ChatRequest, RequestError, changes_of

_CLIENTS_FAULT = (400, 413, 422)


class UpstreamModel(SampledModel):
    """The model of a `TokenServer`."""

    def __init__(
        self, server: TokenServer, renderer: ChatRenderer, max_len_tokens: int, default_reply_tokens: int = 512
    ) -> None:
        """``renderer`` has the tokenizer of the server's model, ``max_len_tokens`` is the server's context."""
        super().__init__(renderer, max_len_tokens, default_reply_tokens)
        self._server = server

    async def _generate(self, request: AnyRequest, number: int, prompt_ids: list[int], growth: Growth) -> Generation:
        try:
            return await self._stream(request, number, prompt_ids, growth)
        except PromptTooLongError as error:
            raise RequestError(str(error), code="context_length_exceeded") from None
        except ServerRejectedError as error:
            is_own = error.status in _CLIENTS_FAULT
            raise RequestError(str(error), status=400 if is_own else 502, code="upstream_rejected") from None
        except ModelServerError as error:
            status = 503 if isinstance(error, ServerDownError) else 502
            raise RequestError(str(error), status=status, code="upstream_failed") from None

    async def _stream(self, request: AnyRequest, number: int, prompt_ids: list[int], growth: Growth) -> Generation:
        asked = request.sampling
        sampling = self._sampling(asked, number, len(prompt_ids))
        ids, log_probs, tops = list[int](), list[float](), list[TopTokens]()
        is_stopped = False
        async with self._server.stream(prompt_ids, sampling, self._changes(request), asked.num_top_log_probs) as chunks:
            async for chunk in chunks:
                ids += chunk.token_ids
                log_probs += chunk.log_probs
                tops += chunk.top_tokens
                is_stopped = ids[-1:] != [] and ids[-1] in sampling.stop_token_ids
                growth.top_tokens = tops
                growth.add(ids, log_probs, tops, is_stopped=is_stopped)
                if growth.is_cut:
                    break
        return Generation(
            token_ids=tuple(ids),
            log_probs=tuple(log_probs),
            is_stopped=is_stopped,
            policy_version=UNKNOWN_VERSION if changes_of(request) else 0,
        )

    def _changes(self, request: AnyRequest) -> dict[str, Any]:
        """Return vLLM's fields for what the client changes in the sampled distribution."""
        asked = request.sampling
        fields: dict[str, Any] = {
            "top_p": asked.top_p,
            "top_k": asked.top_k if asked.top_k > 0 else -1,
            "presence_penalty": asked.presence_penalty,
            "frequency_penalty": asked.frequency_penalty,
        }
        if asked.logit_bias:
            fields["logit_bias"] = {str(token_id): bias for token_id, bias in asked.logit_bias.items()}
        grammar = self._grammar(request)
        if isinstance(request, ChatRequest) and request.schema is not None and not request.tools:
            # In the form that all of vLLM's libraries read; calls are grammars in Lark's form.
            fields["structured_outputs"] = {"json": bound_schema(request.schema)}
        elif grammar:
            fields["structured_outputs"] = {"grammar": f"start: {grammar}"}
        return fields

"""The model of a verifiers rollout as a policy: text to and from its interception server.

Reads prompts as token ids; makes `Generation` records. Guarantees: every call uses the rollout's endpoint, so verifiers
records it, with the sampling of its run; a temporary failure is retried here, as verifiers leaves that to a harness,
under one idempotency key, so no turn is sampled or recorded twice; the tokens of our record are encoded here and marked
`UNKNOWN_VERSION`, a trainer learns from verifiers' own tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any
from uuid import uuid4

from repairgym.errors import ModelServerError, PromptTooLongError, ServerRefusedError
from repairgym.inference.base import Generation, SamplingParams
from repairgym.inference.endpoint import EndpointClient
from repairgym.inference.openai import request_fields
from repairgym.inference.renderer import ChatRenderer
from repairgym.inference.replies import Reply, read_chat_reply
from repairgym.ledger import UNKNOWN_VERSION


class InterceptedPolicy:
    """A :class:`~repairgym.inference.base.Policy` for one rollout."""

    def __init__(self, client: EndpointClient, renderer: ChatRenderer, is_stopped: Callable[[], bool]) -> None:
        """Use the model of ``client``.

        Args:
            client: Of the rollout's endpoint, with its secret.
            renderer: Turns prompts into messages and replies into tokens of the record.
            is_stopped: Tells whether a limit or stop condition of verifiers has ended the rollout.
        """
        self.id = client.config.model
        self._client = client
        self._renderer = renderer
        self._is_stopped = is_stopped

    async def generate(self, session_id: str, prompt_ids: list[int], sampling: SamplingParams) -> Generation:
        """Return the model's next message.

        Raises:
            PromptTooLongError: verifiers has ended the rollout, or no room is left: the current state is graded.
            ModelServerError: no usable reply.
        """
        messages = [{"role": role, "content": text} for role, text in self._renderer.messages(prompt_ids)]
        body = request_fields(self._client.config, sampling) | {"messages": messages}
        num_tokens = len(prompt_ids) + sampling.max_tokens
        key = {"Idempotency-Key": uuid4().hex}
        try:
            reply = (await self._client.ask("chat/completions", body, _read, num_tokens, key)).reply
        except ServerRefusedError as error:
            if self._is_stopped():
                raise PromptTooLongError("verifiers has ended the rollout") from error
            # Ends this rollout and not the run: verifiers has the provider's error and decides.
            raise ModelServerError(str(error)) from error
        ids = self._renderer.action_ids(reply.text)
        ids = ids if reply.is_stopped else ids[:-1]
        return Generation(
            token_ids=tuple(ids),
            log_probs=(0.0,) * len(ids),
            is_stopped=reply.is_stopped,
            policy_version=UNKNOWN_VERSION,
        )

    async def end_session(self, session_id: str) -> None:
        """Nothing is kept for a session."""


def _read(body: Mapping[str, Any]) -> Reply:
    """Read a reply without its token counts: verifiers counts and bounds tokens itself."""
    return read_chat_reply({**body, "usage": None}, 0)

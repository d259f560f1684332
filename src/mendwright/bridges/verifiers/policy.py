"""The model of a verifiers rollout as a policy: text to and from its interception server.

Reads prompts as token ids; makes `Generation` records. Invariants: every call goes through the rollout's endpoint, so
that verifiers records it, with the sampling of its run; the tokens of our record are encoded here and marked
`UNKNOWN_VERSION`, those that a trainer learns from are verifiers' own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx2

from mendwright.errors import ModelReplyError, ModelServerError, PromptTooLongError
from mendwright.ledger import UNKNOWN_VERSION
from mendwright.models.base import Generation, Sampling
from mendwright.models.renderer import ChatRenderer

_MAX_SHOWN_CHARS = 300


class InterceptedPolicy:
    """A :class:`~mendwright.models.base.Policy` for one rollout. verifiers tries failed calls again, this does not."""

    def __init__(
        self, client: httpx2.AsyncClient, model: str, renderer: ChatRenderer, is_stopped: Callable[[], bool]
    ) -> None:
        """Ask ``model``.

        Args:
            client: Of the rollout's endpoint, with its secret.
            model: Name of the run's model.
            renderer: Turns prompts into messages and replies into tokens of the record.
            is_stopped: Whether a limit or stop condition of verifiers has ended the rollout.
        """
        self.id = model
        self._client = client
        self._renderer = renderer
        self._is_stopped = is_stopped

    async def generate(self, session_id: str, prompt_ids: list[int], sampling: Sampling) -> Generation:
        """The model's next message.

        Raises:
            PromptTooLongError: verifiers has ended the rollout: what there is will be graded.
            ModelServerError: no usable reply.
        """
        messages = [{"role": role, "content": text} for role, text in self._renderer.messages(prompt_ids)]
        body = {"model": self.id, "messages": messages, "temperature": sampling.temperature}
        text, is_stopped = _read(await self._post(body | {"max_tokens": sampling.max_tokens}))
        ids = self._renderer.action_ids(text)
        ids = ids if is_stopped else ids[:-1]
        return Generation(
            token_ids=tuple(ids),
            log_probs=(0.0,) * len(ids),
            is_stopped=is_stopped,
            policy_version=UNKNOWN_VERSION,
        )

    async def end_session(self, session_id: str) -> None:
        """Nothing is kept for a session."""

    async def _post(self, body: dict[str, Any]) -> dict[str, Any]:
        try:
            response = await self._client.post("chat/completions", json=body)
        except httpx2.HTTPError as error:
            raise ModelServerError(f"the interception server does not answer ({type(error).__name__})") from error
        if response.status_code == 200:
            reply: dict[str, Any] = response.json()
            return reply
        if self._is_stopped():
            raise PromptTooLongError("verifiers has ended the rollout")
        raise ModelServerError(f"status {response.status_code}: {response.text[:_MAX_SHOWN_CHARS]}")


def _read(reply: dict[str, Any]) -> tuple[str, bool]:
    """(text, whether the model itself ended it)."""
    try:
        choice = reply["choices"][0]
        return choice["message"].get("content") or "", choice["finish_reason"] == "stop"
    except (KeyError, IndexError, TypeError, AttributeError) as error:
        raise ModelReplyError(f"a reply without a message: {str(reply)[:_MAX_SHOWN_CHARS]}") from error

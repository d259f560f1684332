"""verl's servers as one of our policies: token ids in, token ids with log-probabilities and a version out.

Calls the `generate` of verl 0.9.1's `LLMServerClient`; makes `Generation` records. Guarantees: every sampling parameter
is explicit; a reply without the data that learning needs is a server error, never an answer. Imports no verl.
"""

import time
from collections.abc import Mapping
from typing import Any, Protocol

from repairgym.errors import ConfigError, ModelReplyError, ModelServerError, RepairGymError
from repairgym.inference.base import Generation, SamplingParams

PLAIN_SAMPLING: dict[str, Any] = {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "repetition_penalty": 1.0}
"""Sampling parameters of RL (paper B, section 5.2, finding 2), under verl's names."""


class TokenOutput(Protocol):
    """A reply of verl's servers (`verl.workers.rollout.replica.TokenOutput`)."""

    token_ids: list[int]
    log_probs: list[float] | None
    stop_reason: str | None
    extra_fields: dict[str, Any]


class TokenClient(Protocol):
    """A client of verl's servers (`verl.workers.rollout.llm_server.LLMServerClient`)."""

    async def generate(self, request_id: str, *, prompt_ids: list[int], sampling_params: dict[str, Any]) -> TokenOutput:
        """Continue ``prompt_ids``; requests with one id go to one server, whose prefix cache then hits."""
        ...


def require_plain_sampling(parameters: Mapping[str, Any]) -> None:
    """Check the sampling parameters of verl's trainer.

    Raises:
        ConfigError: they are not those of the plain policy at temperature 1.
    """
    wrong = {key: parameters[key] for key, value in PLAIN_SAMPLING.items() if parameters.get(key, value) != value}
    if wrong:
        raise ConfigError(
            f"verl requests {wrong}, expected {PLAIN_SAMPLING}: the learner needs the log-probabilities of the plain "
            "policy. Write the configuration with `repairgym verl config`"
        )


class ServerPolicy:
    """A :class:`~repairgym.inference.base.Policy` over verl's servers."""

    def __init__(self, client: TokenClient, policy_id: str = "verl") -> None:
        """Send requests to ``client``."""
        self.id = policy_id
        self._client = client

    async def generate(self, session_id: str, prompt_ids: list[int], sampling: SamplingParams) -> Generation:
        """Continue ``prompt_ids``.

        Raises:
            ModelServerError: the servers failed, or their reply cannot be learned from.
        """
        started_at_s = time.monotonic()
        parameters = PLAIN_SAMPLING | {
            "temperature": sampling.temperature,
            "logprobs": True,
            "max_tokens": sampling.max_tokens,
            "stop_token_ids": list(sampling.stop_token_ids),
            "seed": sampling.seed % (1 << 31),
        }
        try:
            output = await self._client.generate(session_id, prompt_ids=list(prompt_ids), sampling_params=parameters)
        except RepairGymError:
            raise
        except Exception as error:  # Ray wraps what a server raises, and its own death, in classes of its own
            raise ModelServerError(f"verl's servers failed: {' '.join(str(error).split())[-300:]}") from error
        return self._read(output, sampling, time.monotonic() - started_at_s)

    async def end_session(self, session_id: str) -> None:
        """Nothing to end: verl's servers keep what their caches have room for."""

    def _read(self, output: TokenOutput, sampling: SamplingParams, elapsed_s: float) -> Generation:
        ids, log_probs, version = output.token_ids, output.log_probs, output.extra_fields.get("global_steps")
        problem = ""
        if not ids or len(ids) > sampling.max_tokens:
            problem = f"{len(ids)} tokens ({output.stop_reason}), expected 1 to {sampling.max_tokens}"
        elif log_probs is None or len(log_probs) != len(ids):
            problem = f"{len(ids)} tokens with {len(log_probs or [])} log-probabilities"
        elif version is None:
            problem = "tokens without the version of the weights (global_steps)"
        if problem:
            raise ModelReplyError(f"verl's server answered with {problem}")
        assert log_probs is not None
        assert version is not None
        return Generation(
            token_ids=tuple(ids),
            log_probs=tuple(log_probs),
            is_stopped=ids[-1] in sampling.stop_token_ids,
            policy_version=int(version),
            decode_s=elapsed_s,
        )

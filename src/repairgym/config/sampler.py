"""What samples the episodes of RL: the embedded engine, or vLLM with weights pushed after every update.

Read by `recipes/`; imports no torch. Invariant: what cannot be honoured here is refused before anything is sampled.
"""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, PositiveFloat, model_validator

from repairgym.config.endpoint import EndpointConfig
from repairgym.records import Record


class EmbeddedSamplerConfig(Record):
    """The engine of each rollout worker (`rollout.engine`)."""

    type: Literal["embedded"] = "embedded"


class VllmSamplerConfig(Record):
    """Servers of vLLM that hold the weights of the policy."""

    type: Literal["vllm"] = "vllm"
    endpoint: EndpointConfig = EndpointConfig()
    transfer: Literal["folder", "lora", "nccl", "ipc"] = "folder"
    """How weights get there. ``folder``: the servers read the model folder that the learner saved, so they must see the
    run folder. ``lora``: they read its adapter and replace the one before in place (`algorithm.trained.type="lora"`).
    ``nccl`` and ``ipc``: from GPU to GPU, refused in this version."""
    adapter_name: str = "repairgym"
    """Name of the adapter in the servers, with ``lora``."""
    pause: Literal["keep", "wait"] = "keep"
    """What becomes of requests that run when weights arrive. ``keep``: they go on with the new weights, their keys and
    values computed again, so each token has the log-probability of one version. ``wait``: they end first."""
    max_log_prob_gap: PositiveFloat = 1e-3
    """Largest mean distance, in nats per token, between the servers' and the learner's log-probabilities of the probe;
    a larger one stops the run. Float32 servers are within 1e-5; bfloat16 needs about 0.02."""
    num_probe_tokens: int = Field(default=64, ge=2)
    """Length of the probe, a fixed sequence of random tokens."""

    @model_validator(mode="after")
    def _adapter_is_not_the_model(self) -> Self:
        if self.transfer == "lora" and self.adapter_name == self.endpoint.model:
            raise ValueError(f"adapter_name={self.adapter_name!r} is the name of the model itself; take another one")
        return self


SamplerConfig = Annotated[EmbeddedSamplerConfig | VllmSamplerConfig, Field(discriminator="type")]

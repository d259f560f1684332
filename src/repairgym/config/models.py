"""Models, the embedded engine, the teacher's noise and the samplers.

Read by `models/` and `engine/`; imports neither. Invariants: frozen; every size is positive; imports no torch.
"""

from typing import Annotated, Literal, Self

from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from repairgym.config.endpoint import EndpointConfig
from repairgym.records import Record

DtypeName = Literal["float32", "bfloat16"]


class ModelConfig(Record):
    """A causal LM of the Qwen3 architecture, trained from scratch (design decision 9)."""

    vocab_size: PositiveInt = 2048
    hidden_size: PositiveInt = 192
    num_layers: PositiveInt = 4
    num_heads: PositiveInt = 4
    num_kv_heads: PositiveInt = 2
    head_dim: PositiveInt = 48
    intermediate_size: PositiveInt = 512
    max_len_tokens: PositiveInt = 1024
    rope_theta: float = 10_000.0
    is_tied: bool = True
    """Input and output embeddings are one matrix."""
    seed: int = 0

    @model_validator(mode="after")
    def _heads_divide(self) -> Self:
        if self.num_heads % self.num_kv_heads:
            raise ValueError(
                f"num_heads={self.num_heads} is no multiple of num_kv_heads={self.num_kv_heads}; "
                "grouped-query attention needs equal groups"
            )
        return self


class EngineConfig(Record):
    """Bounds of the embedded inference engine."""

    num_slots: PositiveInt = 64
    """Sessions in the KV cache at one time; more sessions evict the least recently used."""
    max_len_tokens: PositiveInt = 1024
    """Longest prompt plus completion."""
    prefill_tokens: PositiveInt = 2048
    """Padded tokens of one prefill forward; longer prompts are computed in chunks."""
    min_share_tokens: PositiveInt = 16
    """Shortest common prefix that is copied or waited for; a shorter one is recomputed."""
    admit_fraction: float = Field(default=0.125, ge=0.0, le=1.0)
    """New requests wait until they are this share of the running rows ..."""
    admit_wait_steps: int = Field(default=3, ge=0)
    """... or until this many decode steps have passed."""
    is_batch_invariant: bool = False
    """Compute every session alone and without prefix sharing. Results are then bitwise equal, independent of other
    sessions and of interruptions (CPU, one thread). Several times slower."""


class TeacherNoise(Record):
    """Probabilities of the teacher's choices."""

    knows_fix: float = 0.45
    """An edit is the true repair; otherwise it is a guess among the window's editable tokens."""
    mistypes: float = 0.06
    """An edit names a wrong line first."""
    misreads: float = 0.0
    """An edit first replaces a token outside the window, of the same kind as the intended token."""
    tests: float = 0.5
    """After an edit it runs the tests; otherwise it submits blind."""
    undoes: float = 0.85
    """After a failed run it undoes the edit; otherwise it edits on top."""
    gives_up: float = 0.15
    """After a failed run it submits the current state."""


class EmbeddedSamplerConfig(Record):
    """The engine of each rollout worker (`rollout.engine`)."""

    type: Literal["embedded"] = "embedded"


class VllmSamplerConfig(Record):
    """vLLM servers that hold the weights of the policy."""

    type: Literal["vllm"] = "vllm"
    endpoint: EndpointConfig = EndpointConfig()
    transfer: Literal["folder", "lora", "nccl", "ipc"] = "folder"
    """Transfer of weights. ``folder``: the servers read the learner's saved model folder, so they need access to the
    run folder. ``lora``: they read its adapter and replace the previous one (`algorithm.trained.type="lora"`).
    ``nccl`` and ``ipc``: from GPU to GPU; not supported in this version."""
    adapter_name: str = "repairgym"
    """Name of the adapter in the servers, with ``lora``."""
    pause: Literal["keep", "wait"] = "keep"
    """Treatment of running requests when weights arrive. ``keep``: they continue with the new weights and recomputed
    keys and values, so each token has the log-probability of one version. ``wait``: they finish first."""
    max_log_prob_gap: PositiveFloat = 1e-3
    """Largest mean distance, in nats per token, between the servers' and the learner's log-probabilities of the probe;
    a larger one stops the run. Float32 servers are within 1e-5; bfloat16 needs about 0.02."""
    num_probe_tokens: int = Field(default=64, ge=2)
    """Length of the probe, a fixed sequence of random tokens."""

    @model_validator(mode="after")
    def _adapter_is_not_the_model(self) -> Self:
        if self.transfer == "lora" and self.adapter_name == self.endpoint.model:
            raise ValueError(f"adapter_name={self.adapter_name!r} is the name of the model itself; choose another name")
        return self


SamplerConfig = Annotated[EmbeddedSamplerConfig | VllmSamplerConfig, Field(discriminator="type")]

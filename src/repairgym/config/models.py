"""Models, the embedded engine, the teacher's noise, model servers and the samplers.

Invariants: an endpoint holds the name of the environment variable of a key, never the key; its limits hold for a whole
command, and each worker takes its share. Imports no torch.
"""

from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from repairgym.errors import ConfigError
from repairgym.records import Record

_OWN_FIELDS = frozenset({"model", "messages", "prompt", "stream", "n", "temperature", "seed", "max_tokens", "stop"})
LOOPBACK = ("localhost", "127.0.0.1", "::1")
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
    """Bounds of the embedded inference engine; servers have bounds of their own."""

    num_slots: PositiveInt = 64
    """Sessions in the KV cache at one time; more sessions evict the least recently used."""
    max_len_tokens: PositiveInt = 1024
    """Longest prompt plus completion; at least `rollout.pipeline.max_len_tokens`."""
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

    def require_room(self, num_tokens: int) -> None:
        """Raise a `ConfigError` where episodes of ``num_tokens`` are longer than what the engine keeps."""
        if num_tokens > self.max_len_tokens:
            raise ConfigError(
                f"rollout.pipeline.max_len_tokens={num_tokens} is more than the embedded engine keeps; set "
                f"rollout.engine.max_len_tokens (now {self.max_len_tokens}) to at least as much"
            )


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


class Price(Record):
    """Price of one model, in US dollars per million tokens."""

    input_usd: NonNegativeFloat
    cached_input_usd: NonNegativeFloat | None = None
    """Price of prompt tokens that the server reports as cached; not set: as ``input_usd``."""
    output_usd: NonNegativeFloat

    def cost_usd(self, num_prompt_tokens: int, num_cached_tokens: int, num_reply_tokens: int) -> float:
        """Return the cost of one reply; ``num_cached_tokens`` are part of the prompt tokens."""
        cached_usd = self.input_usd if self.cached_input_usd is None else self.cached_input_usd
        fresh = num_prompt_tokens - num_cached_tokens
        total = fresh * self.input_usd + num_cached_tokens * cached_usd + num_reply_tokens * self.output_usd
        return total / 1_000_000


class EndpointConfig(Record):
    """A server with OpenAI's protocol, and the model on it."""

    base_url: str = ""
    """Address with the version, e.g. ``http://127.0.0.1:8000/v1``."""
    replicas: tuple[str, ...] = ()
    """Further servers with the same model, each as ``base_url`` (policy ``vllm`` only). An episode stays on one server,
    so that its prefix cache hits, and moves to another only when that server is down."""
    model: str = ""
    """Name of the model on the server."""
    api: Literal["chat", "completions"] = "chat"
    """API of the policy ``openai``; ``vllm`` always sends token ids to ``completions``."""
    api_key_env: str = "OPENAI_API_KEY"
    """Environment variable that holds the key; without a value requests have no key."""
    is_plain_http_allowed: bool = False
    """Allow a key to be sent over ``http://`` to another machine."""
    has_seed: bool = True
    """Send the seed of each turn; some servers reject the parameter."""
    max_tokens_name: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    """Request field of the bound on a reply."""
    reasoning: Literal["dropped", "kept"] = "dropped"
    """Treatment of a thought that the server sends separately (``reasoning_content``). ``kept``: write it before the
    message in ``<think>`` tags; the pipeline's ``thinking`` must then allow it."""
    extra: dict[str, Any] = Field(default_factory=dict)
    """Additional fields of each request, as the server documents them, e.g. ``reasoning_effort``."""
    timeout_s: PositiveFloat = 600.0
    """Longest time from a request to the end of its reply."""
    connect_timeout_s: PositiveFloat = 10.0
    max_attempts: PositiveInt = 6
    """Largest number of requests for one reply."""
    backoff_s: NonNegativeFloat = 1.0
    """Longest wait before the second attempt; doubles with each attempt. The actual wait is a random part of it."""
    max_backoff_s: NonNegativeFloat = 60.0
    max_retry_after_s: NonNegativeFloat = 300.0
    """Longest ``Retry-After`` to wait for; a longer one is an error."""
    max_concurrent: PositiveInt = 16
    """Requests at one time to each server; more requests wait, and the wait counts as queue time."""
    requests_per_minute: NonNegativeInt = 0
    """0: no limit."""
    tokens_per_minute: NonNegativeInt = 0
    """Prompt and reply tokens together; 0: no limit."""
    prices: dict[str, Price] = Field(default_factory=dict)
    """Model name -> price; a model without a price is free."""

    @model_validator(mode="after")
    def _can_be_asked(self) -> Self:
        for name, url in (("base_url", self.base_url), *(("replicas", replica) for replica in self.replicas)):
            if (url or name == "replicas") and urlsplit(url).scheme not in ("http", "https"):
                raise ValueError(f"{name}: {url!r} is no http:// or https:// address")
            if "@" in urlsplit(url).netloc:
                raise ValueError(f"{name} holds a name or a password; put the key into the variable of api_key_env")
        if len({self.base_url, *self.replicas}) <= len(self.replicas):
            raise ValueError(f"replicas names a server twice: {self.base_url}, {', '.join(self.replicas)}")
        if own := sorted(_OWN_FIELDS & set(self.extra)):
            raise ValueError(f"extra sets {', '.join(own)}, which the policy sets itself; leave it out")
        return self

    @property
    def is_local(self) -> bool:
        """True when the server runs on this machine."""
        return urlsplit(self.base_url).hostname in LOOPBACK

    @property
    def is_encrypted(self) -> bool:
        """True when the connection does not expose a key."""
        return urlsplit(self.base_url).scheme == "https" or self.is_local

    def require_server(self) -> None:
        """Raise a `ConfigError` where the server or the model is not named."""
        if not self.base_url or not self.model:
            raise ConfigError(
                "a model server needs endpoint.base_url and endpoint.model, e.g. "
                "endpoint.base_url=http://127.0.0.1:8000/v1 endpoint.model=NAME"
            )

    def servers(self) -> list[Self]:
        """Return one configuration per server: ``base_url`` and the replicas."""
        urls = (self.base_url, *self.replicas)
        return [self.model_copy(update={"base_url": url, "replicas": ()}) for url in urls]

    def require_one_server(self) -> None:
        """Raise a `ConfigError` where there are replicas, which only the policy ``vllm`` uses."""
        if self.replicas:
            raise ConfigError(
                f"endpoint.replicas has {len(self.replicas)} servers, and only the policy vllm asks several; leave it "
                "out, or put a proxy in front of them"
            )

    def share_of(self, num_processes: int) -> Self:
        """Return the limits of one of ``num_processes`` processes that run at the same time."""
        limits = ("max_concurrent", "requests_per_minute", "tokens_per_minute")
        return self.model_copy(update={name: -(-getattr(self, name) // num_processes) for name in limits})


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

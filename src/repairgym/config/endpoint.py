"""Model servers: addresses, request options, limits and prices.

Reads nothing, makes :class:`EndpointConfig`. Invariants: holds the name of the environment variable of a key, never the
key; limits hold for a whole command, and each worker takes its share.
"""

from typing import Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from repairgym.errors import ConfigError
from repairgym.records import Record

_OWN_FIELDS = frozenset({"model", "messages", "prompt", "stream", "n", "temperature", "seed", "max_tokens", "stop"})
_LOOPBACK = ("localhost", "127.0.0.1", "::1")


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
        return urlsplit(self.base_url).hostname in _LOOPBACK

    @property
    def is_encrypted(self) -> bool:
        """True when the connection does not expose a key."""
        return urlsplit(self.base_url).scheme == "https" or self.is_local

    def require_server(self) -> None:
        """Reject a configuration without a server or a model.

        Raises:
            ConfigError: one of them is missing.
        """
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
        """Reject replicas where they cannot be used.

        Raises:
            ConfigError: there are replicas.
        """
        if self.replicas:
            raise ConfigError(
                f"endpoint.replicas has {len(self.replicas)} servers, and only the policy vllm asks several; leave it "
                "out, or put a proxy in front of them"
            )

    def share_of(self, num_processes: int) -> Self:
        """Return the limits of one of ``num_processes`` processes that run at the same time."""

        def share(limit: int) -> int:
            return -(-limit // num_processes)

        return self.model_copy(
            update={
                "max_concurrent": share(self.max_concurrent),
                "requests_per_minute": share(self.requests_per_minute),
                "tokens_per_minute": share(self.tokens_per_minute),
            }
        )

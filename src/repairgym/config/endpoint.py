"""Where a model is served by somebody else, and how it is asked.

Reads nothing, makes :class:`EndpointConfig`. Invariants: no key is ever a value here, only the name of the environment
variable that holds it; limits are those of a whole command, each worker takes its share.
"""

from __future__ import annotations

from typing import Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from repairgym.errors import ConfigError
from repairgym.records import Record

_OWN_FIELDS = frozenset({"model", "messages", "prompt", "stream", "n", "temperature", "seed", "max_tokens", "stop"})
_LOOPBACK = ("localhost", "127.0.0.1", "::1")


class Price(Record):
    """What a provider charges for one model, in US dollars per million tokens."""

    input_usd: NonNegativeFloat
    cached_input_usd: NonNegativeFloat | None = None
    """Of prompt tokens that the server says it had cached; not set: as ``input_usd``."""
    output_usd: NonNegativeFloat

    def cost_usd(self, num_prompt_tokens: int, num_cached_tokens: int, num_reply_tokens: int) -> float:
        """Of one reply; ``num_cached_tokens`` are part of the prompt tokens."""
        cached_usd = self.input_usd if self.cached_input_usd is None else self.cached_input_usd
        fresh = num_prompt_tokens - num_cached_tokens
        total = fresh * self.input_usd + num_cached_tokens * cached_usd + num_reply_tokens * self.output_usd
        return total / 1_000_000


class EndpointConfig(Record):
    """A server that speaks OpenAI's protocol, and the model on it."""

    base_url: str = ""
    """With the version, e.g. ``http://127.0.0.1:8000/v1``."""
    replicas: tuple[str, ...] = ()
    """More servers with the same model, each as ``base_url`` (policy ``vllm`` only). An episode stays with one of them,
    so that its prefix cache hits, and goes to another only when its own is down."""
    model: str = ""
    """Name under which the server knows the model."""
    api: Literal["chat", "completions"] = "chat"
    """Of the policy ``openai``; ``vllm`` always sends token ids to ``completions``."""
    api_key_env: str = "OPENAI_API_KEY"
    """Environment variable that holds the key; without a value the request carries none."""
    is_plain_http_allowed: bool = False
    """Send a key over ``http://`` to another machine."""
    has_seed: bool = True
    """Send the seed of each turn; some servers refuse the parameter."""
    max_tokens_name: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    """What the server calls the bound on a reply."""
    reasoning: Literal["dropped", "kept"] = "dropped"
    """What happens to a thought that the server sends apart from the message (``reasoning_content``): ``kept`` writes
    it before the message in ``<think>`` tags; the pipeline's ``thinking`` must then know of it."""
    extra: dict[str, Any] = Field(default_factory=dict)
    """More fields of each request, as the server documents them, e.g. ``reasoning_effort``."""
    timeout_s: PositiveFloat = 600.0
    """From a request to the end of its reply."""
    connect_timeout_s: PositiveFloat = 10.0
    max_attempts: PositiveInt = 6
    """Requests for one reply."""
    backoff_s: NonNegativeFloat = 1.0
    """Longest wait before the second attempt; it doubles with each further one, and a random part of it is left out."""
    max_backoff_s: NonNegativeFloat = 60.0
    max_retry_after_s: NonNegativeFloat = 300.0
    """A server that asks for a longer wait (``Retry-After``) is given up."""
    max_concurrent: PositiveInt = 16
    """Requests at one time, to each server; more wait here, and their waiting counts as time in the queue."""
    requests_per_minute: NonNegativeInt = 0
    """0: no limit."""
    tokens_per_minute: NonNegativeInt = 0
    """Prompt and reply together; 0: no limit."""
    prices: dict[str, Price] = Field(default_factory=dict)
    """Cost table by model name; a model that is not in it counts as free."""

    @model_validator(mode="after")
    def _can_be_asked(self) -> Self:
        for name, url in (("base_url", self.base_url), *(("replicas", one) for one in self.replicas)):
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
        """True when nobody on the way can read a key."""
        return urlsplit(self.base_url).scheme == "https" or self.is_local

    def require_server(self) -> None:
        """Refuse a configuration that names no server or no model.

        Raises:
            ConfigError: it does not.
        """
        if not self.base_url or not self.model:
            raise ConfigError(
                "a model server needs endpoint.base_url and endpoint.model, e.g. "
                "endpoint.base_url=http://127.0.0.1:8000/v1 endpoint.model=NAME"
            )

    def servers(self) -> list[Self]:
        """One configuration per server: ``base_url`` and the replicas."""
        urls = (self.base_url, *self.replicas)
        return [self.model_copy(update={"base_url": url, "replicas": ()}) for url in urls]

    def require_one_server(self) -> None:
        """Refuse replicas where there is no way to use them.

        Raises:
            ConfigError: there are some.
        """
        if self.replicas:
            raise ConfigError(
                f"endpoint.replicas has {len(self.replicas)} servers, and only the policy vllm asks several; leave it "
                "out, or put a proxy in front of them"
            )

    def share_of(self, num_processes: int) -> Self:
        """The limits of one of ``num_processes`` processes that ask at the same time."""

        def share(limit: int) -> int:
            return -(-limit // num_processes)

        return self.model_copy(
            update={
                "max_concurrent": share(self.max_concurrent),
                "requests_per_minute": share(self.requests_per_minute),
                "tokens_per_minute": share(self.tokens_per_minute),
            }
        )

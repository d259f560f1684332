"""`repairgym serve`: where it listens, how much it takes on, what it serves.

Reads nothing, makes :class:`ServeConfig`. Invariant: only the name of the variable that holds a token is here.
"""

from __future__ import annotations

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt

from repairgym.config.models import EngineConfig
from repairgym.config.pipeline import AnyPipelineConfig, PipelineConfig
from repairgym.records import Record

LOOPBACK = ("127.0.0.1", "::1", "localhost")


class ShellScriptConfig(Record):
    """How the scripts ``shell-oracle`` and ``shell-submit`` speak to an agent that runs shell commands.

    The defaults are what mini-swe-agent 2 expects.
    """

    submit_command: str = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT && git add -A && git diff --cached"
    """The command that hands in; an agent that reads the patch itself needs only its first part."""
    fence: str = "mswea_bash_command"
    """Word behind the three backticks around a command, for agents that offer no tool."""


class ServeConfig(Record):
    """`repairgym serve`."""

    host: str = "127.0.0.1"
    """Another address than the loopback one needs a token."""
    port: int = Field(default=8000, ge=0, le=65_535)
    """0: any free one, printed at the start."""
    token_env: str = "REPAIRGYM_SERVE_TOKEN"
    """Environment variable that holds the token of clients; without a value none is asked for."""
    model_name: str = ""
    """Name under which clients know the model; empty: the name of the policy or of the model folder."""
    max_concurrent: PositiveInt = 16
    """Requests that run at one time."""
    max_waiting: NonNegativeInt = 64
    """Requests that wait for one of these places; more are refused with status 429."""
    default_reply_tokens: PositiveInt = 512
    """Of a model's replies to requests that set no bound; scripts say all they have to say."""
    max_body_bytes: PositiveInt = 16 << 20
    drain_s: PositiveFloat = 30.0
    """Time that running requests get when the server is stopped."""
    engine: EngineConfig = EngineConfig()
    pipeline: AnyPipelineConfig = PipelineConfig()
    """Whose actions scripted policies speak."""
    shell: ShellScriptConfig = ShellScriptConfig()


class ViewConfig(Record):
    """`repairgym view`."""

    host: str = "127.0.0.1"
    """Other machines reach another address only with a token."""
    port: int = Field(default=8320, ge=0, le=65_535)
    """0: a free one."""

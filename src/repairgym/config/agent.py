"""The agent of an episode: a pipeline of ours, or a program of others that runs in the sandbox."""

from typing import Annotated, Literal, Self

from pydantic import Field, PositiveInt, model_validator

from repairgym.config.mcp import check_pins
from repairgym.config.pipeline import PipelineConfig
from repairgym.records import Record

_USED = frozenset({
    "max_turns", "max_tool_calls", "max_action_tokens", "max_output_tokens", "max_len_tokens", "max_cost_usd",
    "time_limit_s", "is_unsubmitted_scored", "thinking", "loop_repeats",
})  # fmt: skip


SHELL_SCRIPTS = ("shell-oracle", "shell-submit")
"""Scripts for other people's agents: the repair by shell commands, and immediate submission."""


class PipelineAgentConfig(Record):
    """The episode loop of `rollout.pipeline`."""

    type: Literal["pipeline"] = "pipeline"


class ShellScriptConfig(Record):
    """Commands of the scripts ``shell-oracle`` and ``shell-submit`` for an agent that runs shell commands.

    The defaults are what mini-swe-agent 2 expects.
    """

    submit_command: str = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT && git add -A && git diff --cached"
    """Command that submits; an agent that reads the patch itself needs only its first part. Empty: the script ends with
    a message without a call."""
    fence: str = "mswea_bash_command"
    """Language tag of the code fence around a command, for agents without a shell tool."""


class ExternalAgentConfig(Record):
    """A command line agent as it is, in the sandbox of the task, with the gateway as its model.

    In ``command``, ``prompt``, ``env`` and ``files`` the words ``{issue}``, ``{url}`` (the gateway, without ``/v1``),
    ``{home}``, ``{max_len_tokens}`` and ``{max_action_tokens}`` are replaced. The limits of `rollout.pipeline` hold, a
    model call counts as a turn.
    """

    type: Literal["external"] = "external"
    command: tuple[str, ...] = Field(min_length=1)
    """Program and arguments; it starts in the tree."""
    protocol: Literal["command", "acp"] = "command"
    """``command``: the program gets the issue in ``command`` and ends by itself. ``acp``: it is an agent of the Agent
    Client Protocol; `prompt` is sent to it over standard input, and its turn is the episode."""
    prompt: str = "{issue}"
    """Prompt of an agent with ``protocol="acp"``."""
    env: dict[str, str] = {}
    """More environment variables. ``OPENAI_BASE_URL``, ``OPENAI_API_KEY``, ``ANTHROPIC_BASE_URL`` and
    ``ANTHROPIC_API_KEY`` are set already."""
    files: dict[str, str] = {}
    """Path below the home folder -> text, for agents that are configured by files."""
    requirements: tuple[str, ...] = ()
    """Distributions of the agent from the package index, each ``NAME==VERSION``."""
    npm: tuple[str, ...] = ()
    """Packages of the agent from npm, each ``NAME@VERSION``. Their install scripts do not run."""
    has_git: bool = True
    """The tree is a git repository with one commit."""
    max_output_chars: PositiveInt = 4000
    """End of each output stream that the trajectory keeps."""
    shell: ShellScriptConfig = ShellScriptConfig()
    """Commands of the scripts that can play the model."""

    @model_validator(mode="after")
    def _is_pinned(self) -> Self:
        check_pins(self.requirements, self.npm)
        if self.protocol == "command" and self.prompt != "{issue}":
            raise ValueError("agent.prompt is for protocol='acp'; a command has the prompt among its arguments")
        return self


AgentConfig = Annotated[PipelineAgentConfig | ExternalAgentConfig, Field(discriminator="type")]


def check_unused(pipeline: PipelineConfig) -> None:
    """Raise a `ValueError` for settings of a pipeline that have no effect on an external agent."""
    fields, default = type(pipeline).model_fields, PipelineConfig()
    unused = [name for name in fields if name not in _USED and getattr(pipeline, name) != getattr(default, name, None)]
    if unused:
        raise ValueError(f"agent.type='external': pipeline.{unused[0]} has no effect on it; leave it out")
    if pipeline.thinking == "dropped":
        raise ValueError(
            "agent.type='external': pipeline.thinking='dropped' has no effect, since the agent decides what its "
            "history holds; use 'kept' or 'off'"
        )

"""What a pipeline is: the tools, the first messages, the outer loop around attempts, and what a perfect agent would do.

Reads a `PipelineConfig`; leads episodes. A new pipeline that differs in tools, limits, prompts or formats is a TOML
file; one that opens or leads its episodes otherwise is a subclass and one line of `registry.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Generic, TypeVar

from repairgym.agent.conversation import InitialPrompt
from repairgym.agent.episode import LiveEpisode
from repairgym.agent.formats.base import Action
from repairgym.agent.formats.registry import make_format
from repairgym.agent.prompts import render_prompt
from repairgym.agent.tools.base import ToolContext, ToolServices
from repairgym.agent.tools.registry import make_tools
from repairgym.config.pipeline import PipelineConfig
from repairgym.records import StopReason, Task
from repairgym.sandbox.base import Sandbox

ConfigT = TypeVar("ConfigT", bound=PipelineConfig)


class Pipeline(Generic[ConfigT]):
    """One environment of the agent. Holds nothing of an episode."""

    def __init__(self, config: ConfigT, services: ToolServices) -> None:
        """Make the tools.

        Raises:
            ConfigError: a tool that does not exist.
        """
        self.config = config
        self.tools = make_tools(services)
        self.format = make_format(config.action_format)

    @property
    def is_prepared(self) -> bool:
        """Whether `prepare` does something."""
        return False

    async def prepare(self, sandbox: Sandbox) -> None:
        """What is done in a new sandbox of the agent before its changes are there.

        Raises:
            SandboxError: it cannot be done.
        """

    def open(self, context: ToolContext, **values: Any) -> InitialPrompt:
        """What the agent reads first: the prompts of the configuration, or the report as it is.

        ``values`` is what templates can name besides `prompt_values`.
        """
        values = {**self.prompt_values(context), **values}
        config = self.config
        return InitialPrompt(
            text=render_prompt(config.opening_prompt, **values) if config.opening_prompt else context.task.issue,
            system=render_prompt(config.system_prompt, **values) if config.system_prompt else "",
            demonstration=render_prompt(config.demonstration, **values) if config.demonstration else "",
        )

    def prompt_values(self, context: ToolContext) -> dict[str, Any]:
        """What templates can name: ``issue``, ``task``, ``tools`` (as the format describes them) and ``config``."""
        return {
            "issue": context.task.issue,
            "task": context.task,
            "tools": self.format.describe(self.tools),
            "config": self.config,
        }

    def finish(self, context: ToolContext, text: str) -> str:
        """What the agent reads when a tool or an error says ``text``."""
        return text

    async def conduct(self, live: LiveEpisode) -> StopReason:
        """Lead an episode: one attempt. An outer loop overrides this and calls ``live.attempt`` again.

        Raises:
            SandboxError: the sandbox failed.
        """
        return await live.attempt(self.open(live.context))

    def solve(self, task: Task) -> Iterator[Action]:
        """What an oracle does: the repair by this pipeline's own tools, without the action that submits."""
        raise NotImplementedError(f"the pipeline {self.config.type!r} has no oracle")

    def submission(self) -> Action:
        """The action that hands in what there is."""
        return Action("submit", {})

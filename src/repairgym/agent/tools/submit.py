"""The ``submit`` tool: ends the episode; what the agent changed is the submission."""

from __future__ import annotations

from repairgym.agent.tools.base import NoArguments, Observation, Tool, ToolContext


class SubmitTool(Tool[NoArguments]):
    """``submit``: hand in the current state."""

    name = "submit"
    usage = "submit - hand in the repair and end"
    arguments_type = NoArguments

    async def run(self, context: ToolContext, arguments: NoArguments) -> Observation:
        """End the episode."""
        return Observation(text="submitted", is_final=True)

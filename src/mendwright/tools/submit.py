"""The ``submit`` tool: ends the episode; what the agent changed is the submission."""

from __future__ import annotations

from mendwright.tools.base import Observation, ToolContext


class SubmitTool:
    """``submit``: hand in the current state."""

    name = "submit"
    usage = "submit - hand in the repair and end"

    async def run(self, context: ToolContext, argument: str) -> Observation:
        """End the episode."""
        return Observation(text="submitted", is_final=True)

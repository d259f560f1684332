"""The policy of an episode whose actions a client sends over a connection, one call of a tool after the other.

Reads calls; makes the completions of a policy, and hands back what the environment shows. Guarantees: what is handed
back is the text of the record, never decoded from tokens; nobody sampled the actions, so they have log-probability 0
and no policy version: imitation can learn them, policy gradients cannot.
"""

import asyncio
from collections.abc import Mapping
from typing import Any

from repairgym.agent.conversation import InitialPrompt
from repairgym.agent.formats import Action, ActionFormat
from repairgym.inference.base import Generation, SamplingParams
from repairgym.inference.renderer import ChatRenderer
from repairgym.ledger import UNKNOWN_VERSION
from repairgym.records import Turn


class ClientPolicy:
    """The policy of one episode."""

    def __init__(self, name: str, renderer: ChatRenderer, action_format: ActionFormat) -> None:
        """``name`` stands in the record for whoever decides; ``action_format`` is that of the pipeline."""
        self.id = name
        self._renderer = renderer
        self._format = action_format
        self._actions = asyncio.Queue[str]()
        self._is_ready = asyncio.Event()
        self.opening = ""
        """Text of the first message, below that of the system."""
        self.last: Turn | None = None
        """The latest turn."""

    def opened(self, prompt: InitialPrompt) -> None:
        """Keep the first message."""
        self.opening = "\n\n".join(text for text in (prompt.system, prompt.text) if text)

    def acted(self, turn: Turn) -> None:
        """Keep a turn."""
        self.last = turn

    def send(self, tool: str, arguments: Mapping[str, Any]) -> None:
        """Send the next call; `InputError` if the action format cannot hold it, and nothing is sent."""
        text = self._format.write(Action(tool, dict(arguments)))
        self._is_ready.clear()
        self._actions.put_nowait(text)

    async def until_ready(self) -> None:
        """Wait until the episode waits for the next call."""
        await self._is_ready.wait()

    async def generate(self, session_id: str, prompt_ids: list[int], sampling: SamplingParams) -> Generation:
        """Return the client's next call; ``sampling`` decides nothing."""
        self._is_ready.set()
        ids = self._renderer.action_ids(await self._actions.get())
        return Generation(
            token_ids=tuple(ids), log_probs=(0.0,) * len(ids), is_stopped=True, policy_version=UNKNOWN_VERSION
        )

    async def end_session(self, session_id: str) -> None:
        """Do nothing: a policy has one session."""

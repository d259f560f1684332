"""A pipeline: the tools, the prompts, the outer loop around attempts, and the actions of a perfect agent.

Reads a `PipelineConfig` and prompts (`agent/prompts.py`); runs episodes. A pipeline that differs in tools, limits,
prompts or formats is a TOML file; one that opens or leads its episodes in another way is a subclass and one line of
`registry.py`.
"""

import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from repairgym.agent.allowance import Allowance
from repairgym.agent.conversation import Conversation, Hint, InitialPrompt
from repairgym.agent.episode import Episode, Interface, LiveEpisode, Watcher
from repairgym.agent.formats import FORMATS, Action, describe_schemas
from repairgym.agent.kept_states import StateKeeper
from repairgym.agent.prompts import render_prompt
from repairgym.agent.recording import TurnRecorder
from repairgym.agent.review import make_review
from repairgym.agent.tools.base import ToolContext, ToolServices
from repairgym.agent.tools.registry import make_tools
from repairgym.agent.tools.window import open_window
from repairgym.config.pipeline import PipelineConfig
from repairgym.errors import (
    KnowledgeUnavailableError,
    McpServerError,
    ModelServerError,
    SandboxContentError,
    ServerRejectedError,
)
from repairgym.inference.base import Policy
from repairgym.inference.renderer import ChatRenderer
from repairgym.records import Location, StopReason, Task
from repairgym.sandbox.base import Sandbox
from repairgym.tasks.synthetic import told_place

ConfigT = TypeVar("ConfigT", bound=PipelineConfig)


class Pipeline(Generic[ConfigT]):
    """One environment of the agent. Holds nothing of an episode."""

    def __init__(self, config: ConfigT, services: ToolServices) -> None:
        """Make the tools; ConfigError for one that does not exist."""
        self.config = config
        self.services = services
        self.tools = make_tools(services)
        self.format = FORMATS[config.action_format](services.call_form)

    @property
    def is_prepared(self) -> bool:
        """True when `prepare` does something."""
        return False

    async def prepare(self, sandbox: Sandbox) -> None:
        """Prepare a new sandbox of the agent, before its changes are written; SandboxError if that fails."""

    def initial_prompt(self, context: ToolContext, **values: Any) -> InitialPrompt:
        """Return the first message: prompts or the plain report, and the opened place; ``values`` extend the names."""
        config, place = self.config, told_place(context.task)
        text = context.workspace.read(place.path) if place and config.is_place_opened else None
        window = f"\n{self.open_place(context, place, text)}" if place and text is not None else ""
        values = {**self.prompt_values(context), **values}
        opening = render_prompt(config.opening_prompt, **values) if config.opening_prompt else context.task.issue
        return InitialPrompt(
            text=opening + window,
            system=render_prompt(config.system_prompt, **values) if config.system_prompt else "",
            demonstration=render_prompt(config.demonstration, **values) if config.demonstration else "",
        )

    def open_place(self, context: ToolContext, place: Location, text: str) -> str:
        """Open the task's cached place in the file of that ``text``; return the window as the agent sees it."""
        context.window = open_window(place.path, text, place.first_line, place.last_line)
        return context.window.render(text)

    def prompt_values(self, context: ToolContext) -> dict[str, Any]:
        """Return the names of templates: ``issue``, ``task``, ``tools`` (as the format describes them), ``config``."""
        return {
            "issue": context.task.issue,
            "task": context.task,
            "tools": self.format.describe(self.tools),
            "config": self.config,
        }

    def finish(self, context: ToolContext, text: str) -> str:
        """Return the observation for the ``text`` of a tool or an error."""
        return text

    async def run_episode(self, live: LiveEpisode) -> StopReason:
        """Run an episode: one attempt. An outer loop overrides this and calls ``live.run_attempt`` again."""
        return await live.run_attempt(self.initial_prompt(live.context))

    def solve(self, task: Task) -> Iterator[Action]:
        """Yield the repair by this pipeline's own tools, without the action that submits; an oracle plays it."""
        raise NotImplementedError(f"the pipeline {self.config.type!r} has no oracle")

    def submission(self) -> Action:
        """Return the action that submits."""
        return Action("submit", {})


class CompactPipeline(Pipeline[PipelineConfig]):
    """The pipeline of small models: one report, one place, one line per action, one attempt.

    The task holds the place that the full pipeline would have found (paper A, section 3; see `config/pipeline`).
    """

    def solve(self, task: Task) -> Iterator[Action]:
        """Yield whole-file writes; this pipeline has no tool that deletes."""
        for path, text in task.gold_files.items():
            if text is not None:
                yield Action("write", f"{path} {json.dumps(text)}")


@dataclass(frozen=True)
class EpisodeRunner:
    """Runs episodes of one pipeline with one policy."""

    pipeline: Pipeline[Any]
    policy: Policy
    renderer: ChatRenderer
    temperature: float = 1.0
    limits: PipelineConfig | None = None
    """Limits that replace those of the pipeline's configuration."""
    watcher: Watcher | None = None
    allowance: Allowance | None = None
    num_shared_turns: int = 0
    """Turns of a branch that its parent has made; the allowance does not count them."""
    hint: Hint | None = None

    async def run(
        self,
        session_id: str,
        context: ToolContext,
        seed: int,
        recorder: TurnRecorder | None = None,
        keeper: StateKeeper | None = None,
    ) -> Episode:
        """Run one episode. ``session_id`` is unique; ``seed`` decides all sampling; None records and keeps nothing.

        Raises:
            SandboxError: the sandbox failed; the episode says nothing about the policy.
            ReplayDiffersError: a turn of ``recorder`` came out differently.
            ServerRejectedError: the model's server rejects this and every other request.
        """
        pipeline, config = self.pipeline, self.limits or self.pipeline.config
        tools = describe_schemas(pipeline.tools) if pipeline.format.is_native else ()
        conversation = Conversation(self.policy, self.renderer, session_id, seed, self.temperature, tools, self.hint)
        review = make_review(pipeline.services)
        interface = Interface(config, pipeline.tools, pipeline.format, pipeline.finish, review)
        recorder, keeper = recorder or TurnRecorder(), keeper or StateKeeper()
        live = LiveEpisode(
            interface,
            conversation,
            context,
            recorder,
            keeper,
            self.watcher,
            self.allowance,
            self.num_shared_turns,
        )
        failure = ""
        try:
            stop_reason = await pipeline.run_episode(live)
        except ServerRejectedError:
            raise
        except (ModelServerError, KnowledgeUnavailableError, McpServerError) as error:
            stop_reason, failure = StopReason.INFRASTRUCTURE, str(error)
        finally:
            await self.policy.end_session(session_id)
        has_result = stop_reason in (StopReason.SUBMITTED, StopReason.SEARCH_LIMIT) or config.is_unsubmitted_scored
        return Episode(
            turns=tuple(live.turns),
            ledger=live.ledger(),
            stop_reason=stop_reason,
            files=await _changes(context) if has_result else {},
            durations_s=live.durations_s,
            attempts=tuple(live.attempts),
            failure=failure,
        )


async def _changes(context: ToolContext) -> dict[str, str | None]:
    """Return the agent's changes; if they are too much to read, those that were last read."""
    with suppress(SandboxContentError):
        await context.workspace.refresh()
    return dict(context.workspace.changes)

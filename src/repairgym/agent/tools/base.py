"""Tools: named actions of the agent that read and change the workspace and answer with text.

Tools hold no state of their own; the state of an episode lives in its `ToolContext`. A mistake of the agent never
raises: the tool answers with an observation whose ``error`` names the kind. A tool raises only
:class:`~repairgym.errors.SandboxError`, which makes the episode invalid. The agent reads a
:class:`~repairgym.errors.SandboxContentError`, an `OSError` of the workspace (a path outside of the repository, a
folder in the way) or text that is no UTF-8, as an error of the tool.

Every tool works in every action format: formats of one line of text give it the text behind its name (`read`), formats
of JSON give it an object (`check`); both make the tool's own typed arguments.
"""

import shlex
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, TypeVar, cast, get_args

from pydantic import ValidationError

from repairgym.agent.tools.window import FileView, Window
from repairgym.agent.tools.workspace import Workspace
from repairgym.config.pipeline import PipelineConfig
from repairgym.inference.tool_calls import HERMES, CallForm
from repairgym.records import Record, Storable, Task
from repairgym.sandbox.cache import ExecutionCache


class Observation(Record):
    """The answer to an action."""

    text: Storable
    error: str = ""
    """``tool`` when the action could not be executed, ``format`` when it could not be understood, or empty."""
    is_final: bool = False
    """True when the episode ends here."""


@dataclass(frozen=True)
class UndoStep:
    """Record of an edit, to take it back."""

    path: str
    text: str | None
    """Of the whole file before the edit; None: there was none."""
    window: Window | None = None
    """Before the edit."""
    window_after: Window | None = None


@dataclass
class ToolContext:
    """State of one episode as the tools see it."""

    task: Task
    workspace: Workspace
    window: Window | None = None
    """The window of the compact tools."""
    view: FileView | None = None
    """The open file of the editor's tools."""
    undo_stack: list[UndoStep] = field(default_factory=list)
    """Newest last."""
    tested_files: str = ""
    """Digest of the changes that were last tested; empty: none."""


@dataclass(frozen=True)
class ToolServices:
    """Services that the tools of a process share."""

    config: PipelineConfig
    cache: ExecutionCache
    """Test runs and builds: equal states of a task share one."""
    call_form: CallForm = HERMES
    """Form of the model's tool calls."""


class TextArguments(Record):
    """Arguments of a tool that reads one text by itself."""

    argument: str = ""


class NoArguments(Record):
    """Arguments of a tool that needs none."""


class UsageError(ValueError):
    """Arguments that a tool cannot read; the message says how to write them."""


ArgumentsT = TypeVar("ArgumentsT", bound=Record)


class Tool(ABC, Generic[ArgumentsT]):
    """One action of the agent; the type parameter is the type of its arguments."""

    name: str
    """The name that the agent writes."""
    usage: str
    """One line for the system prompt: its form in a text format, a dash, its effect."""
    arguments_type: ClassVar[type[Record]]
    """The type parameter."""
    is_refreshed: ClassVar[bool] = True
    """Read the changes of shell commands back into the workspace before this tool runs."""
    is_check: ClassVar[bool] = False
    """It runs tests or a build and changes nothing: a resumed episode takes the recorded observation."""

    def __init__(self, services: ToolServices) -> None:
        self.services = services

    def __init_subclass__(cls) -> None:
        parameters = [argument for base in cls.__dict__.get("__orig_bases__", ()) for argument in get_args(base)]
        for parameter in parameters:
            if isinstance(parameter, type) and issubclass(parameter, Record):
                cls.arguments_type = parameter

    def schema(self) -> dict[str, Any]:
        """Return the JSON schema of the arguments."""
        return self.arguments_type.model_json_schema()

    def is_text(self, name: str) -> bool:
        """Return False for an argument whose text form is JSON."""
        field = self.arguments_type.model_fields.get(name)
        return field is None or field.annotation is str

    def read(self, text: str) -> ArgumentsT:
        """Read arguments from the text behind the tool's name: words, quoted as in a shell, in the order of the fields.

        A tool that needs nothing ignores the text. `UsageError` if it cannot be read so.
        """
        if self.arguments_type is TextArguments:
            return cast(ArgumentsT, TextArguments(argument=text))
        if self.arguments_type is NoArguments:
            return cast(ArgumentsT, NoArguments())
        names = list(self.arguments_type.model_fields)
        words = split_words(text)
        if len(words) > len(names):
            raise UsageError(f"got {len(words)} arguments, expected at most {len(names)}")
        return self.check(dict(zip(names, words, strict=False)))

    def check(self, values: Mapping[str, Any]) -> ArgumentsT:
        """Read a JSON object; `UsageError` if a key is unknown or missing, or a value has another type."""
        try:
            return cast(ArgumentsT, self.arguments_type.model_validate(dict(values)))
        except ValidationError as error:
            raise UsageError("; ".join(_problem(detail["loc"], detail["msg"]) for detail in error.errors())) from None

    @abstractmethod
    async def run(self, context: ToolContext, arguments: ArgumentsT) -> Observation:
        """Execute the action; `OSError` if the agent named a path that cannot be used so."""


def tool_error(text: str) -> Observation:
    """Return an observation that names a mistake of the agent."""
    return Observation(text=f"error: {text}", error="tool")


def split_words(text: str) -> list[str]:
    """Return the words of a line, as a shell splits them; `UsageError` if a quote is not closed."""
    try:
        return shlex.split(text)
    except ValueError as error:
        raise UsageError(f"{str(error).lower()} in {text[:60]!r}") from None


def _problem(location: tuple[int | str, ...], message: str) -> str:
    return f"{'.'.join(map(str, location)) or 'arguments'}: {message[:1].lower()}{message[1:]}"

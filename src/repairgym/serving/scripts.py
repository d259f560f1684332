"""Scripts that answer conversations: the scripted policies, and an oracle for agents that run shell commands.

The issue text in a conversation determines its task; the conversation alone determines the answer, so a script keeps no
state between requests and serves any number of agents.
"""

import itertools
import random
import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from repairgym.agent.pipelines.base import Pipeline
from repairgym.agent.scripted import SCRIPTS
from repairgym.config.agent import SHELL_SCRIPTS, ShellScriptConfig
from repairgym.errors import ConfigError
from repairgym.inference.base import Generation, SamplingParams
from repairgym.inference.chat_template import Message
from repairgym.inference.renderer import ChatRenderer
from repairgym.inference.tool_calls import HERMES, Call
from repairgym.records import Task
from repairgym.serving.models import Answer
from repairgym.serving.records import RequestError

_COMMAND_ARGUMENTS = ("command", "cmd", "script")


def make_script(
    name: str, tasks: Iterable[Task], scaffold: Pipeline[Any], shell: ShellScriptConfig, seed: int = 0
) -> Answer:
    """Make the script ``name`` over ``tasks``; ``scaffold`` formats the actions of the scripted policies."""
    known = tuple(tasks)
    if name in SHELL_SCRIPTS:
        return _shell_script(known, shell, is_solving=name == "shell-oracle")
    if name not in SCRIPTS:
        raise ConfigError(f"got script {name!r}, expected one of {', '.join((*SCRIPTS, *SHELL_SCRIPTS))}")
    return _scaffold_script(name, known, scaffold, seed)


def find_task(conversation: Sequence[Message], tasks: Sequence[Task]) -> Task:
    """Return the task whose issue text is in a message before the first answer; `RequestError` unless one is."""
    asked = itertools.takewhile(lambda message: message.role != "assistant", conversation)
    prompt = "\n".join(message.text for message in asked)
    matching = [task for task in tasks if task.issue.strip() in prompt]
    longest = max((len(task.issue) for task in matching), default=0)
    best = [task for task in matching if len(task.issue) == longest]
    if len(best) != 1:
        names = ", ".join(task.id for task in best[:3]) or "none"
        raise RequestError(
            f"the conversation begins with the report of {len(best)} of {len(tasks)} tasks ({names}), expected one",
            code="unknown_task",
        )
    return best[0]


def _scaffold_script(name: str, tasks: Sequence[Task], scaffold: Pipeline[Any], seed: int) -> Answer:
    """Make a scripted policy that is replayed from the start for each request."""

    def answer(conversation: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> str:
        task = find_task(conversation, tasks)
        script = SCRIPTS[name](task, random.Random(f"{task.id}:{seed}"), scaffold)
        action = ""
        for message in conversation:
            if message.role in ("user", "tool"):
                action = script(message.text)
        return action

    return answer


def _shell_script(tasks: Sequence[Task], config: ShellScriptConfig, *, is_solving: bool) -> Answer:
    def answer(conversation: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> str:
        return _shell_answer(find_task(conversation, tasks), config, conversation, tools, is_solving=is_solving)

    return answer


def _shell_answer(
    task: Task,
    config: ShellScriptConfig,
    conversation: Sequence[Message],
    tools: Sequence[Mapping[str, Any]],
    *,
    is_solving: bool,
) -> str:
    commands = [*(_commands(task) if is_solving else ()), *([config.submit_command] if config.submit_command else ())]
    num_answers = sum(message.role == "assistant" for message in conversation)
    if num_answers >= len(commands) and not config.submit_command:
        return "The task is done."
    command = commands[min(num_answers, len(commands) - 1)]
    return HERMES.write(_shell_call(tools, command)) if tools else f"```{config.fence}\n{command}\n```"


class ShellPolicy:
    """A shell script as the policy of agents in our sandboxes; its sessions know their tasks."""

    def __init__(self, name: str, renderer: ChatRenderer, config: ShellScriptConfig) -> None:
        self.id = name
        self._renderer = renderer
        self._config = config
        self._tasks: dict[str, Task] = {}

    def begin_session(self, session_id: str, task: Task) -> None:
        """Begin the episode of ``task``."""
        self._tasks[session_id] = task

    async def answer(
        self, session_id: str, conversation: Sequence[Message], tools: Sequence[Mapping[str, Any]]
    ) -> Generation:
        """Return the next command of the session, written in the form of its agent's tool."""
        is_solving = self.id == "shell-oracle"
        text = _shell_answer(self._tasks[session_id], self._config, conversation, tools, is_solving=is_solving)
        ids = self._renderer.action_ids(text)
        return Generation(token_ids=tuple(ids), log_probs=(0.0,) * len(ids), is_stopped=True, policy_version=0)

    async def generate(self, session_id: str, prompt_ids: list[int], sampling: SamplingParams) -> Generation:
        """Raise: the script needs the tools of the agent."""
        raise ConfigError(f"{self.id} plays the model for agents of others (rollout.agent.type=external) that chat")

    async def end_session(self, session_id: str) -> None:
        """Forget the session."""
        self._tasks.pop(session_id, None)


def _commands(task: Task) -> list[str]:
    """Return commands that look at each file, then write its repaired content."""
    commands = []
    for path, text in task.gold_files.items():
        name = shlex.quote(path)
        if not text:
            commands.append(f"rm {name}" if text is None else f": > {name}")
            continue
        end = "EOF"
        while end in text.splitlines():
            end += "_"
        commands.append(f"wc -l {name}" if path in task.base_files else f"mkdir -p $(dirname {name})")
        is_ended = text.endswith("\n")
        body = text if is_ended else f"{text}\n"
        trim = "" if is_ended else f" && truncate -s -1 {name}"
        commands.append(f"cat > {name} << '{end}'{trim}\n{body}{end}")
    return commands


def _shell_call(tools: Sequence[Mapping[str, Any]], command: str) -> Call:
    """Return a call of the shell among ``tools``: by the name of its argument, else the first with one argument."""
    shapes = [(str(tool["function"]["name"]), tool["function"].get("parameters") or {}) for tool in tools]
    for name, parameters in shapes:
        properties = parameters.get("properties") or {}
        if argument := next((each for each in _COMMAND_ARGUMENTS if each in properties), ""):
            is_list = properties[argument].get("type") == "array"
            others = dict.fromkeys(set(parameters.get("required") or ()) - {argument}, "repair")
            return Call(name, {argument: ["bash", "-c", command] if is_list else command, **others})
    for name, parameters in shapes:
        required = parameters.get("required") or list(parameters.get("properties") or ())
        if len(required) == 1:
            return Call(name, {str(required[0]): command})
    raise RequestError("tools: none of them takes a command, as a shell does")

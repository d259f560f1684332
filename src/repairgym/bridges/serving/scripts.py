"""Scripts that answer conversations: the scripted policies, and an oracle for agents that run shell commands.

The issue text in a conversation determines its task; the conversation alone determines the answer, so a script keeps no
state between requests and serves any number of agents.
"""

import random
import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from repairgym.agent.pipelines.base import Pipeline
from repairgym.agent.scripted import SCRIPTS
from repairgym.bridges.serving.models import Answer
from repairgym.bridges.serving.records import RequestError
from repairgym.config.commands import ShellScriptConfig
from repairgym.errors import ConfigError
from repairgym.inference.chat_template import Message
from repairgym.inference.tool_calls import HERMES, Call
from repairgym.records import Task

SHELL_SCRIPTS = ("shell-oracle", "shell-submit")
"""For other people's agents: the repair by shell commands, and immediate submission."""


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
    """Return the task whose issue text is in the first messages of the conversation; `RequestError` unless one is."""
    prompt = "\n".join(message.text for message in conversation[:3] if message.role != "assistant")
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
        task = find_task(conversation, tasks)
        commands = [*(_commands(task) if is_solving else ()), config.submit_command]
        num_answers = sum(message.role == "assistant" for message in conversation)
        command = commands[min(num_answers, len(commands) - 1)]
        if not tools:
            return f"```{config.fence}\n{command}\n```"
        name, argument = _command_tool(tools)
        return HERMES.write(Call(name, {argument: command}))

    return answer


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


def _command_tool(tools: Sequence[Mapping[str, Any]]) -> tuple[str, str]:
    """Return (function, argument) of the first tool with one required argument: a shell."""
    for tool in tools:
        function = tool["function"]
        parameters = function.get("parameters") or {}
        required = parameters.get("required") or list(parameters.get("properties") or ())
        if len(required) == 1:
            return str(function["name"]), str(required[0])
    raise RequestError("tools: none of them takes exactly one argument, as a shell does")

"""Tool calls in the forms that chat templates write: Hermes, Qwen-Coder, Llama 3, GLM, harmony.

Reads the text of an answer behind its thought; makes `Call` records. Guarantees: no text of a model raises an
exception; ``form.find(form.write_exactly(call))`` is the call; what is no call of the model's own form is no call.
"""

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, NamedTuple

from repairgym.errors import InputError


class Call(NamedTuple):
    """One call of a tool."""

    tool: str
    arguments: Mapping[str, Any]


Found = tuple[list[Call], str]
"""The well-formed calls of an answer, and the error of the first malformed one in brackets, if any."""
ReadCall = Callable[[re.Match[str]], tuple[Call, int] | str | None]
"""Reads the call behind an opening: the call and its end, an error, or None where there is no call."""


class CallForm(ABC):
    """One way in which models write calls."""

    name: ClassVar[str]
    mark: ClassVar[str]
    """Text of every call in this form, and of none in the forms after it in `CALL_FORMS`."""
    opening: ClassVar[str]
    """Pattern of the start of a call."""
    example: ClassVar[str]
    start: ClassVar[str] = ""
    """Text with which each call begins and by which a stream tells it from text; empty: only a whole answer tells."""
    has_typed_values: ClassVar[bool] = True
    """Values have JSON types; otherwise all of them come as text."""

    def find(self, text: str) -> Found:
        """Return the calls of ``text``."""
        return find(text, self.opening, lambda match: self.read(text, match))

    @abstractmethod
    def read(self, text: str, match: re.Match[str]) -> tuple[Call, int] | str | None:
        """Read the call behind ``match`` of the opening."""

    @abstractmethod
    def write(self, call: Call) -> str:
        """Return the text of ``call`` as the model's chat template writes it.

        Forms without JSON have no escapes: a value with one of their tags is read as something else.
        """

    def write_exactly(self, call: Call) -> str:
        """Return the text of ``call``; `InputError` if it would be read as another one."""
        text = self.write(call)
        values = call.arguments
        if not self.has_typed_values:
            values = {name: _as_text(value) for name, value in values.items()}
        if self.find(text) != ([Call(call.tool, dict(values))], ""):
            raise InputError(f"a call of {call.tool!r} has a text that calls in the form {self.name!r} cannot hold")
        return text


class HermesForm(CallForm):
    """``<tool_call>{"name": ..., "arguments": {...}}</tool_call>``: Hermes, Qwen2.5, Qwen3, the shipped model."""

    name = "hermes"
    mark = "<tool_call>"
    opening = "<tool_call>"
    start = "<tool_call>"
    example = '<tool_call>{"name": NAME, "arguments": {...}}</tool_call>'

    def read(self, text: str, match: re.Match[str]) -> tuple[Call, int] | str:
        """Read the JSON object and the tag that closes behind it."""
        tagged = read_tagged(text, match.end(), "tool_call")
        if isinstance(tagged, str):
            return tagged
        call = _named_call(tagged[0], "arguments")
        return call if isinstance(call, str) else (call, tagged[1])

    def write(self, call: Call) -> str:
        """Return the JSON object between tags."""
        return f"<tool_call>\n{_json({'name': call.tool, 'arguments': call.arguments})}\n</tool_call>"


class CoderForm(CallForm):
    """``<tool_call><function=NAME><parameter=KEY>VALUE</parameter></function></tool_call>``: Qwen3-Coder."""

    name = "coder"
    mark = "<function="
    opening = r"<tool_call>\s*<function=([^>\n]+)>\s*"
    start = "<tool_call>"
    example = "<tool_call><function=NAME><parameter=KEY>VALUE</parameter></function></tool_call>"
    has_typed_values = False
    _PAIR = re.compile(r"<parameter=([^>\n]+)>\n?(.*?)\n?</parameter>\s*", re.DOTALL)
    _END = re.compile(r"</function>\s*</tool_call>")

    def read(self, text: str, match: re.Match[str]) -> tuple[Call, int] | str:
        """Read the parameters and the tags that close behind them."""
        return _read_pairs(text, match, self._PAIR, self._END)

    def write(self, call: Call) -> str:
        """Return one tag per parameter."""
        pairs = "".join(
            f"<parameter={key}>\n{_as_text(value)}\n</parameter>\n" for key, value in call.arguments.items()
        )
        return f"<tool_call>\n<function={call.tool}>\n{pairs}</function>\n</tool_call>"


class GlmForm(CallForm):
    """``<tool_call>NAME<arg_key>KEY</arg_key><arg_value>VALUE</arg_value></tool_call>``: GLM from 4.5 on."""

    name = "glm"
    mark = "<arg_key>"
    opening = r"<tool_call>\s*([^\s<{]+)\s*"
    start = "<tool_call>"
    example = "<tool_call>NAME<arg_key>KEY</arg_key><arg_value>VALUE</arg_value></tool_call>"
    has_typed_values = False
    _PAIR = re.compile(r"<arg_key>(.*?)</arg_key>\s*<arg_value>(.*?)</arg_value>\s*", re.DOTALL)
    _END = re.compile(r"</tool_call>")

    def read(self, text: str, match: re.Match[str]) -> tuple[Call, int] | str:
        """Read the pairs and the tag that closes behind them."""
        return _read_pairs(text, match, self._PAIR, self._END)

    def write(self, call: Call) -> str:
        """Return the name and one pair of tags per argument."""
        pairs = "".join(
            f"<arg_key>{key}</arg_key>\n<arg_value>{_as_text(value)}</arg_value>\n"
            for key, value in call.arguments.items()
        )
        return f"<tool_call>{call.tool}\n{pairs}</tool_call>"


class LlamaForm(CallForm):
    """``{"name": ..., "parameters": {...}}`` at the start of a line, also behind the Python tag: Llama 3.1 on."""

    name = "llama"
    mark = '"parameters"'
    opening = r"(?m)(?:^|;)[ \t]*(?:<\|python_tag\|>)?\s*(?=\{)"
    example = '{"name": NAME, "parameters": {...}}'

    def read(self, text: str, match: re.Match[str]) -> tuple[Call, int] | str | None:
        """Read the JSON object; one without a name and parameters is no call."""
        parsed = read_json(text, match.end())
        if isinstance(parsed, str):
            return parsed if '"name"' in text[match.end() :].partition("\n")[0] else None
        value, end = parsed
        if not {"name", "parameters"} <= set(value):
            return None
        call = _named_call(value, "parameters")
        return call if isinstance(call, str) else (call, end)

    def write(self, call: Call) -> str:
        """Return the JSON object."""
        return _json({"name": call.tool, "parameters": call.arguments})


class HarmonyForm(CallForm):
    """A message of the channel *commentary* to ``functions.NAME`` with a JSON object: gpt-oss."""

    name = "harmony"
    mark = "<|channel|>"
    opening = (
        r"(?:[^<\n]*\bto=functions\.([^\s<]+)\s*)?"
        r"<\|channel\|>commentary([^<]*)(?:<\|constrain\|>[^<]*)?<\|message\|>"
    )
    example = '<|channel|>commentary to=functions.NAME <|constrain|>json<|message|>{"KEY": "VALUE"}'

    def read(self, text: str, match: re.Match[str]) -> tuple[Call, int] | str | None:
        """Read the JSON object of a message that is to a function."""
        to = match[1] or next(iter(re.findall(r"\bto=functions\.(\S+)", match[2])), "")
        if not to:
            return None
        parsed = read_json(text, match.end())
        if isinstance(parsed, str):
            return parsed
        value, end = parsed
        return (Call(to, value), end) if isinstance(value, dict) else "the arguments are no object"

    def write(self, call: Call) -> str:
        """Return the message, without the token that ends it."""
        return f"<|channel|>commentary to=functions.{call.tool} <|constrain|>json<|message|>{_json(call.arguments)}"


HERMES = HermesForm()
CALL_FORMS: tuple[CallForm, ...] = (HarmonyForm(), GlmForm(), CoderForm(), HERMES, LlamaForm())


def find(text: str, opening: str, read: ReadCall) -> Found:
    """Return the calls that ``read`` makes behind each ``opening``, and the first error in brackets, if any."""
    calls: list[Call] = []
    problem = ""
    position = 0
    pattern = re.compile(opening)
    while match := pattern.search(text, position):
        call = read(match)
        if isinstance(call, tuple):
            calls.append(call[0])
            position = call[1]
        else:
            problem, position = problem or (f" ({call})" if call else ""), max(match.end(), position + 1)
    return calls, problem


def read_tagged(text: str, start: int, tag: str) -> tuple[Any, int] | str:
    """Return the JSON value at ``start`` and the end of the tag closed behind it, or a description of the error."""
    parsed = read_json(text, start)
    if isinstance(parsed, str):
        return parsed
    closing = re.compile(rf"\s*</{re.escape(tag)}>").match(text, parsed[1])
    return f"no </{tag}> behind the JSON" if closing is None else (parsed[0], closing.end())


def read_json(text: str, start: int) -> tuple[Any, int] | str:
    """Return (value, end) of the JSON at ``start``, or a description of its error."""
    while start < len(text) and text[start].isspace():
        start += 1
    try:
        # strict=False: models write line feeds inside of strings and mean them.
        return json.JSONDecoder(strict=False).raw_decode(text, start)
    except json.JSONDecodeError as error:
        return f"{error.msg.lower()} at character {error.pos - start}"
    except RecursionError:
        return "too deeply nested"
    except ValueError:  # Python reads at most 4,300 digits
        return "a number is too long"


def _named_call(value: Any, key: str) -> Call | str:
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        return "the JSON names no function"
    arguments = value.get(key, {})
    return Call(value["name"], arguments) if isinstance(arguments, dict) else "the arguments are no object"


def _read_pairs(
    text: str, match: re.Match[str], pair: re.Pattern[str], closing: re.Pattern[str]
) -> tuple[Call, int] | str:
    values: dict[str, Any] = {}
    position = match.end()
    while argument := pair.match(text, position):
        values[argument[1].strip()] = argument[2]
        position = argument.end()
    end = closing.match(text, position)
    if end is None:
        return f"the call of {match[1]} does not end behind its arguments"
    return Call(match[1].strip(), values), end.end()


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else _json(value)

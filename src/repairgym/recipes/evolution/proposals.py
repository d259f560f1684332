"""Bugs that a model proposes, through any server of OpenAI's protocol: each goes the way of every other mutation.

Reads functions. Makes texts of their files with a bug. Guarantees: only lines of the function change; an answer of
another form is a drop with its text, never an error; nothing of the answer runs outside of a sandbox.
"""

import json
import zlib

from repairgym.diffs.lines import source_lines
from repairgym.errors import ModelReplyError
from repairgym.inference.base import TextModel
from repairgym.tasks.mutation.mutants import MutableFunction
from repairgym.tasks.sources.base import Drop

MAX_REPLY_TOKENS = 1024
_QUESTION = """\
Below is the function {name} of {path}, each line behind its number. Plant a bug in it that a careful programmer could
have made: a test of the function's behaviour must notice it, the code must still compile, and nothing may tell that
somebody broke it. Change between 1 and {max_edits} lines, in their place, and add no comment.

{code}

Answer with JSON only, an array of the changed lines with their numbers and whole new texts, indentation included:
[{{"line": 12, "text": "    return low"}}]
"""


def make_question(function: MutableFunction, max_edits: int) -> str:
    """Return the request for a bug in ``function``."""
    span, lines = function.span, source_lines(function.source)
    numbers = range(span.first_line, span.last_line + 1)
    code = "\n".join(f"{number}: {lines[number - 1]}" for number in numbers)
    return _QUESTION.format(name=span.qualified_name, path=function.path, max_edits=max_edits, code=code)


def read_proposal(function: MutableFunction, reply: str, max_edits: int) -> str | Drop:
    """Return the file with the changed lines of ``reply``, or why it has none."""
    first, last = reply.find("["), reply.rfind("]")
    try:
        changes = json.loads(reply[first : last + 1])
        wanted = {int(change["line"]): str(change["text"]) for change in changes}
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
        return Drop("proposal_unreadable", reply)
    span, lines = function.span, source_lines(function.source, keepends=True)
    is_inside = all(span.first_line <= line <= span.last_line for line in wanted)
    if not (is_inside and 1 <= len(wanted) <= max_edits) or any("\n" in text for text in wanted.values()):
        return Drop("proposal_out_of_bounds", reply)
    for line, text in wanted.items():
        lines[line - 1] = text + lines[line - 1][len(lines[line - 1].rstrip("\r\n")) :]
    return "".join(lines)


class Proposer:
    """Asks one model for bugs."""

    def __init__(self, model: TextModel, max_edits: int, seed: int) -> None:
        """Ask ``model`` for bugs of at most ``max_edits`` lines."""
        self._model, self._max_edits, self._seed = model, max_edits, seed

    async def __call__(self, function: MutableFunction) -> str | Drop:
        """Return the file of ``function`` with a bug, or why there is none; `ModelServerError` from a dead server."""
        question = make_question(function, self._max_edits)
        seed = zlib.crc32(f"{self._seed}:{question}".encode())
        try:
            reply = await self._model.reply(question, max_tokens=MAX_REPLY_TOKENS, seed=seed)
        except ModelReplyError as error:
            return Drop("proposal_unreadable", str(error))
        return read_proposal(function, reply, self._max_edits)

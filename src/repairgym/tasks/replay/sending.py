"""The form in which the steps of a script enter a sandbox: a line of chunks.

Reads steps; makes JSON. Guarantees: marks of a step stay on the host; a step with a literal or with code of the tests
begins a chunk, and a chunk is sent after all earlier answers have come; so code under test sees no input early.
"""

import json
from collections.abc import Iterable, Iterator
from typing import Any

Step = dict[str, Any]
_MARKS = frozenset({"asserted", "is_unusual", "is_varied", "questions", "seen"})
"""Marks of a step that stay on the host."""
_MAX_CHUNK = 40
_CODE = frozenset({"function", "class", "new_class"})
"""Steps with code of the tests, which may hold literals."""
_LITERALS = ("l", "b", "y", "c", "F", "p", "r")


def sendable(step: Step) -> Step:
    """Return ``step`` as the sandbox receives it, without the marks that stay on the host."""
    return {key: value for key, value in step.items() if key not in _MARKS}


def line_of(steps: Iterable[Step]) -> bytes:
    """Return a script as the feeder reads it: of each chunk its text, and how many objects each step may change."""
    parts = [(json.dumps(chunk), [len(step.get("after", ())) for step in chunk]) for chunk in chunks(steps)]
    return json.dumps(parts).encode() + b"\n"


def chunks(steps: Iterable[Step]) -> Iterator[list[Step]]:
    """Yield steps to be sent together: no step but the first of a chunk holds a literal or code of the tests."""
    chunk: list[Step] = []
    for step in map(sendable, steps):
        is_telling = step["op"] in _CODE or _has_literal([step["args"], step.get("kwargs", {})])
        if chunk and (len(chunk) >= _MAX_CHUNK or is_telling):
            yield chunk
            chunk = []
        chunk.append(step)
    if chunk:
        yield chunk


def _has_literal(operand: Any) -> bool:
    if isinstance(operand, dict):
        return any(map(_has_literal, operand.values()))
    if not isinstance(operand, list):
        return False
    return bool(operand) and (operand[0] in _LITERALS or any(map(_has_literal, operand)))

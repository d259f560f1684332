"""Joined scripts: several recorded scripts as one, which a replay plays in one process.

Reads scripts; makes scripts. Guarantees: the steps, their order and their marks are those of the parts; handles of
different parts differ; before each part a step ``clean`` takes back what the one before it left.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from repairgym.tasks.replay.scripts import Script
from repairgym.tasks.replay.sending import Step

NUM_PARTS, MAX_STEPS = 8, 200
"""Bounds of a joined script: one that ends early must not take many others with it."""


def joined(scripts: Sequence[Script], name: str) -> tuple[Script, ...]:
    """Return ``scripts`` as fewer ones, named ``name`` and a number."""
    return joined_sets(_parts(scripts), name)


def joined_sets(sets: Iterable[Sequence[Script]], name: str) -> tuple[Script, ...]:
    """Return one script for each of the ``sets``, named ``name`` and a number."""
    return tuple(_join(parts, f"{name}+{number}") for number, parts in enumerate(sets))


def _parts(scripts: Sequence[Script]) -> Iterator[tuple[Script, ...]]:
    parts: list[Script] = []
    for script in scripts:
        num_steps = sum(len(part.steps) for part in parts) + len(script.steps)
        if parts and (len(parts) == NUM_PARTS or num_steps > MAX_STEPS):
            yield tuple(parts)
            parts = []
        parts.append(script)
    if parts:
        yield tuple(parts)


def _join(parts: Sequence[Script], name: str) -> Script:
    lost: Counter[str] = Counter()
    for part in parts:
        lost.update(part.lost)
    return Script(name, placed(parts)[0], imports_of(parts), dict(lost))


def imports_of(parts: Iterable[Script]) -> tuple[str, ...]:
    """Return what any of ``parts`` imports."""
    return tuple(sorted({name for part in parts for name in part.imports}))


def placed(parts: Iterable[Script]) -> tuple[tuple[Step, ...], list[int]]:
    """Return the steps of ``parts`` one after the other, and by how much the handles of each are moved."""
    steps: list[Step] = []
    offsets: list[int] = []
    first = 0
    for part in parts:
        moved = [_moved(step, first) for step in part.steps]
        offsets.append(first)
        first = 1 + max([first, *(number for step in moved for number in _made(step))])
        steps += [{"op": "clean", "args": []}, *moved] if steps else moved
    return tuple(steps), offsets


def _made(step: Mapping[str, Any]) -> Iterator[int]:
    """Yield the handles that ``step`` makes or changes."""
    if "to" in step:
        yield step["to"]
    yield from step.get("after", ())


def _moved(step: Step, offset: int) -> Step:
    """Return ``step`` with all its handles moved by ``offset``."""
    moved = {**step, "args": _moved_operands(step["args"], offset)}
    if "kwargs" in step:
        moved["kwargs"] = _moved_operands(step["kwargs"], offset)
    if "to" in step:
        moved["to"] = step["to"] + offset
    if "after" in step:
        moved["after"] = [number + offset for number in step["after"]]
    return moved


def _moved_operands(content: Any, offset: int) -> Any:
    if isinstance(content, list):
        if len(content) == 2 and content[0] == "h":
            return ["h", content[1] + offset]
        return [_moved_operands(part, offset) for part in content]
    if isinstance(content, dict):
        return {key: _moved_operands(part, offset) for key, part in content.items()}
    return content

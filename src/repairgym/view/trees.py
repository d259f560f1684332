"""Branches of trajectories as a tree: what each begins with, and what others began with it.

Reads the parents in a run store; makes `Node` records. Guarantees: a tree has a bounded number of nodes, each once; an
ancestor that is not stored any more ends the way up.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from repairgym.records import VerdictKind
from repairgym.view.lists import Entry
from repairgym.view.reader import Relative, RunReader

MAX_NODES = 200


@dataclass
class Node:
    """One trajectory of a tree."""

    number: int
    id: str
    verdict: VerdictKind
    num_turns: int
    num_shared_turns: int = 0
    """Turns of its parent that it begins with."""
    children: list["Node"] = field(default_factory=list)


def tree_of(reader: RunReader, entry: Entry) -> Node | None:
    """Return the tree that a trajectory is part of, from its oldest stored ancestor; None: it has no relatives."""
    root, known = entry, {entry.number}
    while (parent := reader.parent(root)) and parent.number is not None and parent.number not in known:
        root = reader.entry(parent.number)
        known.add(root.number)
    tree = _node(root, 0)
    _grow(reader, tree, root)
    return tree if tree.children else None


def trees_of(reader: RunReader, numbers: Sequence[int]) -> list[Node]:
    """Return the trees with branches that trajectories are part of, in their order."""
    trees: list[Node] = []
    seen: set[int] = set()
    for number in numbers:
        if number not in seen and (tree := tree_of(reader, reader.entry(number))):
            seen.update(node.number for node in walk(tree))
            trees.append(tree)
    return trees


def walk(tree: Node) -> Iterator[Node]:
    """Yield all nodes of a tree."""
    yield tree
    for child in tree.children:
        yield from walk(child)


def _grow(reader: RunReader, root: Node, entry: Entry) -> None:
    waiting: list[tuple[Node, list[Relative]]] = [(root, reader.branches(entry))]
    known = {root.number}
    while waiting:
        node, branches = waiting.pop(0)
        for branch in branches:
            if branch.number is None or branch.number in known or len(known) >= MAX_NODES:
                continue
            known.add(branch.number)
            child_entry = reader.entry(branch.number)
            child = _node(child_entry, branch.num_turns)
            node.children.append(child)
            waiting.append((child, reader.branches(child_entry)))


def _node(entry: Entry, num_shared_turns: int) -> Node:
    return Node(entry.number, entry.row.id, entry.row.verdict, entry.row.num_turns, num_shared_turns)

"""How well somebody who reads a test file can tell its canaries from its tests: the area under the curve (AUC).

Reads a task folder; makes fresh canaries for a seeded draw over its packages and scores every test that runs (those
of the task, and the canaries) with heuristics of an attacker, each oriented the better way, and with a logistic
regression over all of them, trained on half of the packages and measured on the others. 0.5 is chance. The text read
here is the whole file, which no code under test sees: it gets one body at a time, when its test starts. Example::

    python benchmarks/canary_shapes.py TASKS --num 300
"""

from __future__ import annotations

import argparse
import ast
import difflib
import math
import random
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from repairgym.config.sandbox import SandboxConfig
from repairgym.grading.canaries import make_canaries
from repairgym.grading.stages import read_pinned
from repairgym.records import Task
from repairgym.tasks.build.test_files import file_of
from repairgym.tasks.build.validation import task_layers
from repairgym.tasks.javascript.syntax import statements_of_tests, text_of
from repairgym.tasks.layers.store import LayerStore
from repairgym.tasks.store import TaskStore

Function = ast.FunctionDef | ast.AsyncFunctionDef
_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+|\d+")


class Shapes:
    """The tests of one file as an attacker reads them."""

    def __init__(self, text: str) -> None:
        tree = ast.parse(text)
        self.text = text
        self.functions: dict[str, Function] = {}
        for node in tree.body:
            members = node.body if isinstance(node, ast.ClassDef) else [node]
            prefix = f"{node.name}::" if isinstance(node, ast.ClassDef) else ""
            for part in members:
                if isinstance(part, Function) and part.name.startswith("test"):
                    self.functions[prefix + part.name] = part
        self._order = list(self.functions)
        self._bodies = {name: ast.unparse(ast.Module(node.body, [])) for name, node in self.functions.items()}
        words = [word for name in self.functions for word in _WORD.findall(name)]
        self._counts = {word: words.count(word) for word in set(words)}

    def names(self) -> set[str]:
        """The names of the tests."""
        return set(self.functions)

    def score(self, name: str) -> dict[str, float]:
        """The heuristics' values for one test."""
        node, body = self.functions[name], self._bodies[name]
        parts = list(ast.walk(node))
        asserts = [part.test for part in parts if isinstance(part, ast.Assert)]
        literals = [part.value for part in parts if isinstance(part, ast.Constant) and isinstance(part.value, str)]
        used = {part.id for part in parts if isinstance(part, ast.Name)}
        return {
            **self._common(name, literals),
            "constants_only": sum(not any(isinstance(p, ast.Name) for p in ast.walk(test)) for test in asserts),
            "denials": float(len(re.findall(r"!=|\bnot\b|assertNot|assertFalse", body))),
            "no_assertion": float(not re.search(r"assert|raises|warns", body)),
            "unused_parameters": float(sum(a.arg not in used and a.arg != "self" for a in node.args.args)),
        }

    def _common(self, name: str, literals: Sequence[str]) -> dict[str, float]:
        """The values of one test that need no syntax tree; ``literals`` are its texts."""
        body, place, own = self._bodies[name], self._order.index(name), _WORD.findall(name.rpartition("::")[2])
        near = [self._order[index] for index in (place - 1, place + 1) if 0 <= index < len(self._order)]
        return {
            "unusual_texts": sum(self.text.count(text) < 2 for text in literals) / max(len(literals), 1),
            "adjacent_copy": max((self._likeness(name, other) for other in near), default=0.0),
            "copy": max((self._likeness(name, other) for other in self._order if other != name), default=0.0),
            "same_text": float(sum(other == body for other in self._bodies.values()) > 1),
            "name_words": float(len(own)),
            "name_rare": sum(self._counts[word] == 1 for word in own) / max(len(own), 1),
            "position": place / len(self._order),
            "num_lines": float(len(body.splitlines())),
        }

    def _likeness(self, name: str, other: str) -> float:
        left, right = self._bodies[name].split(), self._bodies[other].split()
        if not left or not right or min(len(left), len(right)) / max(len(left), len(right)) < 0.6:
            return 0.0
        return difflib.SequenceMatcher(None, left, right, autojunk=False).ratio()


class ScriptShapes(Shapes):
    """The tests of a file of JavaScript as an attacker reads them."""

    def __init__(self, path: str, text: str) -> None:
        self.text = text
        self._bodies = {name: text_of(node).partition(",")[2] for name, node in statements_of_tests(path, text).items()}
        self._order = list(self._bodies)
        words = [word for name in self._bodies for word in _WORD.findall(name.rpartition("::")[2])]
        self._counts = {word: words.count(word) for word in set(words)}

    def names(self) -> set[str]:
        return set(self._bodies)

    def score(self, name: str) -> dict[str, float]:
        """The heuristics' values for one test."""
        body, own = self._bodies[name], _WORD.findall(name.rpartition("::")[2])
        return {
            **self._common(name, re.findall(r"'[^'\n]*'|\"[^\"\n]*\"", body)),
            "name_repeats": float(len(own) - len(set(own))),
            "denials": float(len(re.findall(r"not[A-Z]|doesNot|\.not\.|!", body))),
        }


def auc(scores: Sequence[tuple[float, bool]]) -> float:
    """The probability that a canary scores higher than a test, ties counting half."""
    ranked = sorted(scores)
    ranks: dict[float, list[int]] = defaultdict(list)
    for rank, (value, _) in enumerate(ranked, 1):
        ranks[value].append(rank)
    positive = [sum(ranks[value]) / len(ranks[value]) for value, is_canary in ranked if is_canary]
    num, others = len(positive), len(ranked) - len(positive)
    return (sum(positive) - num * (num + 1) / 2) / (num * others) if num and others else 0.5


def regression(
    rows: Sequence[tuple[Sequence[float], bool]], num_steps: int = 300
) -> Callable[[Sequence[float]], float]:
    """A logistic regression on standardized columns."""
    columns = list(zip(*(row for row, _ in rows), strict=True))
    means = [sum(column) / len(column) for column in columns]
    scales = [math.sqrt(sum((x - m) ** 2 for x in c) / len(c)) or 1.0 for c, m in zip(columns, means, strict=True)]
    weights, bias = [0.0] * len(columns), 0.0

    def value(row: Sequence[float]) -> float:
        terms = zip(row, means, scales, weights, strict=True)
        return bias + sum((x - mean) / scale * weight for x, mean, scale, weight in terms)

    for _ in range(num_steps):
        errors = [(1 / (1 + math.exp(-value(row)))) - is_canary for row, is_canary in rows]
        bias -= sum(errors) / len(rows)
        for index, (mean, scale) in enumerate(zip(means, scales, strict=True)):
            pairs = zip(errors, rows, strict=True)
            weights[index] -= sum(e * (row[index] - mean) / scale for e, (row, _) in pairs) / len(rows)
    return value


def rows_of(task: Task, tests: Mapping[str, str], secret: bytes) -> Iterator[tuple[dict[str, float], bool]]:
    """The scores of all tests that a grading of ``task`` runs, and whether each is a canary."""
    canaries = make_canaries(task, tests, secret, 3)
    for path, text in canaries.files.items():
        shapes = ScriptShapes(path, text) if task.runner.is_node else Shapes(text)
        ids = {*task.fail_to_pass, *task.pass_to_pass, *canaries.expected}
        names = {test_id.partition("[")[0].partition("::")[2] for test_id in ids if file_of(test_id) == path}
        for name in sorted(names & shapes.names()):
            yield shapes.score(name), f"{path}::{name}" in canaries.expected


def drawn(folder: Path, num: int, seed: int) -> list[Task]:
    """``num`` tasks, one package after the other."""
    source, of_package = random.Random(seed), defaultdict(list)
    for task in TaskStore(folder).load():
        if task.source != "breakages":
            of_package[task.provenance.package].append(task)
    for tasks in of_package.values():
        source.shuffle(tasks)
    rounds = range(max(map(len, of_package.values())))
    return [tasks[i] for i in rounds for tasks in of_package.values() if i < len(tasks)][:num]


def main() -> None:
    """Print one line per heuristic, and the regression."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", type=Path)
    parser.add_argument("--num", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    store, limits = LayerStore(), SandboxConfig().limits
    rows: list[tuple[dict[str, float], bool]] = []
    halves: tuple[list[int], list[int]] = ([], [])
    packages: dict[str, int] = {}
    for task in drawn(arguments.tasks, arguments.num, arguments.seed):
        tree = task_layers(task, store).spec({}, limits).tree
        tests = {path: text for path in task.test_paths if (text := read_pinned(tree, path)) is not None}
        half = packages.setdefault(task.provenance.package, len(packages)) % 2
        for row in rows_of(task, tests, f"{arguments.seed} {task.id} of a draw".encode()):
            halves[half].append(len(rows))
            rows.append(row)
    num = sum(is_canary for _, is_canary in rows)
    print(f"{num} canaries, {len(rows) - num} tests, {arguments.num} tasks, {len(packages)} packages")
    names = list(rows[0][0])
    for name in names:
        value = auc([(row[name], is_canary) for row, is_canary in rows])
        print(f"{name:18s} {max(value, 1 - value):.3f}")
    vectors = [([row[name] for name in names], is_canary) for row, is_canary in rows]
    learnt = regression([vectors[index] for index in halves[0]])
    print(f"{'regression':18s} {auc([(learnt(vectors[i][0]), vectors[i][1]) for i in halves[1]]):.3f}")


if __name__ == "__main__":
    main()

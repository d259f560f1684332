"""Measure the shape and the language of the source tree: sizes, docstring openings, identifiers, the import graph.

Reads the Python files below a source folder; prints one line per measure, or JSON with ``--json``. With ``--check`` it
exits with 1 when a measure is beyond the bound of `LIMITS`, which `make check` relies on.

Usage: python scripts/measure_house.py [SOURCE] [--json] [--check]
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import statistics
import sys
from collections import Counter, defaultdict
from itertools import pairwise
from pathlib import Path

MAX_LOOSE_FILES = 20
LIKE_PARTS = ("cli", "agent/tools", "grading/exploits", "tasks/formats")
"""Packages whose files are parts of one kind behind a registry: commands, tools, detectors, formats."""
LIMITS = {
    "lines": 126_800,  # grows only with an issue that adds features, by what its note says
    "longest_function": 50,
    "longest_file": 500,
    "question_docstrings_percent": 2.0,
    "found_per_1000_lines": 1.0,
    "one_per_1000_lines": 1.0,
    "header_percent": 12.0,
    "floors": 14,
    "packages_above_20_files": 0,
    "cycles": 0,
}
QUESTION = re.compile(r"(What|How|Which|Whether|Who|Where|When|Why)\b")


def main() -> int:
    """Measure, print, and judge where ``--check`` asks for it."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("source", nargs="?", type=Path, default=Path("src/repairgym"))
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--check", action="store_true")
    arguments = parser.parse_args()
    measures = measure(arguments.source)
    if arguments.json:
        print(json.dumps(measures, indent=2))
    else:
        for name, value in measures.items():
            bound = f"   (limit {LIMITS[name]})" if name in LIMITS else ""
            print(f"{name:32} {value}{bound}")
    beyond = [name for name, bound in LIMITS.items() if measures[name] > bound]
    if arguments.check and beyond:
        print(f"beyond the limit: {', '.join(beyond)}", file=sys.stderr)
        return 1
    return 0


def measure(source: Path) -> dict[str, object]:
    """All measures of the package in ``source``."""
    texts = {path: path.read_text(encoding="utf-8") for path in sorted(source.rglob("*.py"))}
    texts = {path: text for path, text in texts.items() if text.strip()}
    trees = {path: ast.parse(text) for path, text in texts.items()}
    num_lines = {path: len(text.splitlines()) for path, text in texts.items()}
    total = sum(num_lines.values())
    functions = [
        n for t in trees.values() for n in ast.walk(t) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    lengths = [node.end_lineno - node.lineno + 1 for node in functions if node.end_lineno]
    docstrings = [d for tree in trees.values() for d in _docstrings(tree)]
    words = Counter(name for tree in trees.values() for name in _identifiers(tree))
    graph = _room_graph(source, trees)
    floors, cycles = _floors(graph)
    loose = Counter(str(path.parent.relative_to(source)) for path in texts if path.name != "__init__.py")
    return {
        "files": len(texts),
        "lines": total,
        "mean_file": round(total / len(texts), 1),
        "median_file": statistics.median(num_lines.values()),
        "longest_file": max(num_lines.values()),
        "functions": len(functions),
        "longest_function": max(lengths),
        "p99_function": sorted(lengths)[int(0.99 * len(lengths))],
        "docstrings": len(docstrings),
        "question_docstrings_percent": round(
            100 * sum(map(bool, map(QUESTION.match, docstrings))) / len(docstrings), 2
        ),
        "what_per_10000_words": _share_of_what(docstrings),
        "found_per_1000_lines": round(1000 * words["found"] / total, 2),
        "one_per_1000_lines": round(1000 * words["one"] / total, 2),
        "header_percent": round(100 * sum(_header_lines(tree) for tree in trees.values()) / total, 1),
        "rooms": len(graph),
        "floors": floors,
        "cycles": cycles,
        "packages_above_20_files": sum(n > MAX_LOOSE_FILES for p, n in loose.items() if p not in LIKE_PARTS),
        "loose_files": dict(loose.most_common(8)),
    }


def _docstrings(tree: ast.Module) -> list[str]:
    kinds = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    nodes = [node for node in ast.walk(tree) if isinstance(node, kinds)]
    found = [text for node in nodes if (text := ast.get_docstring(node))]
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        for left, right in pairwise(body if isinstance(body, list) else []):
            if isinstance(left, ast.AnnAssign | ast.Assign) and _is_text(right):
                found.append(right.value.value.strip())
    return found


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def _identifiers(tree: ast.Module) -> list[str]:
    names: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            names.append(node.id)
        elif isinstance(node, ast.arg):
            names.append(node.arg)
    return names


def _share_of_what(docstrings: list[str]) -> float:
    words = re.findall(r"[A-Za-z']+", " ".join(docstrings))
    return round(1e4 * sum(word.lower() == "what" for word in words) / len(words), 1)


def _header_lines(tree: ast.Module) -> int:
    """Lines from the top of the file to the end of its last leading import."""
    last = 0
    for node in tree.body:
        if not (isinstance(node, ast.Import | ast.ImportFrom) or (_is_text(node) and node is tree.body[0])):
            break
        last = node.end_lineno or node.lineno
    return last


def _room_graph(source: Path, trees: dict[Path, ast.Module]) -> dict[str, set[str]]:
    """Top-level packages and modules, and the ones that each imports, late imports included."""
    graph: dict[str, set[str]] = defaultdict(set)
    for path, tree in trees.items():
        room = path.relative_to(source).parts[0].removesuffix(".py")
        if room == "__init__":
            continue
        graph[room] |= set()
        for node in ast.walk(tree):
            for name in _imported(node):
                parts = name.split(".")
                if parts[0] == source.name and len(parts) > 1 and parts[1] != room and parts[1] != "__version__":
                    graph[room].add(parts[1])
    return graph


def _imported(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom) and node.module and not node.level:
        return [f"{node.module}.{alias.name}" for alias in node.names]
    return []


def _floors(graph: dict[str, set[str]]) -> tuple[int, int]:
    """Length of the longest chain of imports, and the number of rooms that stand in a circle."""
    height: dict[str, int] = {}
    left = {room: set(needs) & set(graph) for room, needs in graph.items()}
    while left:
        free = [room for room, needs in left.items() if needs <= set(height)]
        if not free:
            return len(set(height.values())), len(left)
        for room in free:
            height[room] = 1 + max((height[need] for need in left[room]), default=0)
        for room in free:
            del left[room]
    return max(height.values()), 0


if __name__ == "__main__":
    sys.exit(main())

"""Specification check: what hidden tests need to know of a repair and nothing that the agent sees tells.

Reads a task with its pinned tree. Makes the untold names, exception types, literals and parts of messages. The agent
sees the issue and its tree: sources with the bug, visible tests, documentation. Guarantees: only what the repair brings
and a hidden test names counts, except for expected exceptions, which the touched functions, the issue or a visible
failing test has to name; nothing runs.
"""

import ast
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path

from repairgym.diffs.lines import split_lines
from repairgym.records import Task
from repairgym.tasks.build.test_files import FunctionNode, file_of, function_id, functions_of, walk_functions
from repairgym.tasks.issues.scope import Scope, find_scope
from repairgym.tasks.sources.fixes import Fix, find_hunks

_WORD = re.compile(r"[A-Za-z_]\w+")
_RAISES = frozenset({"raises", "warns", "deprecated_call", "assertRaises", "assertRaisesRegex", "assertWarns"})
_TEXT_SUFFIXES = frozenset(
    {".py", ".pyi", ".md", ".rst", ".txt", ".toml", ".cfg", ".ini", ".json", ".yml", ".yaml", ""}
)
_MAX_FILE_BYTES = 1_000_000
MIN_LITERAL_CHARS = 4


@dataclass(frozen=True)
class Facts:
    """A task with what its check reads."""

    task: Task
    tree: Path
    """The pinned tree."""

    @cached_property
    def fix(self) -> Fix:
        """The repair, hunk by hunk."""
        gold = self.task.gold_files
        broken = {path: self.task.base_files.get(path) for path in gold}
        return Fix(tuple(find_hunks(broken, gold)), broken, gold)

    def hidden_functions(self) -> list[str]:
        """Return the failing test functions that the agent does not see, without generated ones."""
        shown, generated = {function_id(i) for i in self.task.visible_tests}, self.task.base_files
        failing = functions_of(self.task.fail_to_pass)
        return [i for i in failing if i not in shown and generated.get(file_of(i), "") is not None]

    def visible_functions(self) -> list[str]:
        """Return the failing test functions that the agent sees."""
        shown = {function_id(i) for i in self.task.visible_tests}
        return [i for i in functions_of(self.task.fail_to_pass) if i in shown]

    def source(self, path: str) -> str:
        """Return the pinned text of a test file."""
        return (self.tree / path).read_text(encoding="utf-8", errors="replace")

    def nodes(self, functions: Iterable[str]) -> list[FunctionNode]:
        """Return the definitions of test functions; inherited ones by their last name."""
        definitions = []
        for function in functions:
            path, _, name = function.partition("::")
            known = {own: node for own, node, _ in walk_functions(_parsed(self.source(path)))}
            last = name.rpartition("::")[2]
            inherited = [node for own, node in known.items() if own.rpartition("::")[2] == last]
            definitions += [known[name]] if name in known else inherited[:1]
        return definitions

    def scope(self, function: str) -> Scope:
        """Return what stands around a test function."""
        path, _, name = function.partition("::")
        roots = sorted(self.task.source_paths, key=len, reverse=True)
        packages = set[str]()
        for own in self.task.gold_files:
            root = next((root for root in roots if root and own.startswith(f"{root}/")), "")
            packages.add(own.removeprefix(root).strip("/").partition("/")[0].removesuffix(".py"))
        is_inside = not packages.isdisjoint(path.split("/")[:-1])
        return find_scope(_parsed(self.source(path)), name, packages, is_inside=is_inside)

    def used_names(self, functions: Iterable[str]) -> set[str]:
        """Return the names that test functions use."""
        return _names(self.nodes(functions))

    def is_told(self, item: str) -> bool:
        """Return whether issue or agent's tree hold ``item``: a whole name, or a part of a text."""
        is_name = bool(_WORD.fullmatch(item))
        own = [text for text in self.task.base_files.values() if text is not None]
        if any(_holds(text, item, is_name) for text in (self.task.issue, *own)):
            return True
        texts = _tree_texts(self.tree)
        return any(_holds(text, item, is_name) for path, text in texts.items() if path not in self.task.base_files)


def find_untold(facts: Facts) -> tuple[str, ...]:
    """Return what the hidden tests of a task need and nobody tells, sorted."""
    nodes = facts.nodes(facts.hidden_functions())
    if not nodes:
        return ()
    fix = facts.fix
    untold = {name for name in _names(nodes) & new_names(facts) if not facts.is_told(name)}
    near = " ".join([facts.task.issue, _touched_text(fix), *map(ast.unparse, facts.nodes(facts.visible_functions()))])
    untold |= {name for name in _exceptions(nodes) if not _holds(near, name, is_name=True)}
    parts = new_literals(fix)
    for literal in _literals(nodes):
        part = next((part for part in sorted(parts) if literal in part or part in literal), "")
        if part and not facts.is_told(literal) and not facts.is_told(part):
            untold.add(literal)
    return tuple(sorted(untold))


def new_names(facts: Facts) -> set[str]:
    """Return words that only the repaired code has."""
    return set(_WORD.findall(facts.fix.new_text)) - _words(facts.fix.broken_files)


def new_literals(fix: Fix) -> set[str]:
    """Return string constants, and long numbers, that only the repaired code has."""
    before: set[str] = set().union(*(_constants(text or "") for text in fix.broken_files.values()))
    after: set[str] = set().union(*(_constants(text or "") for text in fix.gold_files.values()))
    return after - before


def _constants(source: str) -> set[str]:
    tree = _parsed(source)
    docs = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    values = (node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and id(node) not in docs)
    return set(filter(None, map(_literal, values)))


def _literal(value: object) -> str:
    """Return a constant that has to be told as text; empty for a common one."""
    text = value.strip() if isinstance(value, str) else repr(value) if type(value) in (int, float) else ""
    is_telling = len(text) >= MIN_LITERAL_CHARS and any(char.isalnum() for char in text)
    return text if is_telling else ""


def _literals(nodes: Iterable[ast.AST]) -> Iterator[str]:
    for node in nodes:
        body = getattr(node, "body", [])
        docs = {id(child.value) for child in body if isinstance(child, ast.Expr)}
        for child in ast.walk(node):
            if isinstance(child, ast.Constant) and id(child) not in docs and (text := _literal(child.value)):
                yield text.replace("\\", "")


def _names(nodes: Iterable[ast.AST]) -> set[str]:
    names: set[str] = set()
    for node in (child for top in nodes for child in ast.walk(top)):
        for field in ("id", "attr", "arg", "name"):
            if isinstance(value := getattr(node, field, None), str):
                names.update(value.split("."))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and _WORD.fullmatch(node.value):
            names.add(node.value)
    return names


def _exceptions(nodes: Iterable[ast.AST]) -> set[str]:
    """Return the names of the exceptions and warnings that the tests expect."""
    expected = set[str]()
    children = [child for top in nodes for child in ast.walk(top)]
    own = {name for child in children if isinstance(child, ast.Raise) for name in _names([child])}
    for node in (child for child in children if isinstance(child, ast.Call)):
        called = getattr(node.func, "attr", getattr(node.func, "id", ""))
        if called in _RAISES and node.args:
            kinds = node.args[0].elts if isinstance(node.args[0], ast.Tuple) else [node.args[0]]
            expected |= {
                name for kind in kinds if (name := getattr(kind, "attr", getattr(kind, "id", ""))) != "Exception"
            }
    return {name for name in expected - own if name and name[0].isupper()}


def _touched_text(fix: Fix) -> str:
    """Return the broken text of the functions that ``fix`` touches, of its files where it touches none."""
    location = fix.location()
    parts = []
    for path, text in fix.broken_files.items():
        lines = split_lines(text or "")
        is_located = location is not None and location.path == path
        parts += lines[location.first_line - 1 : location.last_line] if location and is_located else []
    return "".join(parts) if parts else "".join(text or "" for text in fix.broken_files.values())


def _words(files: Mapping[str, str | None]) -> set[str]:
    return {word for text in files.values() for word in _WORD.findall(text or "")}


def _holds(text: str, item: str, is_name: bool) -> bool:
    if item not in text:
        return False
    return not is_name or re.search(rf"(?<!\w){re.escape(item)}(?!\w)", text) is not None


@lru_cache(maxsize=256)
def _parsed(source: str) -> ast.Module:
    try:
        return ast.parse(source)
    except SyntaxError:
        return ast.Module([], [])


@lru_cache(maxsize=2)
def _tree_texts(tree: Path) -> Mapping[str, str]:
    """Return the texts of ``tree`` by path."""
    texts = {}
    for path in sorted(tree.rglob("*")):
        is_text = path.suffix in _TEXT_SUFFIXES and path.is_file() and not path.is_symlink()
        if is_text and path.stat().st_size <= _MAX_FILE_BYTES:
            texts[path.relative_to(tree).as_posix()] = path.read_text(encoding="utf-8", errors="replace")
    return texts

"""Function changes: the texts of one function in two releases, to pre-train on repairs that people made.

Reads the trees of two releases of a package; makes `FunctionChange` records. Invariants: both texts parse and keep to
the limits of `ChangesConfig`; a change that no test can see (comments, layout, annotations, texts for people) is left
out, and so are tests, vendored copies and files that bear the name of a held-out package.
"""

import ast
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from difflib import SequenceMatcher
from pathlib import Path, PurePosixPath

from repairgym.agent.tools.window import docstring_lines
from repairgym.config.commands import ChangesConfig
from repairgym.pretraining.corpus import MAX_FILE_BYTES, MAX_LINE_CHARS, MIN_CODE_LINES, SKIPPED_PARTS
from repairgym.records import Record
from repairgym.tasks.mutation.operators import WithoutAnnotations, find_functions, is_text

_GENERATED = re.compile(r"(_pb2|_pb2_grpc|_version|(^|/)conftest|(^|/)test_[^/]*|_tests?)\.py$")
_OTHER_PARTS = frozenset(
    {"patched", "generated", "_generated", "migrations", "fixtures", "test_data", "testdata"}
    | {"docs", "doc", "examples", "example", "benchmarks"}
)
_SECTION = re.compile(r"^(?=@|(?:async def|def|class)\b)", re.M)
"""Cuts of a module into functions, classes and the rest; a cut inside a text leaves sections that do not parse."""
_CLASS = re.compile(r"class\s+(\w+)")
_NESTED = re.compile(r"\n[ \t]*(?:async def|def|class)\b")
_METHOD = re.compile(r"^([ \t]+)(?:@|(?:async def|def|class)\b)", re.M)


class FunctionChange(Record):
    """A function of two releases, docstrings and blank lines left out."""

    package: str
    version_before: str
    version_after: str
    path: str
    name: str
    """Qualified name."""
    before: tuple[str, ...]
    after: tuple[str, ...]


def release_changes(
    package: str, versions: tuple[str, str], trees: tuple[Path, Path], config: ChangesConfig, held_out: frozenset[str]
) -> Iterator[FunctionChange]:
    """Yield the changes between two ``versions`` of ``package``, whose files are in ``trees``.

    ``held_out`` are normalized names (`normalized_name`) that no folder or module of a file may have.
    """
    for file in sorted(trees[0].rglob("*.py")):
        path = file.relative_to(trees[0]).as_posix()
        if not is_selected(path, held_out) or not (trees[1] / path).is_file():
            continue
        texts = _text(file), _text(trees[1] / path)
        for name, before, after in function_changes(*texts, config) if texts[0] != texts[1] else ():
            yield FunctionChange(
                package=package, version_before=versions[0], version_after=versions[1],
                path=path, name=name, before=before, after=after,
            )  # fmt: skip


def _text(file: Path) -> str:
    """Return the text of a file; empty for one that is too large or no UTF-8."""
    try:
        return file.read_text(encoding="utf-8") if file.stat().st_size <= MAX_FILE_BYTES else ""
    except UnicodeDecodeError:
        return ""


def normalized_name(name: str) -> str:
    """Return a project's, folder's or module's name in the form in which they are compared."""
    return name.lower().replace("_", "-").removeprefix("python-").removesuffix("-python")


def is_selected(path: str, held_out: frozenset[str]) -> bool:
    """Return True for the code of the project itself: no test, vendored copy, generated or held-out file."""
    parts = PurePosixPath(path).parts
    names = {normalized_name(part) for part in (*parts[:-1], PurePosixPath(path).stem)}
    is_skipped = (SKIPPED_PARTS | _OTHER_PARTS) & set(parts) or held_out & names
    return not is_skipped and not _GENERATED.search(path)


def function_changes(
    before: str, after: str, config: ChangesConfig
) -> Iterator[tuple[str, tuple[str, ...], tuple[str, ...]]]:
    """Yield name and texts of the functions that differ between two versions of a file, within the limits."""
    sections_before, sections_after = list(_sections(before)), list(_sections(after))
    same = set(sections_before) & set(sections_after)  # most of a file, and parsing is what takes time
    functions_before = _functions(section for section in sections_before if section not in same)
    functions_after = _functions(section for section in sections_after if section not in same)
    for key in sorted(functions_before.keys() & functions_after.keys()):
        sources = functions_before[key], functions_after[key]
        if sources[0] == sources[1] or _num_distinct(*sources) > 4 * config.max_changed_lines:
            continue  # at a glance: folding takes time
        texts = folded_lines(sources[0]), folded_lines(sources[1])
        fit = all(_is_within_limits(text, config) for text in texts) and _is_small(*texts, config)
        if fit and _behavior(sources[0]) not in {_behavior(sources[1]), ""}:
            yield key[0], *texts


def _sections(source: str) -> Iterator[str]:
    """Yield the functions, methods (each in a class of its own) and other parts of a module."""
    for section in _SECTION.split(source):
        name, method = _CLASS.match(section), _METHOD.search(section)
        if not name or not method:
            yield section
            continue
        for part in re.split(rf"^(?={method[1]}(?:@|(?:async def|def|class)\b))", section, flags=re.M):
            yield part if part.startswith("class") else f"class {name[1]}:\n{part}"


def _functions(sections: Iterable[str]) -> dict[tuple[str, int], str]:
    """Return (qualified name, how many of that name came before) -> source without docstring.

    Sections that do not parse have none.
    """
    num_seen, sources = Counter[str](), {}
    for section in sections:
        try:
            spans = find_functions(section)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            continue
        lines = section.splitlines()
        for span in spans:
            name, (first, last) = span.qualified_name, span.docstring_lines
            code = lines[span.first_line - 1 : span.last_line]
            if first:
                del code[first - span.first_line : last - span.first_line + 1]
            sources[name, num_seen[name]] = "\n".join(code)
            num_seen[name] += 1
    return sources


def _num_distinct(before: str, after: str) -> int:
    """Return the number of lines that only one of the two texts has."""
    lines_before, lines_after = Counter(before.splitlines()), Counter(after.splitlines())
    return (lines_before - lines_after).total() + (lines_after - lines_before).total()


def function_texts(source: str) -> Iterator[tuple[str, ...]]:
    """Yield the folded lines of every function of a module; none of one that does not parse."""
    return map(folded_lines, _functions(_sections(source)).values())


def _as_module(source: str) -> str:
    """Return a function's source as a module whose first line is none of its own."""
    return f"if True:\n{source}" if source[:1].isspace() else f"\n{source}"


def folded_lines(source: str) -> tuple[str, ...]:
    """Return the lines of a function without blank lines and docstrings of what is inside it."""
    folded = docstring_lines(_as_module(source)) if _NESTED.search(source) else ()
    lines = enumerate(source.splitlines(), 2)
    return tuple(line.rstrip() for number, line in lines if number not in folded and line.strip())


def _is_within_limits(lines: tuple[str, ...], config: ChangesConfig) -> bool:
    is_short = MIN_CODE_LINES <= len(lines) <= config.max_code_lines
    return is_short and sum(map(len, lines)) <= config.max_chars and max(map(len, lines)) <= MAX_LINE_CHARS


def _is_small(before: tuple[str, ...], after: tuple[str, ...], config: ChangesConfig) -> bool:
    codes = SequenceMatcher(None, before, after, autojunk=False).get_opcodes()
    sizes = [end - start + new_end - new_start for tag, start, end, new_start, new_end in codes if tag != "equal"]
    return 1 <= len(sizes) <= config.max_hunks and sum(sizes) <= config.max_changed_lines


def _behavior(source: str) -> str:
    """Return a function without what `_Undressed` takes away, as text; empty for one that does not parse."""
    try:
        return ast.dump(_Undressed().visit(ast.parse(_as_module(source))))
    except (SyntaxError, ValueError, RecursionError):
        return ""


class _Undressed(WithoutAnnotations):
    """Takes out what no test sees: annotations, docstrings, sentences (texts with a space), ``None`` behind ``return``.

    Arguments of ``super``, which Python 3 does not need, go, too.
    """

    def visit_Call(self, node: ast.Call) -> ast.AST:
        if isinstance(node.func, ast.Name) and node.func.id == "super":
            return ast.Call(node.func, [], [])
        return self.generic_visit(node)

    def visit_Return(self, node: ast.Return) -> ast.AST:
        is_none = isinstance(node.value, ast.Constant) and node.value.value is None
        return ast.Return() if is_none else self.generic_visit(node)

    def visit_Expr(self, node: ast.Expr) -> ast.AST | None:
        return None if is_text(node) else self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        return ast.Constant("" if isinstance(node.value, str) and " " in node.value else node.value)

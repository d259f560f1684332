"""Syntax-tree mutation operators that work on source text and keep its formatting.

Reads a module's source; makes `Site` objects (a token that can be replaced) and `Mutation` objects (a site and its new
text). Invariants: every alternative parses, a mutation touches exactly one line, and applying the inverse restores
the source byte for byte. The vocabulary is closed: only operators, keywords, small integers and a few method names
change, never free identifiers, so that a policy of a few million parameters can write the repair.
"""

import ast
import io
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Self, TypeGuard

from repairgym.diffs.lines import source_lines

NOT_PARSED = (SyntaxError, ValueError, RecursionError)
"""Errors of the parser: no such syntax, a null character, too deep."""
BYTE_ORDER_MARK = "\ufeff"
"""First character of some files, which the parser takes in bytes only."""


class SourceTokens:
    """Tokens of a module by position, with columns in characters (the syntax tree counts UTF-8 bytes)."""

    def __init__(self, source: str) -> None:
        """Read ``source``; SyntaxError when it has no tokens."""
        self.lines = source_lines(source, keepends=True)
        skipped = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT}
        try:
            stream = list(tokenize.generate_tokens(io.StringIO(source).readline))
        except (tokenize.TokenError, IndentationError) as error:
            raise SyntaxError(str(error)) from error
        self.tokens = [token for token in stream if token.type not in skipped]
        self.index = {token.start: number for number, token in enumerate(self.tokens)}

    def position(self, line: int, byte_offset: int) -> tuple[int, int]:
        """Return (line, character column) of a syntax-tree position."""
        text = self.lines[line - 1]
        if text.isascii():
            return line, byte_offset
        return line, len(text.encode()[:byte_offset].decode(errors="ignore"))

    def between(self, left: ast.expr, right: ast.expr) -> list[tokenize.TokenInfo]:
        """Return the tokens between ``left`` and ``right``, without brackets."""
        end = self.position(left.end_lineno or left.lineno, left.end_col_offset or 0)
        number = self.index.get(self.position(right.lineno, right.col_offset))
        if number is None:
            return []
        tokens = []
        while number > 0 and self.tokens[number - 1].start >= end:
            number -= 1
            if self.tokens[number].string not in "()":
                tokens.append(self.tokens[number])
        return tokens[::-1]

    def at(self, node: ast.AST) -> tokenize.TokenInfo | None:
        """Return the token at the start of ``node``."""
        line, offset = getattr(node, "lineno", 0), getattr(node, "col_offset", 0)
        number = self.index.get(self.position(line, offset)) if line else None
        return None if number is None else self.tokens[number]


COMPARISONS = ("<", "<=", ">", ">=", "==", "!=")
ARITHMETIC = ("+", "-", "*", "/", "//", "%")
AUGMENTED = ("+=", "-=", "*=", "/=", "//=")
BITWISE = ("&", "|", "^", "<<", ">>")
WORD_GROUPS = (
    ("min", "max"),
    ("any", "all"),
    ("startswith", "endswith"),
    ("lower", "upper"),
    ("strip", "lstrip", "rstrip"),
    ("find", "rfind"),
    ("split", "rsplit"),
    ("append", "extend"),
    ("keys", "values"),
)
"""Names of builtins and methods that people confuse."""
MAX_CONSTANT = 16
"""Larger integers are left alone: neighbours of large numbers are rarely plausible mistakes."""

_WORDS = {word: tuple(other for other in group if other != word) for group in WORD_GROUPS for word in group}

_GROUPS = (
    *(COMPARISONS, ARITHMETIC, AUGMENTED, BITWISE, ("and", "or"), ("in", "not in"), ("is", "is not")),
    *(("if", "if not", "while", "while not"), ("break", "continue"), ("True", "False"), ("0", "1", "2", "3", "4")),
    *WORD_GROUPS,
)


def vocabulary_group(token: str) -> tuple[str, ...]:
    """Return the vocabulary's other tokens for the place of ``token``; empty for other text."""
    return tuple(other for group in _GROUPS if token in group for other in group if other != token)


@dataclass(frozen=True)
class Site:
    """A replaceable token; of `semantic_operators` also a part of a line, or whole lines.

    ``line`` is 1-based, ``column`` 0-based in characters; ``old`` is the source text there.
    """

    operator: str
    """Family: comparison, boolean, arithmetic, constant, negation, membership, identity, loop, name, bitwise."""
    line: int
    column: int
    old: str
    alternatives: tuple[str, ...]

    @property
    def last_line(self) -> int:
        """Last line that the text lies on."""
        return self.line + self.old.removesuffix("\n").count("\n")


@dataclass(frozen=True)
class Mutation:
    """A site and the text that replaces it."""

    site: Site
    new: str

    @property
    def inverse(self) -> Self:
        """The mutation that restores the source."""
        site = Site(self.site.operator, self.site.line, self.site.column, self.new, (self.site.old,))
        return type(self)(site, self.site.old)


@dataclass(frozen=True)
class FunctionSpan:
    """Lines of a function, 1-based and inclusive; the docstring range is (0, 0) without a docstring."""

    qualified_name: str
    first_line: int
    """Line of ``def`` (decorators come before it)."""
    last_line: int
    docstring_lines: tuple[int, int]

    @property
    def num_code_lines(self) -> int:
        """Lines without the docstring."""
        start, end = self.docstring_lines
        return self.last_line - self.first_line + 1 - (end - start + 1 if start else 0)


def apply(source: str, *mutations: Mutation) -> str:
    """Apply the mutations to ``source``; ValueError if the old text of a site is not at its place."""
    starts = [0, *accumulate(len(line) for line in source_lines(source, keepends=True))]
    # From the end on, so that earlier places stay where they are.
    for mutation in sorted(mutations, key=lambda m: (m.site.line, m.site.column), reverse=True):
        site = mutation.site
        first = starts[site.line - 1] + site.column
        if not source.startswith(site.old, first):
            line = source[starts[site.line - 1] : starts[site.line]]
            raise ValueError(f"line {site.line} column {site.column} does not hold {site.old!r}: {line!r}")
        source = source[:first] + mutation.new + source[first + len(site.old) :]
    return source


def find_functions(source: str) -> list[FunctionSpan]:
    """Return module-level functions and methods of a module that parses, in source order."""
    return list(_walk_functions(ast.parse(source.removeprefix(BYTE_ORDER_MARK)), ""))


def _walk_functions(node: ast.AST, prefix: str) -> Iterator[FunctionSpan]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ClassDef):
            yield from _walk_functions(child, f"{prefix}{child.name}.")
        elif isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)):
            text = docstring_of(child)
            text_lines = (text.lineno, text.end_lineno or text.lineno) if text else (0, 0)
            yield FunctionSpan(prefix + child.name, child.lineno, child.end_lineno or child.lineno, text_lines)


def docstring_of(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> ast.Expr | None:
    """Return the docstring statement of ``node``; None without one or without other statements."""
    return node.body[0] if is_text(node.body[0]) and len(node.body) > 1 else None


def is_text(node: ast.AST) -> TypeGuard[ast.Expr]:
    """Return True for a statement that is a text alone: a docstring."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def find_sites(source: str) -> list[Site]:
    """Return all sites of a module that parses, by line and column."""
    tree = ast.parse(source)
    tokens = SourceTokens(source)
    sites = {(site.line, site.column): site for node in ast.walk(tree) for site in _node_sites(node, tokens)}
    return [sites[place] for place in sorted(sites)]


def _node_sites(node: ast.AST, tokens: SourceTokens) -> Iterator[Site]:
    if isinstance(node, ast.Compare):
        operands = [node.left, *node.comparators]
        for left, right in pairwise(operands):
            yield from _operator_site(tokens.between(left, right))
    elif isinstance(node, ast.BoolOp):
        for left, right in pairwise(node.values):
            yield from _operator_site(tokens.between(left, right))
    elif isinstance(node, ast.BinOp):
        if not (isinstance(node.op, ast.Mod) and isinstance(node.left, (ast.Constant, ast.JoinedStr))):
            yield from _operator_site(tokens.between(node.left, node.right))
    elif isinstance(node, ast.AugAssign):
        yield from _operator_site(tokens.between(node.target, node.value))
    elif isinstance(node, (ast.If, ast.While)):
        yield from _negation_site(node, tokens)
    elif isinstance(node, ast.Constant):
        yield from _constant_site(node, tokens.at(node))
    elif isinstance(node, (ast.Break, ast.Continue)):
        token = tokens.at(node)
        if token:
            yield _site("loop", token, ("continue",) if token.string == "break" else ("break",))
    elif isinstance(node, ast.Call):
        yield from _name_site(node.func, tokens)


def _site(operator: str, token: tokenize.TokenInfo, alternatives: tuple[str, ...]) -> Site:
    return Site(operator, token.start[0], token.start[1], token.string, alternatives)


def _operator_site(gap: list[tokenize.TokenInfo]) -> Iterator[Site]:
    if len(gap) == 1:
        token = gap[0]
        for operator, family in (
            ("comparison", COMPARISONS),
            ("arithmetic", ARITHMETIC),
            ("arithmetic", AUGMENTED),
            ("bitwise", BITWISE),
            ("boolean", ("and", "or")),
        ):
            if token.string in family:
                yield _site(operator, token, tuple(other for other in family if other != token.string))
                return
        if token.string in ("in", "is"):
            yield _site("membership", token, ("not in",) if token.string == "in" else ("is not",))
    elif len(gap) == 2 and gap[0].start[0] == gap[1].start[0]:
        text = f"{gap[0].string} {gap[1].string}"
        if text in ("not in", "is not") and gap[1].start[1] == gap[0].end[1] + 1:
            yield Site("membership", *gap[0].start, text, ("in",) if text == "not in" else ("is",))


def _negation_site(node: ast.If | ast.While, tokens: SourceTokens) -> Iterator[Site]:
    token = tokens.at(node)
    if token is None or token.string not in ("if", "elif", "while"):
        return
    if isinstance(node.test, ast.UnaryOp) and isinstance(node.test.op, ast.Not):
        line = tokens.lines[token.start[0] - 1]
        text = f"{token.string} not"
        if line[token.start[1] : token.start[1] + len(text) + 1] == text + " ":
            yield Site("negation", *token.start, text, (token.string,))
    elif isinstance(node.test, (ast.Name, ast.Call, ast.Attribute)):
        yield _site("negation", token, (f"{token.string} not",))


def _constant_site(node: ast.Constant, token: tokenize.TokenInfo | None) -> Iterator[Site]:
    if token is None:
        return
    if isinstance(node.value, bool):
        yield _site("constant", token, ("False",) if node.value else ("True",))
    elif type(node.value) is int and token.string == str(node.value) and node.value <= MAX_CONSTANT:
        neighbours = (node.value - 1, node.value + 1)
        yield _site("constant", token, tuple(str(value) for value in neighbours if value >= 0))


def _name_site(function: ast.expr, tokens: SourceTokens) -> Iterator[Site]:
    if isinstance(function, ast.Name) and function.id in _WORDS:
        token = tokens.at(function)
        if token:
            yield _site("name", token, _WORDS[function.id])
    elif isinstance(function, ast.Attribute) and function.attr in _WORDS:
        line, end = tokens.position(function.end_lineno or 0, function.end_col_offset or 0)
        number = tokens.index.get((line, end - len(function.attr)))
        if number is not None and tokens.tokens[number].string == function.attr:
            yield _site("name", tokens.tokens[number], _WORDS[function.attr])


class WithoutAnnotations(ast.NodeTransformer):
    """Takes out annotations, which change no behavior."""

    def visit_arg(self, node: ast.arg) -> ast.AST:
        """Return the parameter by its name."""
        return ast.arg(node.arg)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        """Return the function without the type of its result."""
        node.returns = None
        return self.generic_visit(node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.AST:
        """Return the function without the type of its result."""
        node.returns = None
        return self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST | None:
        """Return a plain assignment; none where there is no value."""
        return self.generic_visit(ast.Assign([node.target], node.value)) if node.value else None

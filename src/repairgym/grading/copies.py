"""The parts of a test file that canaries are made from, and copies of its tests.

A :class:`Layout` is made once per text and process, because parsing a large test file costs more than everything else
that a grading does on the host; it holds no syntax tree. A copy is the text of a test under another name, edited in
place, so that its formatting is that of the file.
"""

import ast
import random
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import NamedTuple, Protocol

from repairgym.diffs.lines import split_lines
from repairgym.grading.exploits.syntax import span_of, unparsed
from repairgym.grading.wrong_answers import Edit, FunctionText

_LINE_SENSITIVE = re.compile(r"[fb]_lineno|getsource|co_first|__line__|traceback|currentframe|open\(__file__")
_MARKS_ALL = re.compile(r"^pytestmark\b|pytest_generate_tests|^__test__|^load_tests", re.M)
_MAY_SKIP = re.compile(r"skip|xfail|expectedFailure|requires|platform")
_MAY_TAKE_LONG = re.compile(r"sleep|thread|process|timeout|socket|slow|bench|large|huge|stress|random|[1-9]\d{3}|\*\*")
_CHANGES_STATE = re.compile(r"sys\.modules|environ\b|register|(?<!\.)setattr|reload|chdir|setlocale")
"""Words of tests that may leave something behind: a copy before the test could make it fail."""
_CHANGING_METHOD = re.compile(
    r"(add|append|clear|discard|extend|insert|pop|remove|reset|set|setdefault|sort|update|(de)?activate|enable|disable|"
    r"(un)?install|(un)?patch|configure)(_|$)"
)
"""Methods that change their object when nobody takes their result."""
_MAY_END_THE_RUN = re.compile(r"KeyboardInterrupt|SystemExit|GeneratorExit|BaseException|\bexit\(")
"""Words of tests that leave a runner when they fail: it would not run the tests after them."""
_DEFAULT_WORDS = ("value", "empty", "case")
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+|_+|.")
_MAX_VALUE_CHARS = 60
_MAX_ROWS = 3
_MAX_FRESH = 60
_SHARE_OF_RARE_WORDS, _SHARE_OF_OTHER_WORDS = 0.75, 0.3
SHARE_OF_CUTS = 0.6
_OTHER_WORD = re.compile(r"(?<![A-Za-z\d])[A-Za-z][a-z]{2,9}(?![A-Za-z\d])|(?<![A-Za-z\d])\d(?![A-Za-z\d])")


class Insertion(NamedTuple):
    """A test to put into a test file."""

    name: str
    """``test_x`` or ``TestClass::test_x``."""
    place: int
    """The line (from 0) of the pinned file before which it stands."""
    text: str
    """Indented as it stands in the file."""


class PlainTest(NamedTuple):
    """A test whose copy runs to its end, twice in one process."""

    span: tuple[int, int]
    """First line (from 0) and the line behind the last."""
    places: tuple[int, ...]
    """Lines before which a copy can stand: in its class, or on the level of the module."""


@dataclass(frozen=True)
class Layout:
    """One test file."""

    text: str
    names: tuple[str, ...]
    """Of its test functions, without classes, sorted."""
    end: int
    """Number of its lines."""
    places: tuple[int, ...]
    """Lines on module level before which a test can stand; the end is always one."""
    plain: Mapping[str, PlainTest]
    """``test_a`` or ``TestB::test_c`` -> the test."""
    values: tuple[str | bytes, ...]
    """Its short texts and bytes."""
    other_words: tuple[str, ...]
    """Words and digits of it that are in no name of a test."""
    is_always_run: bool
    """False when something in it may skip a test, so that nothing is known of tests that no task names."""

    @cached_property
    def lines(self) -> list[str]:
        """The lines of the text, with their ends."""
        return split_lines(self.text)

    def function(self, name: str) -> FunctionText | None:
        """Return the text of the plain test ``name``."""
        return FunctionText.parse(self._text_of(name))

    def is_name(self, text: str) -> bool:
        """Return True for an identifier in ASCII."""
        return text.isidentifier() and text.isascii()

    def longer(self, name: str, word: str) -> str:
        """Return ``name`` with one more word, in its style."""
        return name + (f"_{word}" if "_" in name else word.title())

    def _text_of(self, name: str) -> str:
        return "".join(self.lines[slice(*self.plain[name].span)])

    def is_quick(self, name: str) -> bool:
        """Return True when nothing in the plain test ``name`` looks as if it took long."""
        return not _MAY_TAKE_LONG.search(self._text_of(name))

    def has_fixtures(self, name: str) -> bool:
        """Return True when the plain test ``name`` takes more than its receiver."""
        function = self.function(name)
        return function is None or any(argument.arg != "self" for argument in function.node.args.args)


@lru_cache(maxsize=256)
def layout_of(text: str) -> Layout | None:
    """Return the layout of a test file; None when it can hold no canary."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return None
    if _MARKS_ALL.search(text):
        return None
    parts = list(ast.walk(tree))
    names = sorted({node.name for node in parts if isinstance(node, ast.FunctionDef) and node.name.startswith("test")})
    lines = split_lines(text)
    # Tests may look at their line numbers: nothing stands before the last one that does.
    first = max((number for number, line in enumerate(lines, 1) if _LINE_SENSITIVE.search(line)), default=0)
    places = (len(lines), *(place for place in _places(tree) if place >= first))
    constants = (node.value for node in parts if isinstance(node, ast.Constant) and isinstance(node.value, str | bytes))
    values = sorted({value for value in constants if 0 < len(value) < _MAX_VALUE_CHARS}, key=repr)
    is_always_run = not _MAY_SKIP.search(text)
    plain = {
        name: test
        for name, test in _plain_tests(tree, places, first, is_always_run)
        if not any(unfit.search("".join(lines[slice(*test.span)])) for unfit in (_CHANGES_STATE, _MAY_END_THE_RUN))
    }
    others = words_beside(text, names)
    return Layout(text, tuple(names), len(lines), places, plain, tuple(values), others, is_always_run)


def words_beside(text: str, names: Sequence[str]) -> tuple[str, ...]:
    """Return the words and digits of ``text`` that are in none of ``names``, sorted."""
    return tuple(sorted(set(_OTHER_WORD.findall(text)) - {word for name in names for word in _WORD.findall(name)}))


def _places(tree: ast.Module) -> Iterator[int]:
    previous_end, has_test = 0, False
    for node in tree.body:
        is_definition = isinstance(node, ast.FunctionDef | ast.ClassDef)
        first, end = span_of(node)
        if has_test and first >= previous_end and is_definition:
            yield first
        has_test = has_test or (is_definition and getattr(node, "name", "").lower().startswith("test"))
        previous_end = end


def _plain_tests(
    tree: ast.Module, places: tuple[int, ...], first: int, is_always_run: bool
) -> Iterator[tuple[str, PlainTest]]:
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and _is_plain(node, is_always_run):
            yield node.name, PlainTest(span_of(node), places)
        elif isinstance(node, ast.ClassDef) and not node.decorator_list:
            members = [part for part in node.body if isinstance(part, ast.FunctionDef)]
            inside = tuple(sorted({line for part in members for line in span_of(part) if line >= first}))
            for part in members:
                if inside and _is_plain(part, is_always_run):
                    yield f"{node.name}::{part.name}", PlainTest(span_of(part), inside)


def _is_plain(node: ast.FunctionDef, is_always_run: bool) -> bool:
    # A `return` or a `yield` could leave early; other decorators could change the outcome.
    is_known = all(_is_parametrized(decorator, is_always_run) for decorator in node.decorator_list)
    if not node.name.startswith("test") or not is_known:
        return False
    is_last_bare = isinstance(node.body[-1], ast.Return) and node.body[-1].value is None
    own = [part for statement in (node.body[:-1] if is_last_bare else node.body) for part in _own_parts(statement)]
    unfit = (ast.Return, ast.Yield, ast.YieldFrom, ast.Global, ast.Await)
    local = {part.id for part in own if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store)}
    local |= {argument.arg for argument in (*node.args.args, *node.args.kwonlyargs)}
    return not any(isinstance(part, unfit) or _is_hidden(part, local) or _is_left(part, local) for part in own)


def _own_parts(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes of ``node`` that run with it, not those of functions and classes in it."""
    yield node
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
        for child in ast.iter_child_nodes(node):
            yield from _own_parts(child)


def _is_parametrized(decorator: ast.expr, is_always_run: bool) -> bool:
    """Return True for ``parametrize``, with its rows in sight where something in the file may mark them."""
    match decorator:
        case ast.Call(func=ast.Attribute(attr="parametrize"), args=[_, rows], keywords=keywords):
            is_in_sight = isinstance(rows, ast.List | ast.Tuple) and bool(rows.elts) and not keywords
            return "marks" not in unparsed(rows) if is_in_sight else is_always_run
    return False


def _is_hidden(node: ast.AST, local: Set[str]) -> bool:
    """Return True for a private attribute of an object from outside of the test.

    A copy would change state behind the API (`registry._entries`) for a second time.
    """
    if not isinstance(node, ast.Attribute) or not node.attr.startswith("_") or node.attr.endswith("__"):
        return False
    return not _is_of(node.value, local)


def _is_left(node: ast.AST, local: Set[str]) -> bool:
    """Return True for a change of an object from outside of the test: a wrong copy fails before it is taken back."""
    match node:
        case (
            ast.Attribute(value=root, ctx=ast.Store() | ast.Del())
            | ast.Subscript(value=root, ctx=ast.Store() | ast.Del())
        ):
            return not _is_of(root, local)
        case ast.Expr(value=ast.Call(func=ast.Attribute(attr=method, value=root))):
            return bool(_CHANGING_METHOD.match(method)) and not _is_of(root, local)
    return False


def _is_of(node: ast.expr, local: Set[str]) -> bool:
    """Return True for a part of an object that a name of ``local`` holds."""
    while isinstance(node, ast.Attribute | ast.Call | ast.Subscript):
        node = node.func if isinstance(node, ast.Call) else node.value
    return isinstance(node, ast.Name) and node.id in local


# --- copies -----------------------------------------------------------------------------------------------------------


def copy_edits(function: FunctionText, name: str, source: random.Random) -> list[Edit]:
    """Return the edits that give a copy of ``function`` its ``name``, and at most three rows of parameters."""
    node = function.node
    line = function.lines[node.lineno - 1]
    start = line.index(node.name.encode(), node.col_offset)
    edits = [Edit(1.0, (node.lineno, start), (node.lineno, start + len(node.name.encode())), name.encode())]
    for decorator in node.decorator_list:
        match decorator:
            case ast.Call(args=[_, ast.List(elts=rows) | ast.Tuple(elts=rows)], keywords=[]) if len(rows) > _MAX_ROWS:
                first = source.randrange(len(rows) - _MAX_ROWS)
                edits += _without(rows[:first], rows[first]) + _without_rest(rows[first + _MAX_ROWS - 1], rows[-1])
            case ast.Call(args=[_, ast.Name() | ast.Attribute() as rows], keywords=[]):
                few = b"list(%b)[:%d]" % (function.part(rows), _MAX_ROWS)
                edits.append(Edit(1.0, _start(rows), _end(rows), few))
    return edits


def fixture_edits(function: FunctionText, prefix: str, file: str) -> list[Edit] | None:
    """Return the edits that make a fixture of the first variable of ``function``, renamed so that none provides it.

    It stands in the place of all others, one of which may have a hundred rows. None when its first statement assigns
    no variable, or ``file`` has the new name.
    """
    node = function.node
    match node.body:
        case [ast.Assign(targets=[ast.Name(id=old)]) as first, following, *_]:
            pass
        case _:
            return None
    new = f"{prefix}_{old}"
    uses = [part for part in ast.walk(node) if isinstance(part, ast.Name) and part.id == old][1:]
    is_used_alone = bool(uses) and all(isinstance(part.ctx, ast.Load) for part in uses)
    place = function.lines[node.lineno - 1].find(b"(") + 1
    others = node.args.defaults or node.args.vararg or node.args.kwonlyargs or node.args.kwarg
    if not is_used_alone or new in file or place == 0 or others or following.lineno <= _end(first)[0]:
        return None
    own = [argument for argument in node.args.args[:1] if argument.arg == "self"]
    fixtures = node.args.args[len(own) :]
    head = _end(own[0]) if own else (node.lineno, place)
    span = (_start(fixtures[0]), _end(fixtures[-1])) if fixtures else (head, head)
    argument = f", {new}" if own and not fixtures else new
    gone = Edit(1.0, (first.lineno, 0), ((first.end_lineno or first.lineno) + 1, 0), b"")
    return [
        Edit(1.0, *span, argument.encode()),
        gone,
        *(Edit(1.0, _start(u), _end(u), new.encode()) for u in uses),
    ]


def _without(rows: Sequence[ast.expr], kept: ast.expr) -> list[Edit]:
    return [Edit(1.0, _start(rows[0]), _start(kept), b"")] if rows else []


def _without_rest(kept: ast.expr, last: ast.expr) -> list[Edit]:
    return [Edit(1.0, _end(kept), _end(last), b"")]


def _start(node: ast.expr | ast.arg) -> tuple[int, int]:
    return node.lineno, node.col_offset


def _end(node: ast.expr | ast.stmt | ast.arg) -> tuple[int, int]:
    return node.end_lineno or node.lineno, node.end_col_offset or 0


def is_evaluated(node: ast.FunctionDef) -> bool:
    """Return True when the definition of ``node`` evaluates something."""
    own = node.args
    arguments = [*own.posonlyargs, *own.args, *own.kwonlyargs]
    is_annotated = node.returns is not None or any(argument.annotation is not None for argument in arguments)
    return bool(node.decorator_list or own.defaults or own.kw_defaults or is_annotated)


def cut_edits(function: FunctionText, first: int, source: random.Random) -> list[Edit]:
    """Return the edit that ends a copy of ``function``, often but not always, on line ``first`` or later.

    An assertion stays in it where there is one.
    """
    body = function.node.body
    asserting = (node for node in body if isinstance(node, ast.Assert) or "assert" in unparsed(node))
    first = max(first, next((_end(node)[0] for node in asserting), 0))
    kept = source.choice([node for node in body if _end(node)[0] >= first] or body[-1:])
    is_cut = kept is not body[-1] and body[body.index(kept) + 1].lineno > _end(kept)[0]
    return [Edit(1.0, _end(kept), _end(body[-1]), b"")] if is_cut and source.random() < SHARE_OF_CUTS else []


class NamedTests(Protocol):
    """The names in a test file, and what can be one."""

    @property
    def text(self) -> str:
        """The file."""

    @property
    def names(self) -> tuple[str, ...]:
        """Of its tests."""

    @property
    def other_words(self) -> tuple[str, ...]:
        """Words and digits of it that are in no name of a test."""

    def is_name(self, text: str) -> bool:
        """Return True when a test can be called ``text``."""

    def longer(self, name: str, word: str) -> str:
        """Return ``name`` with one more word."""


def fresh_name(layout: NamedTests, taken: set[str], source: random.Random) -> str:
    """Return a new name of a test and add it to ``taken``.

    It has the shape of a real one: where that has a word that no other name has, it has another word of the file.
    """
    words = [word for name in layout.names for word in _WORD.findall(name)[1:] if word.isalnum()]
    words = words or list(_DEFAULT_WORDS)
    counts, names = Counter(words), layout.names or ("test_value",)
    for _ in range(_MAX_FRESH):
        first, *parts = _WORD.findall(source.choice(names))
        for place, part in enumerate(parts):
            share = _SHARE_OF_RARE_WORDS if counts[part] == 1 else _SHARE_OF_OTHER_WORDS
            if part.isalnum() and source.random() < share:
                pool = layout.other_words if counts[part] == 1 else words
                parts[place] = source.choice([word for word in pool if _shape(word) == _shape(part)] or [part])
        name = "".join([first, *parts])
        if layout.is_name(name) and name not in layout.text and name not in taken:
            taken.add(name)
            return name
    return _longer_name(layout, taken, source, words)


def _longer_name(layout: NamedTests, taken: set[str], source: random.Random, words: Sequence[str]) -> str:
    name = source.choice(layout.names or ("test_value",))
    while name in layout.text or name in taken:
        word = source.choice([word for word in words if word.isalpha()] or _DEFAULT_WORDS)
        name = layout.longer(name, word)
    taken.add(name)
    return name


def _shape(word: str) -> tuple[bool, bool]:
    return word[:1].isupper(), word.isdigit()

"""Kinds of change: what a repair is to the project, by its difference and its text.

Reads the repair and the text about it (changelog entry, issue, commit message). Makes one of `KINDS`. Guarantees: the
first rule of `RULES` that holds decides, and nothing but the table does.
"""

import ast
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from repairgym.records import ChangeKind
from repairgym.tasks.build.test_files import FunctionNode, walk_functions
from repairgym.tasks.javascript.names import exported_names, lacked_names
from repairgym.tasks.javascript.names import new_names as new_javascript_names
from repairgym.tasks.javascript.syntax import is_javascript
from repairgym.tasks.mutation.operators import WithoutAnnotations
from repairgym.tasks.sources.fixes import Fix, changes_code

_FIX = re.compile(
    r"\b(fix(e[sd]|ing)?|bugs?|bug-?fix\w*|errors?|crash\w*|regress\w*|broken?|incorrect\w*|wrong\w*|fail\w*|issues?(?!\s*[#\d])|"
    r"prevent\w*|avoid\w*|correct(s|ed|ly)?|no longer|must not|instead of|invalid|reject\w*|handle[sd]?|preserve[sd]?|"
    r"respect\w*|robust\w*|ignore[sd]?|should(n't| not)?|leak\w*|raises?d?|mis\w+ed|now (returns?|works?))\b",
    re.IGNORECASE,
)
_FEATURE = re.compile(
    r"\b(add(s|ed|ing)?|new|support(s|ed|ing)?|introduc\w+|implement\w*|feature\w*|extend(s|ed)?|option(s|al)?|"
    r"enhance\w*|allow(s|ed|ing)?|accepts?|enable[sd]?|provide[sd]?|now (has|have|takes?))\b",
    re.IGNORECASE,
)
_REFACTORING = re.compile(
    r"\b(refactor\w*|clean\s?-?up|cleanup|simplif\w+|reorgani[sz]\w+|moderni[sz]\w+|restructur\w+|typing|type hints?|"
    r"annotations?|dedup\w*|deprecat\w+|drop(s|ped)? (support|python)|reformat\w*|rewrite)\b",
    re.IGNORECASE,
)


_TAG = re.compile(r"\[(\w+)\]|(\w+)(?:\([^)]*\))?!?:")
"""Beginning of an entry that names its kind: ``[New] ...``, ``feat(parser): ...``."""
_TAGS = dict.fromkeys(("new", "feat", "feature", "breaking"), "feature")
_TAGS |= dict.fromkeys(("refactor", "perf", "chore", "style"), "refactoring")
_MISSING_MODULE = re.compile(r"ModuleNotFoundError: No module named '(\w+)")
_VERSION_NAMES = frozenset(
    {"__version__", "__version_info__", "__version_tuple__", "VERSION", "version", "version_info"}
)


@dataclass(frozen=True)
class Change:
    """A repair and what is told about it."""

    fix: Fix
    text: str
    """Text of the project about it; empty without one."""
    used_names: frozenset[str]
    """Names that its failing tests use."""
    messages: tuple[str, ...] = ()
    """First lines of the failures on the broken code."""
    is_marked_half: bool = False
    """Its tests fail in another way on the older release."""

    @property
    def has_code(self) -> bool:
        """True where more than comments and docstrings changes."""
        return any(changes_code(self.fix.newer, self.fix.older, hunk) for hunk in self.fix.hunks)

    @property
    def has_behaviour(self) -> bool:
        """True where more than annotations and the version changes."""
        paths = self.fix.gold_files.keys() | self.fix.broken_files.keys()
        return any(_plain(self.fix.gold_files.get(p)) != _plain(self.fix.broken_files.get(p)) for p in paths)

    @property
    def new_names(self) -> frozenset[str]:
        """Public names that only the repaired code defines, takes or hands on, and the failing tests use.

        A parameter is new where its own function did not have it. Of JavaScript see `names.new_names`.
        """
        new = set[str]().union(*(new_javascript_names(*texts) for texts in self._texts(is_javascript)))
        python = list(self._texts(lambda path: not is_javascript(path)))
        before = set[str]().union(*(_public_names(broken or "") for _, broken, _ in python))
        after = set[str]().union(*(_public_names(gold or "") for _, _, gold in python))
        return frozenset(new | {name.rpartition(" ")[2] for name in after - before}) & self.used_names

    def _texts(self, is_wanted: Callable[[str], bool]) -> Iterator[tuple[str, str | None, str | None]]:
        """Yield path, broken and repaired text of each wanted file."""
        for path, gold in self.fix.gold_files.items():
            if is_wanted(path):
                yield path, self.fix.broken_files[path], gold

    @property
    def is_redesign(self) -> bool:
        """True where JavaScript gets a whole module, or a module does not export a name any more."""
        return any(
            gold is not None and (broken is None or not exported_names(path, broken) <= exported_names(path, gold))
            for path, broken, gold in self._texts(is_javascript)
        )

    @property
    def is_half(self) -> bool:
        """True where no release was like the broken code: it fails in another way, or lacks a name that it uses.

        Of Python, it lacks one in each failure.
        """
        if self.is_marked_half or any(lacked_names(*texts) for texts in self._texts(is_javascript)):
            return True
        return bool(self.messages) and all(map(self._lacks_name, self.messages))

    def _lacks_name(self, message: str) -> bool:
        if message.startswith("NameError: "):
            return True
        missing = _MISSING_MODULE.match(message)
        texts = "\n".join(text or "" for text in self.fix.broken_files.values())
        return missing is not None and bool(re.search(rf"^\s*(import|from)\s+{missing[1]}\b", texts, re.MULTILINE))

    @property
    def tag(self) -> str:
        """The kind that the text names at its beginning; empty without one."""
        match = _TAG.match(self.text)
        return _TAGS.get((match[1] or match[2]).lower(), "") if match else ""

    def tells(self, words: re.Pattern[str]) -> bool:
        """Return whether the text has one of ``words``."""
        return bool(words.search(self.text))


RULES: tuple[tuple[ChangeKind, str, Callable[[Change], bool]], ...] = (
    ("test_only", "only comments and docstrings of the sources change", lambda change: not change.has_code),
    (
        "feature",
        "the text tells one and no fix, or begins like one; or no fix, and tests use a new name or a module is new",
        lambda change: (
            change.tag == "feature"
            or bool(_FEATURE.match(change.text) and not _FIX.search(change.text.partition(".")[0]))
            or (change.tells(_FEATURE) and not change.tells(_FIX) and not change.tells(_REFACTORING))
            or ((bool(change.new_names) or change.is_redesign) and not change.tells(_FIX))
        ),
    ),
    (
        "refactoring",
        "only annotations or the version change, no release was like the broken code, or the text says so",
        lambda change: (
            not change.has_behaviour
            or change.is_half
            or change.tag == "refactoring"
            or (change.tells(_REFACTORING) and not change.tells(_FIX))
        ),
    ),
    ("fix", "everything else", lambda change: True),
)
"""Kind, rule in words, and the rule; the first that holds decides."""


def kind_of(change: Change) -> ChangeKind:
    """Return the kind of ``change``."""
    return next(kind for kind, _, holds in RULES if holds(change))


def _public_names(source: str) -> set[str]:
    """Return public names that ``source`` defines, takes (``function parameter``) or imports relatively.

    None if it does not parse.
    """
    try:
        tree = ast.parse(source)
    except SyntaxError:
        return set()
    names = {node.name for node in ast.walk(tree) if isinstance(node, FunctionNode | ast.ClassDef)}
    for name, node, _ in walk_functions(tree):
        arguments = (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)
        names |= {f"{name} {argument.arg}" for argument in arguments}
    imports = (node for node in tree.body if isinstance(node, ast.ImportFrom) and node.level)
    names |= {alias.asname or alias.name for node in imports for alias in node.names}
    return {name for name in names if not name.rpartition(" ")[2].startswith("_")}


class _WithoutVersion(WithoutAnnotations):
    """Takes out the constant that tells the version, too."""

    def visit_Assign(self, node: ast.Assign) -> ast.AST | None:
        names = {getattr(target, "id", "") for target in node.targets}
        return None if names <= _VERSION_NAMES else node


def _plain(source: str | None) -> str:
    """Return the code of ``source`` without annotations and version; ``source`` itself if it does not parse."""
    try:
        return ast.dump(_WithoutVersion().visit(ast.parse(source or "")))
    except SyntaxError:
        return source or ""

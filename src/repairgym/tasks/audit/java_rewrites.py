"""Right variants of the files of Java builds: settings of Maven and Gradle, and sources, written in another way.

Reads a path and its text. Makes other texts. Guarantees: elements change places only where their order means nothing,
white space only outside of texts; which classes a build makes, and what they do, is the same.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial, reduce
from itertools import pairwise

from repairgym.tasks.audit.rewrites import draw_rewrites
from repairgym.tasks.java.breaks import without_comments
from repairgym.tasks.java.project import GRADLE, GRADLE_ROOT, POM

Rewrite = Callable[[str], str]
_SETTING = r"(?: *<([\w.]+)>[^<\n]*</\1>\n)"
_CHILDREN = re.compile(rf"(?<=>\n){_SETTING}{{2,}}")
_IMPORTS = re.compile(r"^(?:import [\w.*]+;\n){2,}", re.MULTILINE)
_RETURN = re.compile(r"^( {8,}return )([^;\n]+)(?=;\n *\}\n)", re.MULTILINE)
_DEPENDENCY = re.compile(r"^( +\w*[iI]mplementation) (['\"][^'\"\n]*['\"])$", re.MULTILINE)
_LEVELS = re.compile(r"^(?:(?:group|version|sourceCompatibility|targetCompatibility) = .*\n){2,}", re.MULTILINE)


def rewrite_file(path: str, text: str, kinds: tuple[str, ...]) -> str | None:
    """Return ``text`` rewritten in every one of ``kinds``; None when one of them finds nothing to rewrite."""
    rewrites = rewrites_of(path)
    texts = [text]
    for kind in kinds:
        texts.append(rewrites[kind](texts[-1]))
    return texts[-1] if all(old != new for old, new in pairwise(texts)) else None


def choose_rewrites(path: str, text: str, num: int, seed: str) -> Iterator[tuple[str, str]]:
    """Yield at most ``num`` (kinds, text) of a file of a Java build, as `rewrites.choose_rewrites` does; else none."""
    kinds = [kind for kind in rewrites_of(path) if rewrite_file(path, text, (kind,))]
    yield from draw_rewrites(kinds, partial(rewrite_file, path, text), num, seed)


def rewrites_of(path: str) -> Mapping[str, Rewrite]:
    """Return name -> rewrite for the file ``path``; none for a file that is no part of a Java build."""
    if path == POM:
        return _POM_REWRITES
    if path in (GRADLE, GRADLE_ROOT):
        return _GRADLE_REWRITES
    return _SOURCE_REWRITES if path.endswith(".java") else {}


def _reverse_lines(match: re.Match[str]) -> str:
    return "".join(match[0].splitlines(keepends=True)[::-1])


def _indent(text: str) -> str:
    """Double the white space before lines; a text of Java before 15 or of XML here lies on one line."""
    return re.sub(r"^( +)(?=\S)", r"\1\1", text, flags=re.MULTILINE)


def _in_code(pattern: re.Pattern[str], new: Callable[[re.Match[str]], str]) -> Rewrite:
    """Return a rewrite of what ``pattern`` matches outside of comments."""

    def rewrite(text: str) -> str:
        matches = [match for match in pattern.finditer(without_comments(text)) if match[0] in text]
        spans = [(match.span(), new(match)) for match in reversed(matches)]
        return reduce(lambda t, span: t[: span[0][0]] + span[1] + t[span[0][1] :], spans, text)

    return rewrite


def _comment_after(pattern: str, comment: str) -> Rewrite:
    return lambda text: re.sub(pattern, lambda match: match[0] + comment, text, count=1, flags=re.MULTILINE)


_POM_REWRITES: Mapping[str, Rewrite] = {
    "reorder_settings": lambda text: _CHILDREN.sub(_reverse_lines, text),
    "indent": _indent,
    "comment": _comment_after(r"^ *<dependencies>\n", "    <!-- what code and tests need -->\n"),
    "spaces": lambda text: re.sub(r"(</dependency>\n)", r"\1\n", text),
}
_GRADLE_REWRITES: Mapping[str, Rewrite] = {
    "double_quotes": lambda text: re.sub(r"'([^'\"$\\\n]*)'", r'"\1"', text),
    "reorder_settings": lambda text: _LEVELS.sub(_reverse_lines, text),
    "brackets": lambda text: _DEPENDENCY.sub(r"\1(\2)", text),
    "indent": _indent,
    "comment": _comment_after(r"^(?:dependencies \{|rootProject\.name = .*)\n", "    // what code and tests need\n"),
}
_SOURCE_REWRITES: Mapping[str, Rewrite] = {
    "reorder_imports": _in_code(_IMPORTS, _reverse_lines),
    "brackets": _in_code(_RETURN, lambda match: f"{match[1]}({match[2]})"),
    "indent": _indent,
    "comment": _comment_after(r"^package .*;\n", "\n// The package's own code.\n"),
}

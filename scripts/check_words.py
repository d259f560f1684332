"""Check the language of the source and the documentation: standard terms, plain sentences.

Reads Python files below ``src`` (docstrings, comments, identifiers) and the Markdown pages; prints one line per
finding and exits with 1 if there is any. Rules: no docstring begins with a question word; no word of `REPLACEMENTS`;
no identifier of `VAGUE_NAMES`. `docs/glossary.md` holds the terms. A line that quotes somebody else's word ends with
``# words: ok`` (Markdown: ``<!-- words: ok -->``).

Usage: python scripts/check_words.py [PATH ...]   (default: src and docs)
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

QUESTION = re.compile(r"(What|How|Which|Whether|Who|Whose|Where|When|Why)\b")
REPLACEMENTS = {
    r"reckon\w*": "estimate",
    r"anew": "again",
    r"beside": "next to (or: in addition to)",
    r"go(?:es|ing)? on(?! to\b)|went on": "resume, continue",
    r"told apart|tell apart|tells apart": "distinguish",
    r"refus(?:e|es|ed|ing|al|als)": "reject",
    r"book of recipes|recipe book": "task manifest",
    r"trouble": "failure, error",
    r"whatsoever|forthwith|thereof|hereby": "plain words",
}
VAGUE_NAMES = {"found", "one"}
SKIPPED = ("CHANGELOG.md", "docs/log/", "docs/LOG.md", "docs/adr", "repairgym/data/")
"""Records of the past keep their words; texts below data/ are part of task digests."""
EXEMPT = re.compile(r"words: ok|::test_|[Cc]onnection ?[Rr]efused|ECONNREFUSED|refused to connect")
_WORDS = re.compile("|".join(rf"\b({pattern})\b" for pattern in REPLACEMENTS), re.IGNORECASE)


def main() -> int:
    """Check the paths of the command line."""
    roots = [Path(argument) for argument in sys.argv[1:]] or [Path("src"), Path("docs"), Path("README.md")]
    findings = [finding for root in roots for path in _files(root) for finding in _check(path)]
    for finding in findings:
        print(finding)
    if findings:
        print(f"{len(findings)} findings; docs/glossary.md has the terms", file=sys.stderr)
    return bool(findings)


def _files(root: Path) -> Iterator[Path]:
    paths = [root] if root.is_file() else sorted(p for p in root.rglob("*") if p.suffix in (".py", ".md"))
    return (path for path in paths if not any(part in path.as_posix() for part in SKIPPED))


def _check(path: Path) -> Iterator[str]:
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        prose = list(enumerate(text.splitlines(), 1))
    else:
        prose = [*_strings_and_comments(text)]
        yield from _check_tree(path, ast.parse(text))
    for number, line in prose:
        if EXEMPT.search(line):
            continue
        for match in _WORDS.finditer(line):
            better = list(REPLACEMENTS.values())[(match.lastindex or 1) - 1]
            yield f"{path}:{number}: {match.group(0)!r}: say {better}"


def _strings_and_comments(text: str) -> Iterator[tuple[int, str]]:
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type in (tokenize.STRING, tokenize.COMMENT, getattr(tokenize, "FSTRING_MIDDLE", -1)):
            if "words: ok" in token.line:
                continue
            for offset, line in enumerate(token.string.splitlines()):
                yield token.start[0] + offset, line


def _check_tree(path: Path, tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node) or ""
            if match := QUESTION.match(text):
                line = getattr(node, "lineno", 1)
                yield f"{path}:{line}: docstring begins with {match.group(0)!r}: begin with a verb or a noun phrase"
        body = getattr(node, "body", None)
        for statement in body if isinstance(body, list) else []:
            value = getattr(statement, "value", None)
            is_text = (
                isinstance(statement, ast.Expr) and isinstance(value, ast.Constant) and isinstance(value.value, str)
            )
            if is_text and statement is not body[0] and (match := QUESTION.match(value.value)):
                yield f"{path}:{statement.lineno}: attribute docstring begins with {match.group(0)!r}"
        name = node.id if isinstance(node, ast.Name) else node.arg if isinstance(node, ast.arg) else None
        if name in VAGUE_NAMES and (isinstance(node, ast.arg) or isinstance(getattr(node, "ctx", None), ast.Store)):
            yield f"{path}:{node.lineno}: the name {name!r} says nothing: name the thing"  # type: ignore[attr-defined]


if __name__ == "__main__":
    sys.exit(main())

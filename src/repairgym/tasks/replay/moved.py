"""Gold with its lines moved: the same code with comments, as an honest edit of its file would move them.

Reads source files; makes others. Guarantees: the syntax tree of each file stays the same, so behavior that does not
look at its own source does, too; a file for which that cannot be shown is left as it is.
"""

import ast
import contextlib
import tokenize
from collections.abc import Mapping
from io import StringIO

_COMMENT = "# moved"


def with_moved_lines(files: Mapping[str, str | None]) -> dict[str, str | None]:
    """Return ``files`` with a comment at the end of each statement and on a line after it, in Python files.

    Then a line number, a traceback with the text of its lines, the location of a warning or a log record, a size, and
    the source of a function differ.
    """
    return {path: _moved(text) if text and path.endswith(".py") else text for path, text in files.items()}


def _moved(text: str) -> str:
    with contextlib.suppress(SyntaxError, ValueError, RecursionError, tokenize.TokenError):
        moved = _commented(text)
        if ast.dump(ast.parse(moved)) == ast.dump(ast.parse(text)):
            return moved
    return text


def _commented(text: str) -> str:
    lines = StringIO(text).readlines()
    ends = {token.end[0] for token in tokenize.generate_tokens(iter(lines).__next__) if token.type == tokenize.NEWLINE}
    return "".join(
        f"{line.rstrip()}  {_COMMENT}\n{_COMMENT}\n" if number in ends else line for number, line in enumerate(lines, 1)
    )

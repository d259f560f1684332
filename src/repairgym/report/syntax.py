"""Code with syntax colors, line by line.

Reads lines of source files and their path; makes escaped markup. Guarantees: text is that of `plain`, so hidden
characters stay visible; a line without a lexer, or a very long one, is plain. Lines are read on their own: inside of a
string of several lines words can have the color of code.
"""

from functools import lru_cache

from markupsafe import Markup
from pygments.lexer import Lexer
from pygments.lexers import get_lexer_for_filename
from pygments.token import Comment, Keyword, Name, Number, Operator, String, _TokenType
from pygments.util import ClassNotFound

from repairgym.report.safe_text import plain

_MAX_LINE_CHARS = 500
_CLASSES = (
    (Comment, "y-c"), (Keyword, "y-k"), (Operator.Word, "y-k"), (String.Doc, "y-c"), (String, "y-s"), (Number, "y-n"),
    (Name.Function, "y-f"), (Name.Class, "y-f"), (Name.Decorator, "y-d"), (Name.Builtin, "y-b"),
)  # fmt: skip


def code_line(text: str, path: str) -> Markup:
    """Return a line of the file ``path``."""
    lexer = _lexer(path.rpartition("/")[2])
    if lexer is None or len(text) > _MAX_LINE_CHARS or not text.replace("\t", "").isprintable():
        return plain(text)
    return _colored(text, lexer)


@lru_cache(maxsize=4096)
def _colored(text: str, lexer: Lexer) -> Markup:
    parts = []
    for kind, value in lexer.get_tokens(text):
        value = value.rstrip("\n")
        css = _class_of(kind)
        parts.append(Markup('<span class="{}">{}</span>').format(css, plain(value)) if css and value else plain(value))
    return Markup("").join(parts)


@lru_cache(maxsize=256)
def _lexer(name: str) -> Lexer | None:
    try:
        return get_lexer_for_filename(name, stripnl=False, stripall=False, ensurenl=False)
    except (ClassNotFound, ValueError):
        return None


@lru_cache(maxsize=256)
def _class_of(kind: _TokenType) -> str:
    return next((css for parent, css in _CLASSES if kind in parent), "")

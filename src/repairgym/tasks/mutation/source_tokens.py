"""Tokens of a module by position, for operators that edit text in place.

Reads source; makes lookups from syntax-tree positions to tokens. Invariant: columns are in characters.
"""

from __future__ import annotations

import ast
import io
import tokenize


class SourceTokens:
    """Tokens of a module by position, with columns in characters (the syntax tree counts UTF-8 bytes)."""

    def __init__(self, source: str) -> None:
        """Read ``source``; raises ``SyntaxError`` when it has no tokens."""
        self.lines = source.splitlines(keepends=True)
        skipped = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT}
        try:
            stream = list(tokenize.generate_tokens(io.StringIO(source).readline))
        except (tokenize.TokenError, IndentationError) as error:
            raise SyntaxError(str(error)) from error
        self.tokens = [token for token in stream if token.type not in skipped]
        self.index = {token.start: number for number, token in enumerate(self.tokens)}

    def position(self, line: int, byte_offset: int) -> tuple[int, int]:
        """(line, character column) of a syntax-tree position."""
        text = self.lines[line - 1]
        if text.isascii():
            return line, byte_offset
        return line, len(text.encode()[:byte_offset].decode(errors="ignore"))

    def between(self, left: ast.expr, right: ast.expr) -> list[tokenize.TokenInfo]:
        """Tokens after ``left`` and before ``right``, without brackets."""
        end = self.position(left.end_lineno or left.lineno, left.end_col_offset or 0)
        number = self.index.get(self.position(right.lineno, right.col_offset))
        if number is None:
            return []
        found = []
        while number > 0 and self.tokens[number - 1].start >= end:
            number -= 1
            if self.tokens[number].string not in "()":
                found.append(self.tokens[number])
        return found[::-1]

    def at(self, node: ast.AST) -> tokenize.TokenInfo | None:
        """Token that starts where ``node`` starts."""
        line, offset = getattr(node, "lineno", 0), getattr(node, "col_offset", 0)
        number = self.index.get(self.position(line, offset)) if line else None
        return None if number is None else self.tokens[number]

    def before(self, token: tokenize.TokenInfo) -> tokenize.TokenInfo | None:
        """Token before ``token``."""
        number = self.index[token.start]
        return self.tokens[number - 1] if number else None

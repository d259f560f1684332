"""Edits that give themselves away: their line alone tells that somebody broke it.

Reads a module's source and a `Mutation`. Guarantees: only what stands in the new line decides, and what the old line
held as well is no sign.
"""

import ast
import re

from repairgym.diffs.lines import source_lines
from repairgym.tasks.mutation.operators import Mutation

_CONSTANT_TEST = re.compile(r"\b(?:if|elif|while)(?: not)? (?:True|False)\b")
_NO_EFFECT = re.compile(r"(?:/|//|\*)=? 1\b(?!\.)|(?:\+|-)=? 0\b(?!\.)|(?<!\*)\*\* ?1\b(?!\.)")
_TAKES_TEXT = (ast.Add, ast.Mod, ast.Mult)


def gives_away(source: str, mutation: Mutation) -> bool:
    """Return True when the line with ``mutation`` can be told from honest code without its neighbours."""
    site = mutation.site
    if not mutation.new or "\n" in site.old:
        return False
    old = source_lines(source)[site.line - 1]
    new = old[: site.column] + mutation.new + old[site.column + len(site.old) :]
    if site.operator in ("removed_call", "removed_branch"):
        return True
    if site.operator == "return_value" and mutation.new == "None":
        return True
    if any(pattern.search(new) and not pattern.search(old) for pattern in (_CONSTANT_TEST, _NO_EFFECT)):
        return True
    return _num_odd(new) > _num_odd(old)


def _num_odd(line: str) -> int:
    """Count operations of ``line`` on twice the same thing, and arithmetic on a text."""
    text = line.strip()
    for form in (f"{text} pass", f"if 0: pass\n{text} pass", text, f"for _ in (): {text}"):
        try:
            return sum(_is_odd(node) for node in ast.walk(ast.parse(form)))
        except SyntaxError:
            continue
    return 0


def _is_odd(node: ast.AST) -> bool:
    if isinstance(node, ast.BinOp):
        sides = (node.left, node.right)
        has_text = any(isinstance(side, ast.Constant) and isinstance(side.value, str) for side in sides)
        is_no_text = has_text and not isinstance(node.op, _TAKES_TEXT)
        # The sum and the product of a thing with itself are honest.
        is_same = ast.dump(node.left) == ast.dump(node.right) and not isinstance(node.op, ast.Add | ast.Mult)
        return is_no_text or is_same
    if isinstance(node, ast.Compare):
        return ast.dump(node.left) == ast.dump(node.comparators[0])
    if isinstance(node, ast.BoolOp):
        return len({ast.dump(value) for value in node.values}) < len(node.values)
    if isinstance(node, ast.For | ast.comprehension):
        return ast.dump(node.iter).replace("Load", "Store") == ast.dump(node.target)
    return False

"""The page of the papers: every row is there, and every file, test and setting that it names exists."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from repairgym.config.loading import load_config
from repairgym.config.recipes import RlCommandConfig, SftCommandConfig

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/reference/papers.md").read_text(encoding="utf-8")
ROWS = ("A", "B", *(f"R{number}" for number in range(1, 20)))
SPANS = set(re.findall(r"`([^`]+)`", PAGE))


@pytest.mark.parametrize("row", ROWS)
def test_each_row_has_a_state_and_a_paragraph_that_says_what_was_run_or_that_nothing_is_built(row: str) -> None:
    (line,) = re.findall(rf"^\| {row} \|.*\|$", PAGE, re.MULTILINE)
    (paragraph,) = re.findall(rf"^\*\*{row}[,. ].*?(?=\n\n)", PAGE + "\n\n", re.MULTILINE | re.DOTALL)
    if "not built" in line:
        assert "Not built" in paragraph
        return
    assert "*Run:*" in paragraph
    assert "answer:*" in paragraph
    assert any(span.startswith("tests/") for span in re.findall(r"`([^`]+)`", paragraph))
    assert ("transfer" in line) == ("(transfer)" in paragraph)


@pytest.mark.parametrize("span", sorted(span for span in SPANS if span.startswith(("tests/", "src/"))))
def test_each_named_file_and_test_exists(span: str) -> None:
    path, _, name = span.partition("::")
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    names = {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
    assert not name or name in names


@pytest.mark.parametrize("span", sorted(span for span in SPANS if span.startswith(("rl.", "sft.")) and "=" in span))
def test_each_named_setting_is_accepted(span: str) -> None:
    load_config(RlCommandConfig if span.startswith("rl.") else SftCommandConfig, None, span.split())

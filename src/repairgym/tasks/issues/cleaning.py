"""Commit messages and issues as reports: no noise of a repository, nothing that gives the repair away.

Reads commit messages and issues. Makes plain text. Guarantees: no line of a difference, no "change `x` to `y`", no line
number of the repair, and no text of one run is left.
"""

import re

from repairgym.tasks.issues.run_text import without_run_text
from repairgym.tasks.sources.changelog import clean_entry
from repairgym.tasks.sources.fixes import Fix

_TRAILER = re.compile(
    r"^(co-authored-by|signed-off-by|reviewed-by|acked-by|tested-by|reported-by|see-also|cc|change-id|cherry.picked)\b"
    r"|^\(cherry picked from",
    re.IGNORECASE,
)
_NOISE = re.compile(
    r"^(merge (pull request|branch|remote|tag|commit)\b.*|merged? .* into .*|\* .*|next release.*|[=~^-]{3,}"
    r"|bumps? \S+ from \S+ to \S+.*|updated-dependencies:.*|(- )?dependency-(name|version|type): .*|update-type: .*"
    r"|(pr|gh|issue|closes?|fix(e[sd])?|resolves?|see|refs?|ticket)?[\s:]*#?\d+[.)]*|\(?#\d+\)?|[A-Z]{2,}-\d+"
    r"|(bump|release|prepare|update|tweak|fix|add|wip)?\s*(the )?(version|changelogs?|changes|history|news|"
    r"release notes|lint(ing)?|flake8|ruff|black|isort|mypy|pre-?commit|typos?|ci|travis|tox|coverage|"
    r"github actions?|wip|nits?|review( comments)?|tests?|docs?|docstrings?|formatting)[\s.!]*)$",
    re.IGNORECASE,
)
_MARKS = re.compile(
    r"\s*\[(?:ci skip|skip ci|ci|wip)\]|\s*\((?:#|gh-|pr ?#?)\d+\)$|^(?:\[[^\]]{1,20}\])\s*", re.IGNORECASE
)
_GIVES_AWAY = re.compile(
    r"^\s*(?:[+-]\s*(?:def|if|return|raise|import|from|for|while|self\.|\w+ ?=)|@@ |diff --git|index [0-9a-f]{7})"
    r"|\b(?i:change[sd]?|replace[sd]?|swap(?:ped)?|rename[sd]?)\s+`[^`]+`\s+(?:to|by|with|into|for)\s+`"
    r"|\b[Uu]se (['\"`])[^'\"`]{1,40}\1 (?:so|instead|rather)\b"
    r"|\b[\w/]+\.py:\d+\b",
)
"""Lines of a difference, "change `x` to `y`", and file and line of the repair."""
MAX_ISSUE_CHARS = 4000
MIN_WRAPPED_CHARS = 55
"""A shorter line ends its paragraph."""
MIN_CODE_LINE_CHARS = 12
"""Shorter lines of code are common words."""


def clean_message(message: str) -> str:
    """Return a commit message without noise and without sentences that give the repair away; empty without a rest."""
    lines = [_MARKS.sub("", line.strip()) for line in message.splitlines()]
    kept = _unwrapped([line for line in lines if not _TRAILER.match(line) and not _NOISE.match(line)])
    cleaned = [clean_entry(told) for line in kept if (told := without_repair(line))]
    return without_run_text("\n".join(dict.fromkeys(line for line in cleaned if line)))[:MAX_ISSUE_CHARS]


def _unwrapped(lines: list[str]) -> list[str]:
    """Return ``lines`` with each wrapped paragraph as one line, so that whole sentences can be taken out."""
    paragraphs: list[str] = []
    is_wrapped = False
    for line in lines:
        if is_wrapped and line and line[0].isalnum():
            paragraphs[-1] += f" {line}"
        else:
            paragraphs.append(line)
        is_wrapped = len(line) >= MIN_WRAPPED_CHARS
    return paragraphs


def without_repair(text: str) -> str:
    """Return ``text`` without the sentences and lines that give the repair away."""
    lines = []
    for line in text.split("\n"):
        if _GIVES_AWAY.search(line):
            sentences = re.split(r"(?<=[.;!?])\s+", line)
            line = " ".join(sentence for sentence in sentences if not _GIVES_AWAY.search(sentence))
            if not line:
                continue
        lines.append(line)
    return "\n".join(lines).strip()


def reveals(text: str, fix: Fix) -> bool:
    """Return True when ``text`` quotes a line of code that ``fix`` added."""
    flat = " ".join(text.split())
    lines = (" ".join(line.split()) for line in fix.new_text.splitlines())
    return any(len(line) >= MIN_CODE_LINE_CHARS and line in flat for line in lines)

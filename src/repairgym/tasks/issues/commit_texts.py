"""Texts about a commit: the issue that it closes, the changelog entry that it adds, its message.

Reads a clone, and an issue dump: a JSON list of objects with ``number``, ``title``, ``body``, and where known ``date``
and ``closed_by`` (commit id or number of a pull request), or an object ``{"12": {"title": ..., "body": ...}}``.
Guarantees: no text quotes a line that the commit added; an issue dated after the commit is not used; a message about
something else than the commit's code and tests is not used.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from repairgym.errors import InputError
from repairgym.records import Task
from repairgym.tasks.issues.cleaning import MAX_ISSUE_CHARS, MIN_CODE_LINE_CHARS, clean_message, reveals, without_repair
from repairgym.tasks.issues.specification import Facts
from repairgym.tasks.layers.repositories import Commit, GitRepository
from repairgym.tasks.sources.changelog import clean_entry
from repairgym.tasks.sources.fixes import fix_clues

LINKED = re.compile(r"(?:fix(?:es|ed)?|close[sd]?|resolve[sd]?|issue|gh|bug)?[\s:(]*(?:#|issue|gh-)(\d{1,6})", re.I)
_COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
_MIN_COMMIT_CHARS = 7
_EXPECTED = """expected {"12": {"title": "...", "body": "..."}} or a list of objects with "number\""""


@dataclass(frozen=True)
class Issue:
    """An issue of a dump."""

    text: str
    date: str = ""
    """Day or time when it was written; empty if unknown."""
    closed_by: tuple[str, ...] = ()
    """Commits and numbers of pull requests that close it."""


@dataclass(frozen=True)
class CommitTexts:
    """A commit and the files of it that may tell what it is about."""

    commit: Commit
    others: tuple[str, ...]
    """Changed files that are neither sources nor tests."""
    changelog: tuple[str, ...]
    """Patterns of changelogs."""


def load_issues(path: str) -> dict[str, Issue]:
    """Return issues by number from a JSON file; empty without one."""
    if not path:
        return {}
    try:
        raw = json.loads(Path(path).read_text(encoding="utf-8"))
        items = raw.items() if isinstance(raw, dict) else ((item["number"], item) for item in raw)
        return {str(number): _issue(item) for number, item in items}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"issues {path} cannot be used: {error}; {_EXPECTED}") from error


def _issue(item: dict[str, Any]) -> Issue:
    body = _COMMENT.sub("", item.get("body") or "").strip()
    closing = item.get("closed_by") or ()
    closed_by = (closing,) if isinstance(closing, str | int) else closing
    text = f"{item['title'].strip()}\n\n{without_repair(body)}".strip()[:MAX_ISSUE_CHARS]
    return Issue(text, item.get("date") or "", tuple(str(closer).lstrip("#") for closer in closed_by))


def commit_text(
    change: CommitTexts, clone: GitRepository, task: Task, tree: Path, issues: Mapping[str, Issue]
) -> tuple[str, str]:
    """Return the text about a commit and its source (``issue``, ``changelog``, ``commit``); empty without a usable one.

    ``task`` is the one made from the commit, ``tree`` its pinned tree.
    """
    message = "\n".join([change.commit.message, clone.merged_messages(change.commit)])
    texts = [(text, "issue") for text in _linked_issues(change.commit, message, issues)]
    texts += [(text, "changelog") for text in _added_entries(change, clone)]
    fix = Facts(task, tree).fix
    cleaned = clean_message(message)
    if sum(fix_clues(fix, tree, task.fail_to_pass).score(cleaned)):
        texts.append((cleaned, "commit"))
    return next(((text, source) for text, source in texts if text and not reveals(text, fix)), ("", ""))


def _linked_issues(commit: Commit, message: str, issues: Mapping[str, Issue]) -> Iterator[str]:
    """Yield the issues that name the commit or its pull request, then those that its message names."""
    numbers = LINKED.findall(message)
    closing = [
        number for number, issue in issues.items() if any(_is_closing(c, commit.id, numbers) for c in issue.closed_by)
    ]
    for number in dict.fromkeys((*closing, *numbers)):
        issue = issues.get(number)
        if issue and not (issue.date and commit.date and issue.date[:10] > commit.date[:10]):
            yield issue.text


def _is_closing(closing: str, commit: str, numbers: list[str]) -> bool:
    return closing in numbers or (len(closing) >= _MIN_COMMIT_CHARS and commit.startswith(closing))


def _added_entries(change: CommitTexts, clone: GitRepository) -> list[str]:
    commit, entries = change.commit, list[str]()
    for path in change.others:
        if any(fnmatchcase(path.lower(), pattern.lower()) for pattern in change.changelog):
            before = set(clone.plain_text(commit.parents[0], path).splitlines())
            added = [line for line in clone.plain_text(commit.id, path).splitlines() if line not in before]
            entries.append(clean_entry(" ".join(line.strip() for line in added)))
    return [entry for entry in entries if len(entry) >= MIN_CODE_LINE_CHARS]

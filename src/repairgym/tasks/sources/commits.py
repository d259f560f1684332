"""Bug-fix commits of a history, and their issue texts.

Reads a `GitRepository`. Makes candidate commits and issue texts. Guarantees: a candidate touches code and tests within
the bounds of `HistoryConfig`; an issue text holds no line of code that the fix added.
"""

import json
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import Any

from repairgym.config.tasks import HistoryConfig
from repairgym.errors import InputError
from repairgym.tasks.layers.catalogue import Repository
from repairgym.tasks.layers.repositories import Commit, GitRepository
from repairgym.tasks.sources.changelog import clean_entry
from repairgym.tasks.sources.fixes import Fix

_FIX = re.compile(
    r"\b(fix(e[sd]|ing)?|bug\w*|issues?|errors?|crash\w*|regress\w*|broken?|incorrect\w*|wrong\w*|closes?|resolves?)\b",
    re.IGNORECASE,
)
_LINKED = re.compile(r"(?:fix(?:es|ed)?|close[sd]?|resolve[sd]?|issue|gh|bug)?[\s:(]*(?:#|issue|gh-)(\d{1,6})", re.I)
_TRAILER = re.compile(r"^(co-authored-by|signed-off-by|reviewed-by|see-also|cc|change-id):", re.IGNORECASE)
_MERGE = re.compile(r"^(merge (pull request|branch|remote)\b.*|\* .*)$", re.IGNORECASE)
MAX_ISSUE_CHARS = 4000
MIN_CODE_LINE_CHARS = 12
"""Shorter lines of code are common words."""


@dataclass(frozen=True)
class Candidate:
    """A commit with its source and test files."""

    commit: Commit
    sources: tuple[str, ...]
    tests: tuple[str, ...]
    others: tuple[str, ...]


def find_candidates(
    repository: Repository, clone: GitRepository, config: HistoryConfig
) -> tuple[list[Candidate], Counter[str]]:
    """Return candidates, newest first, at most ``config.num_commits``, and counts of drop reasons."""
    candidates: list[Candidate] = []
    funnel: Counter[str] = Counter()
    for commit in clone.commits(repository.revision):
        funnel["commits"] += 1
        candidate = _as_candidate(repository, commit)
        reason = _drop_reason(candidate, clone, config)
        if reason:
            funnel[reason] += 1
        elif len(candidates) < config.num_commits:
            candidates.append(candidate)
        else:
            funnel["beyond_num_commits"] += 1
    return candidates, funnel


def _as_candidate(repository: Repository, commit: Commit) -> Candidate:
    def match(patterns: Iterable[str]) -> tuple[str, ...]:
        return tuple(path for path in commit.paths if any(_matches(path, pattern) for pattern in patterns))

    excluded = set(match(repository.excluded))
    tests = tuple(path for path in match(repository.tests) if path not in excluded)
    sources = tuple(path for path in match(repository.sources) if path not in excluded and path not in tests)
    others = tuple(path for path in commit.paths if path not in tests and path not in sources)
    return Candidate(commit, sources, tests, others)


def _matches(path: str, pattern: str) -> bool:
    """Match like ``Path.glob`` on names of missing files: ``**/`` stands for any number of folders."""
    if "**/" in pattern:
        head, _, tail = pattern.partition("**/")
        if not path.startswith(head):
            return False
        parts = PurePosixPath(path[len(head) :]).parts
        return any(_matches("/".join(parts[start:]), tail) for start in range(len(parts)))
    names, wanted = path.split("/"), pattern.split("/")
    return len(names) == len(wanted) and all(map(fnmatchcase, names, wanted))


def _drop_reason(candidate: Candidate, clone: GitRepository, config: HistoryConfig) -> str:
    commit = candidate.commit
    if not commit.parents:
        return "root_commit"
    if not candidate.sources:
        return "no_code"
    if not candidate.tests:
        return "no_tests"
    if len(candidate.sources) > config.max_files:
        return "too_many_files"
    if config.is_any_message:
        return ""
    # Only the merged commits describe the changes of a merge.
    message = commit.message + clone.merged_messages(commit)
    return "" if _FIX.search(message) or _LINKED.search(message) else "not_a_fix"


def load_issues(path: str) -> dict[str, str]:
    """Return issue texts by number from a JSON file; empty without one."""
    if not path:
        return {}
    try:
        raw = json.loads(Path(path).read_text(encoding="utf-8"))
        items = raw.items() if isinstance(raw, dict) else ((item["number"], item) for item in raw)
        return {str(number): _issue_text(item) for number, item in items}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        expected = 'expected {"12": {"title": "...", "body": "..."}} or a list of objects with "number"'
        raise InputError(f"issues {path} cannot be used: {error}; {expected}") from error


def _issue_text(item: dict[str, Any]) -> str:
    body = re.sub(r"<!--.*?-->", "", item.get("body") or "", flags=re.DOTALL).strip()
    return f"{item['title'].strip()}\n\n{body}".strip()[:MAX_ISSUE_CHARS]


def commit_issue(
    repository: Repository, clone: GitRepository, candidate: Candidate, fix: Fix, issues: dict[str, str]
) -> tuple[str, str]:
    """Return the issue text and its source: ``issue``, ``changelog`` or ``commit``; empty without a usable text."""
    commit = candidate.commit
    message = "\n".join([commit.message, clone.merged_messages(commit)])
    linked = [issues[number] for number in _LINKED.findall(message) if number in issues]
    texts = [(text, "issue") for text in linked]
    texts += [(text, "changelog") for text in _changelog_entries(repository, clone, candidate)]
    texts.append((clean_message(message), "commit"))
    return next(((text, source) for text, source in texts if text and not reveals(text, fix)), ("", ""))


def _changelog_entries(repository: Repository, clone: GitRepository, candidate: Candidate) -> list[str]:
    commit, entries = candidate.commit, list[str]()
    for path in candidate.others:
        if any(fnmatchcase(path.lower(), pattern.lower()) for pattern in repository.changelog):
            before = set((clone.text(commit.parents[0], path) or "").splitlines())
            added = [line for line in (clone.text(commit.id, path) or "").splitlines() if line not in before]
            entries.append(clean_entry(" ".join(line.strip() for line in added)))
    return [entry for entry in entries if len(entry) >= MIN_CODE_LINE_CHARS]


def clean_message(message: str) -> str:
    """Return a commit message without trailers, merge lines, links and credits."""
    lines = [line.strip() for line in message.splitlines()]
    cleaned = [clean_entry(line) for line in lines if line and not _TRAILER.match(line) and not _MERGE.match(line)]
    return "\n".join(dict.fromkeys(line for line in cleaned if line))[:MAX_ISSUE_CHARS]


def reveals(text: str, fix: Fix) -> bool:
    """Return True when ``text`` quotes a line of code that ``fix`` added."""
    flat = " ".join(text.split())
    lines = (" ".join(line.split()) for line in fix.new_text.splitlines())
    return any(len(line) >= MIN_CODE_LINE_CHARS and line in flat for line in lines)

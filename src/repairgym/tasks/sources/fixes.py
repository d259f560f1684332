"""One fix of a release: a group of hunks, as text.

Reads the texts of both releases; makes the broken files, the touched functions, the report. Invariant: a fix touches
only files of its own hunks, and its report never quotes them.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from repairgym.diffs.lines import split_lines
from repairgym.records import Location, Provenance, TestRun
from repairgym.tasks.build.assembly import Visibility
from repairgym.tasks.build.issue_text import failing_tests_issue
from repairgym.tasks.build.test_files import functions_of, test_sources
from repairgym.tasks.mutation.operators import FunctionSpan, find_functions
from repairgym.tasks.sources.changelog import Clues
from repairgym.tasks.sources.hunks import Hunk, Texts, revert


@dataclass(frozen=True)
class Fix:
    """Hunks that belong together because the same tests need them."""

    hunks: tuple[Hunk, ...]
    older: Texts
    newer: Texts

    @property
    def broken_files(self) -> dict[str, str | None]:
        """The touched files with the fix taken back."""
        return revert(self.newer, self.older, self.hunks)

    @property
    def gold_files(self) -> dict[str, str | None]:
        """The touched files as released."""
        return {path: self.newer.get(path) for path in self.broken_files}

    @property
    def num_lines(self) -> int:
        """Lines added and removed."""
        return sum(hunk.end - hunk.first + len(hunk.old_lines) for hunk in self.hunks)

    @property
    def new_text(self) -> str:
        """The lines that the fix added."""
        lines = {path: split_lines(text or "") for path, text in self.gold_files.items()}
        return "".join("".join(lines[hunk.path][hunk.first : hunk.end]) for hunk in self.hunks)

    def recipe(self, provenance: Provenance) -> str:
        """How the bug was made, in words."""
        numbers = ",".join(str(hunk.number) for hunk in self.hunks)
        if provenance.commit:
            return f"hunks {numbers} of commit {provenance.commit[:12]} reverted"
        return f"hunks {numbers} of {provenance.base_version} -> {provenance.version} reverted"

    def touched_functions(self) -> list[tuple[str, FunctionSpan]]:
        """(path, function of the newer release) of each function that a hunk overlaps, in order."""
        found: dict[tuple[str, FunctionSpan], None] = {}
        for hunk in self.hunks:
            text = self.newer.get(hunk.path)
            if text is None or hunk.is_whole_file:
                continue
            last = max(hunk.end, hunk.first + 1)
            spans = find_functions(text)
            found.update({(hunk.path, s): None for s in spans if s.first_line <= last and hunk.first < s.last_line})
        return list(found)

    def location(self) -> Location | None:
        """The first touched function that the broken tree still has."""
        broken = {path: find_functions(text or "") for path, text in self.broken_files.items()}
        for path, span in self.touched_functions():
            for there in broken[path]:
                if there.qualified_name == span.qualified_name:
                    first, last = there.first_line, there.last_line
                    return Location(path=path, name=span.qualified_name, first_line=first, last_line=last)
        return None


def fix_clues(fix: Fix, tree: Path, failing: Sequence[str]) -> Clues:
    """What is known about a fix: touched names, failing tests with their source in ``tree``, changed lines."""
    names = [span.qualified_name for _, span in fix.touched_functions()]
    return Clues.collect(names, failing, fix.new_text, test_sources(tree, failing))


def tests_issue(failing: Sequence[str], visibility: Visibility, run: TestRun, generator: random.Random) -> str:
    """A report from the names of what fails and one message."""
    told = visibility.reported or failing[0]
    shown = functions_of((told,) if visibility.reported else failing)
    test_names = tuple(test_id.partition("::")[2] for test_id in shown)
    return failing_tests_issue(test_names, run.results[told].message, generator)

"""Reads unified diffs: the files they touch, their hunks, and what can be counted of them.

Reads patch text as git and ``diff -u`` write it, names with one leading component to strip (``-p1``); makes a
`FilePatch` per file. Invariants: text around the diffs is ignored, as git does, but a diff that is broken is an error;
names are as they will be used, unquoted, and not yet checked to stay inside a repository; what is no text (binary
files, links, submodules) is named, not read.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from repairgym.diffs.make import split_lines
from repairgym.errors import InputError

_HUNK = re.compile(r"@@ -(\d{1,9})(?:,(\d{1,9}))? \+(\d{1,9})(?:,(\d{1,9}))? @@(.*)", re.DOTALL)
_EXTENDED = (
    "old mode", "new mode", "deleted file mode", "new file mode", "copy from", "copy to", "rename from", "rename to",
    "similarity index", "dissimilarity index", "index",
)  # fmt: skip
_ESCAPES = {"a": 7, "b": 8, "t": 9, "n": 10, "v": 11, "f": 12, "r": 13, '"': 34, "\\": 92}
_ESCAPE = re.compile(r"\\([0-7]{3}|.)")
_SPECIAL_MODES = {"120000": "a link", "160000": "a submodule"}


class PatchError(InputError):
    """Text that is no unified diff, or a diff that does not apply."""


@dataclass(frozen=True)
class PatchHunk:
    """One stretch of changed lines with their context."""

    old_start: int
    """First line in the old file, from 1; 0 when the old side is empty."""
    new_start: int
    lines: tuple[str, ...]
    """Each with its sign (space, ``-`` or ``+``) and its line end; a last line without one lacks it here, too."""
    section: str = ""
    """What stands behind the second ``@@``."""

    def side(self, sign: str) -> list[str]:
        """Lines of the old (``-``) or the new (``+``) side, context included."""
        return [line[1:] for line in self.lines if line[0] in (" ", sign)]


@dataclass
class FilePatch:
    """What a patch does to one file."""

    old_path: str | None = None
    """None: the file is new."""
    new_path: str | None = None
    """None: the file is removed."""
    hunks: list[PatchHunk] = field(default_factory=list)
    is_copy: bool = False
    special: str = ""
    """What it is when it is no text file: ``binary``, ``a link``, ``a submodule``."""

    @property
    def path(self) -> str:
        """The path that a reader calls the file by: the new one, or the old one of a removed file."""
        return self.new_path or self.old_path or ""


def parse_patch(patch: str) -> list[FilePatch]:
    """The changes of each file, in the order of ``patch``; none in a text without a diff.

    Raises:
        PatchError: a diff is cut short, has no file name, or contradicts itself.
    """
    lines = split_lines(patch)
    found: list[FilePatch] = []
    at = 0
    while at < len(lines):
        if lines[at].startswith("diff --git "):
            one, at = _parse_git(lines, at)
        elif lines[at].startswith("--- ") and at + 1 < len(lines) and lines[at + 1].startswith("+++ "):
            one, at = _parse_body(lines, at, FilePatch())
        elif lines[at].startswith("@@ "):
            raise PatchError(f"line {at + 1} of the patch is a hunk without a file name before it")
        else:
            at += 1
            continue
        found.append(one)
    return found


def changed_paths(patch: str) -> tuple[str, ...]:
    """Paths that ``patch`` touches, sorted."""
    files = parse_patch(patch)
    return tuple(sorted({name for one in files for name in (not one.is_copy and one.old_path, one.new_path) if name}))


def num_changed_lines(patch: str) -> int:
    """Lines added and lines removed, together."""
    return sum(line[0] != " " for one in parse_patch(patch) for hunk in one.hunks for line in hunk.lines)


def num_edits(patch: str) -> int:
    """Runs of changed lines: places where somebody has to do something."""
    count = 0
    for one in parse_patch(patch):
        for hunk in one.hunks:
            signs = [line[0] == " " for line in hunk.lines]
            count += sum(not is_same and (place == 0 or signs[place - 1]) for place, is_same in enumerate(signs))
    return count


# --- headers -------------------------------------------------------------------------------------------------------


def _parse_git(lines: list[str], at: int) -> tuple[FilePatch, int]:
    one = FilePatch()
    one.old_path = one.new_path = _name_of_git_line(lines[at])
    number = at + 1
    at += 1
    while at < len(lines) and (key := next((key for key in _EXTENDED if lines[at].startswith(key + " ")), "")):
        _apply_header(one, key, lines[at][len(key) + 1 :].rstrip("\n"))
        at += 1
    if at < len(lines) and lines[at].startswith(("GIT binary patch", "Binary files ")):
        one.special = "binary"
        at += 1
    elif at < len(lines) and lines[at].startswith("--- "):
        return _parse_body(lines, at, one)
    if one.old_path == one.new_path == "":
        raise PatchError(f"line {number} of the patch: no file name can be read from 'diff --git'")
    return one, at


def _apply_header(one: FilePatch, key: str, value: str) -> None:
    if "mode" in key or key == "index":
        one.special = _SPECIAL_MODES.get(value.rpartition(" ")[2], one.special)
    if key == "new file mode":
        one.old_path = None
    elif key == "deleted file mode":
        one.new_path = None
    elif key in ("rename from", "copy from"):
        one.old_path, one.is_copy = _unquoted(value), key == "copy from"
    elif key in ("rename to", "copy to"):
        one.new_path = _unquoted(value)


def _name_of_git_line(line: str) -> str:
    """The name in ``diff --git a/NAME b/NAME``; empty when it cannot be told."""
    rest = line.removeprefix("diff --git ").rstrip("\r\n")
    if rest.startswith('"'):
        return _stripped(_unquoted(rest.partition('" ')[0].rstrip('"') + '"'))
    half = len(rest) // 2
    names = rest[:half], rest[half + 1 :]
    is_pair = rest[half : half + 1] == " " and names[0].partition("/")[2] == names[1].partition("/")[2]
    return names[0].partition("/")[2] if is_pair else ""


def _name_of_line(line: str) -> str | None:
    name = line[4:].rstrip("\r\n")
    name = _unquoted(name) if name.startswith('"') else name.partition("\t")[0]
    return None if name == "/dev/null" else _stripped(name)


def _stripped(name: str) -> str:
    """``name`` without its first component (``-p1``)."""
    return name.partition("/")[2] or name


def _unquoted(name: str) -> str:
    name = name.rstrip("\r\n")
    if not name.startswith('"'):
        return name
    inner = name[1:].rpartition('"')[0]
    parts: list[bytes] = []
    end = 0
    for match in _ESCAPE.finditer(inner):
        parts.append(inner[end : match.start()].encode())
        code = match[1]
        value = int(code, 8) if len(code) == 3 else _ESCAPES.get(code, -1)
        if not 0 <= value < 256:
            raise PatchError(f"{name[:80]}: unknown escape in a file name")
        parts.append(bytes((value,)))
        end = match.end()
    try:
        return b"".join((*parts, inner[end:].encode())).decode()
    except UnicodeDecodeError as error:
        raise PatchError(f"{name[:80]}: the file name is no UTF-8") from error


# --- hunks ---------------------------------------------------------------------------------------------------------


def _parse_body(lines: list[str], at: int, one: FilePatch) -> tuple[FilePatch, int]:
    """``---``, ``+++`` and the hunks; they name the file where no rename did."""
    if at + 1 >= len(lines) or not lines[at + 1].startswith("+++ "):
        raise PatchError(f"line {at + 2} of the patch: expected '+++' after '---'")
    is_renamed = bool(one.old_path and one.new_path and one.old_path != one.new_path)
    if not is_renamed:
        one.old_path, one.new_path = _name_of_line(lines[at]), _name_of_line(lines[at + 1])
    if one.old_path is None and one.new_path is None:
        raise PatchError(f"line {at + 1} of the patch: both names are /dev/null")
    at += 2
    while at < len(lines) and lines[at].startswith("@@ "):
        hunk, at = _parse_hunk(lines, at)
        one.hunks.append(hunk)
    if not one.hunks:
        raise PatchError(f"line {at} of the patch: no hunk for {one.path}")
    return one, at


def _parse_hunk(lines: list[str], at: int) -> tuple[PatchHunk, int]:
    """The hunk whose head is ``lines[at]``, and the place of the line after it."""
    head = _HUNK.fullmatch(lines[at])
    if not head:
        raise PatchError(f"line {at + 1} of the patch: got {lines[at].rstrip()!r}, expected '@@ -L,N +L,N @@'")
    old_start, num_old, new_start, num_new = (int(part) if part else 1 for part in head.groups()[:4])
    at += 1
    body: list[str] = []
    while num_old > 0 or num_new > 0:
        line = _signed_line(lines, at, f"{num_old} old and {num_new} new lines")
        num_old -= line[0] in " -"
        num_new -= line[0] in " +"
        at += 1
        if at < len(lines) and lines[at].startswith("\\ "):
            line = line.removesuffix("\n")
            at += 1
        body.append(line)
    if num_old or num_new:
        raise PatchError(f"line {at} of the patch: the hunk has other numbers of lines than its header says")
    return PatchHunk(old_start, new_start, tuple(body), head[5].rstrip("\r\n")), at


def _signed_line(lines: list[str], at: int, missing: str) -> str:
    if at >= len(lines):
        raise PatchError(f"line {at + 1} of the patch: got the end in the middle of a hunk, expected {missing}")
    # A patch's text that ends without a line feed says nothing about the file; a marker line does.
    line = lines[at] if lines[at].endswith("\n") else lines[at] + "\n"
    # Mailers, editors and agents strip the blank of an empty context line; git takes it, too.
    line = " " + line if line in ("\n", "\r\n") else line
    if line[0] not in " +-":
        raise PatchError(f"line {at + 1} of the patch: expected ' ', '+' or '-' in a hunk, got {line[:20]!r}")
    return line

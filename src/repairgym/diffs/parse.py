"""A parser of unified diffs, counts of changed lines, and numbered rows for a viewer.

Reads patch text as git and ``diff -u`` write it, names with one leading component to strip (``-p1``); makes a
`FilePatch` per file. Guarantees: like git, it ignores text around the diffs but rejects a broken diff; names are
unquoted, and not yet checked to stay inside a repository; binary files, links and submodules are named, not read.
`numbered_rows` accepts any text.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from repairgym.diffs.lines import split_lines
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
    """Text that is not a unified diff, or a diff that does not apply."""


@dataclass(frozen=True)
class PatchHunk:
    """One stretch of changed lines with their context."""

    old_start: int
    """First line in the old file, from 1; 0 when the old side is empty."""
    new_start: int
    lines: tuple[str, ...]
    """Each with its sign (space, ``-`` or ``+``) and its line end; only a last line can lack the line end."""
    section: str = ""
    """Text after the second ``@@``."""

    def side(self, sign: str) -> list[str]:
        """Return the lines of the old (``-``) or the new (``+``) side, context included."""
        return [line[1:] for line in self.lines if line[0] in (" ", sign)]


@dataclass
class FilePatch:
    """The changes of one file in a patch."""

    old_path: str | None = None
    """None: the file is new."""
    new_path: str | None = None
    """None: the file is removed."""
    hunks: list[PatchHunk] = field(default_factory=list)
    is_copy: bool = False
    is_named_only: bool = False
    """No header says whether the file is there before: ``diff -u`` without ``/dev/null``."""
    old_mode: str = ""
    """As a header of git writes it; empty where none does."""
    new_mode: str = ""
    special: str = ""
    """Kind of a file that is not text: ``binary``, ``a link``, ``a submodule``; empty for text."""

    @property
    def is_rename(self) -> bool:
        """True where a header of git moves the file."""
        return not self.is_copy and self.old_path != self.new_path and None not in (self.old_path, self.new_path)

    @property
    def can_be_new(self) -> bool:
        """True where the patch also fits a file that is not there: it adds lines to none, and no header says more."""
        is_single = self.is_named_only and self.old_path is not None and len(self.hunks) == 1
        return is_single and not self.hunks[0].side("-")

    @property
    def path(self) -> str:
        """The new path, or the old one of a removed file."""
        return self.new_path or self.old_path or ""


def parse_patch(patch: str) -> list[FilePatch]:
    """Return the changes of each file, in the order of ``patch``; none for a text without a diff.

    Raises:
        PatchError: a diff is cut short, has no file name, or contradicts itself.
    """
    lines = split_lines(patch)
    files: list[FilePatch] = []
    at = 0
    while at < len(lines):
        if lines[at].startswith("diff --git "):
            file, at = _parse_git(lines, at)
        elif lines[at].startswith("--- ") and at + 1 < len(lines) and lines[at + 1].startswith("+++ "):
            file, at = _parse_body(lines, at, FilePatch(is_named_only=True))
        elif lines[at].startswith("@@ "):
            raise PatchError(f"line {at + 1} of the patch is a hunk without a file name before it")
        else:
            at += 1
            continue
        files.append(file)
    return files


def changed_paths(patch: str) -> tuple[str, ...]:
    """Return the paths that ``patch`` touches, sorted."""
    files = parse_patch(patch)
    return tuple(sorted({p for file in files for p in (not file.is_copy and file.old_path, file.new_path) if p}))


def num_changed_lines(patch: str) -> int:
    """Count the added and the removed lines, together."""
    return sum(line[0] != " " for file in parse_patch(patch) for hunk in file.hunks for line in hunk.lines)


def num_edits(patch: str) -> int:
    """Count the runs of changed lines: the places that somebody has to edit."""
    count = 0
    for file in parse_patch(patch):
        for hunk in file.hunks:
            is_same = [line[0] == " " for line in hunk.lines]
            count += sum(not same and (at == 0 or is_same[at - 1]) for at, same in enumerate(is_same))
    return count


# --- headers -------------------------------------------------------------------------------------------------------


def _parse_git(lines: list[str], at: int) -> tuple[FilePatch, int]:
    file = FilePatch()
    file.old_path = file.new_path = _name_of_git_line(lines[at])
    number = at + 1
    at += 1
    while at < len(lines) and (key := next((key for key in _EXTENDED if lines[at].startswith(key + " ")), "")):
        _apply_header(file, key, lines[at][len(key) + 1 :].rstrip("\n"))
        at += 1
    if at < len(lines) and lines[at].startswith(("GIT binary patch", "Binary files ")):
        file.special = "binary"
        at += 1
    elif at < len(lines) and lines[at].startswith("--- "):
        return _parse_body(lines, at, file)
    if file.old_path == file.new_path == "":
        raise PatchError(f"line {number} of the patch: no file name can be read from 'diff --git'")
    return file, at


def _apply_header(file: FilePatch, key: str, value: str) -> None:
    if "mode" in key or key == "index":
        file.special = _SPECIAL_MODES.get(value.rpartition(" ")[2], file.special)
    if key in ("old mode", "deleted file mode"):
        file.old_mode = value
    elif key in ("new mode", "new file mode"):
        file.new_mode = value
    if key == "new file mode":
        file.old_path = None
    elif key == "deleted file mode":
        file.new_path = None
    elif key in ("rename from", "copy from"):
        file.old_path, file.is_copy = _unquoted(value), key == "copy from"
    elif key in ("rename to", "copy to"):
        file.new_path = _unquoted(value)


def _name_of_git_line(line: str) -> str:
    """Return the name in ``diff --git a/NAME b/NAME``; empty when it is ambiguous."""
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
    """Return ``name`` without its first component (``-p1``)."""
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
        raise PatchError(f"{name[:80]}: the file name is not UTF-8") from error


# --- hunks ---------------------------------------------------------------------------------------------------------


def _parse_body(lines: list[str], at: int, file: FilePatch) -> tuple[FilePatch, int]:
    """Read ``---``, ``+++`` and the hunks; the two lines name the file unless it is renamed."""
    if at + 1 >= len(lines) or not lines[at + 1].startswith("+++ "):
        raise PatchError(f"line {at + 2} of the patch: expected '+++' after '---'")
    is_renamed = bool(file.old_path and file.new_path and file.old_path != file.new_path)
    if not is_renamed:
        file.old_path, file.new_path = _name_of_line(lines[at]), _name_of_line(lines[at + 1])
    if file.old_path is None and file.new_path is None:
        raise PatchError(f"line {at + 1} of the patch: both names are /dev/null")
    at += 2
    while at < len(lines) and lines[at].startswith("@@ "):
        hunk, at = _parse_hunk(lines, at)
        file.hunks.append(hunk)
    if not file.hunks:
        raise PatchError(f"line {at} of the patch: no hunk for {file.path}")
    return file, at


def _parse_hunk(lines: list[str], at: int) -> tuple[PatchHunk, int]:
    """Read the hunk whose header is ``lines[at]``; return it and the index of the line after it."""
    header = _HUNK.fullmatch(lines[at])
    if not header:
        raise PatchError(f"line {at + 1} of the patch: got {lines[at].rstrip()!r}, expected '@@ -L,N +L,N @@'")
    old_start, num_old, new_start, num_new = _numbers(header)
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
    return PatchHunk(old_start, new_start, tuple(body), header[5].rstrip("\r\n")), at


def _numbers(header: re.Match[str]) -> tuple[int, int, int, int]:
    """Return the first line and number of lines of the old side, then of the new side."""
    old_start, num_old, new_start, num_new = (int(part) if part else 1 for part in header.groups()[:4])
    return old_start, num_old, new_start, num_new


def _signed_line(lines: list[str], at: int, missing: str) -> str:
    if at >= len(lines):
        raise PatchError(f"line {at + 1} of the patch: got the end in the middle of a hunk, expected {missing}")
    # A patch whose text ends without a line feed says nothing about the file; a marker line does.
    line = lines[at] if lines[at].endswith("\n") else lines[at] + "\n"
    # Mailers, editors and agents strip the blank of an empty context line; git accepts it, too.
    line = " " + line if line in ("\n", "\r\n") else line
    if line[0] not in " +-":
        raise PatchError(f"line {at + 1} of the patch: expected ' ', '+' or '-' in a hunk, got {line[:20]!r}")
    return line


# --- rows ----------------------------------------------------------------------------------------------------------

RowKind = Literal["file", "hunk", "add", "del", "same", "note"]
_ROW_KINDS: dict[str, RowKind] = {"+": "add", "-": "del", " ": "same", "": "same"}


@dataclass(frozen=True)
class NumberedRow:
    """One line of a patch as a viewer shows it."""

    path: str
    """The file's new name, as the patch writes it after ``b/``."""
    kind: RowKind
    text: str
    """Without its sign and line end."""
    old_number: int | None = None
    new_number: int | None = None


def numbered_rows(patch: str) -> Iterator[NumberedRow]:
    """Yield a row per line of any text; the two lines that name a file become one row.

    The lengths in a hunk's header decide the kind of a line: a removed ``-- x`` looks like a file's name.
    """
    path = old_path = ""
    old = new = num_old = num_new = 0
    for line in patch.removesuffix("\n").split("\n") if patch else ():
        kind = _ROW_KINDS.get(line[:1]) if num_old > 0 or num_new > 0 else None
        if kind is not None:
            yield NumberedRow(path, kind, line[1:], old if kind != "add" else None, new if kind != "del" else None)
            old, num_old = old + (kind != "add"), num_old - (kind != "add")
            new, num_new = new + (kind != "del"), num_new - (kind != "del")
        elif match := _HUNK.match(line):
            old, num_old, new, num_new = _numbers(match)
            yield NumberedRow(path, "hunk", line)
        elif line.startswith("--- "):
            old_path = line[4:].removeprefix("a/")
        elif line.startswith("+++ "):
            path = line[4:].removeprefix("b/")
            yield NumberedRow(path, "file", _file_label(old_path, path))
        else:
            yield NumberedRow(path, "hunk" if line.startswith("@@ -") else "note", line)


def _file_label(old_path: str, new_path: str) -> str:
    if old_path == "/dev/null":
        return f"{new_path} (new file)"
    if new_path == "/dev/null":
        return f"{old_path} (removed)"
    return new_path if old_path == new_path else f"{old_path} → {new_path}"
